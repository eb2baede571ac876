//go:build !linux

package admission

import (
	"net"
	"time"
)

// setUserTimeout does nothing. gRPC's keepalive closes such connections later.
func setUserTimeout(net.Conn, time.Duration) error { return nil }
