//go:build !linux

package process

import "syscall"

func attributes(syscall.Signal) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
func awaitExit(int)                                  {}
