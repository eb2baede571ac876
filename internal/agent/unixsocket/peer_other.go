//go:build !linux

package unixsocket

import (
	"errors"
	"net"
)

// peerUID fails: the agent runs on Linux only.
func peerUID(*net.UnixConn) (uint32, error) {
	return 0, errors.New("the user of a socket's peer is known on Linux only")
}
