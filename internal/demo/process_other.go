//go:build !linux

package demo

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
)

// supported says whether the demo can run on this system.
func supported() error {
	return errors.New("meshctl demo runs on Linux only, where every address of 127.0.0.0/8 can be listened on; this is " + runtime.GOOS)
}

func isolate(*exec.Cmd)      {}
func separate(*exec.Cmd)     {}
func waitExited(int)         {}
func terminate(int)          {}
func killGroup(int)          {}
func tryLock(*os.File) error { return nil }
func owned(fs.FileInfo) bool { return false }
