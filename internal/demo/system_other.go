//go:build !linux

package demo

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
)

// supported reports whether the demo can run on this system.
func supported() error {
	return errors.New("meshctl demo runs on Linux only, where every address of 127.0.0.0/8 can be listened on; this is " + runtime.GOOS)
}

func tryLock(*os.File) error { return nil }
func owned(fs.FileInfo) bool { return false }
