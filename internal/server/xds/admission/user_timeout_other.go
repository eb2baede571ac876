//go:build !linux

package admission

import (
	"net"
	"time"
)

// setUserTimeout does nothing: gRPC's keepalive finds such peers, later.
func setUserTimeout(net.Conn, time.Duration) error { return nil }
