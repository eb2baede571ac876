//go:build !linux

package process

import "syscall"

func attributes(syscall.Signal) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
func awaitExit(int)                                  {}

// ReleaseMemory does nothing: only Linux reports its memory by page.
func ReleaseMemory() {}

// KeepsNetAdmin returns false: only Linux has the capability.
func KeepsNetAdmin() bool { return false }
