//go:build !linux

package peer

import (
	"errors"
	"net"
	"net/netip"
)

// errNoLinux is the error of what exists on Linux only, like the agent.
var errNoLinux = errors.New("only Linux tells which process has the other end of a connection")

func inodeOf(_, _ netip.AddrPort) (uint32, error) { return 0, errNoLinux }

func owns(_ string, _ int, _ uint32) (bool, error) { return false, errNoLinux }

func checkEstablished(net.Conn) error { return errNoLinux }
