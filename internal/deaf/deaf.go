// Package deaf makes connections that stop reading, for tests and load
// generators of servers that have to bear such clients.
package deaf

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
)

// Dial connects to a TCP address with a receive buffer of that many bytes,
// which it must have before: a window that was offered once stays. Once deaf is
// closed nothing more is read from the connection, though it stays open.
func Dial(ctx context.Context, d net.Dialer, addr string, buffer int, deaf <-chan struct{}) (net.Conn, error) {
	d.Control = func(_, _ string, raw syscall.RawConn) error {
		var set error
		err := raw.Control(func(fd uintptr) {
			set = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, buffer)
		})
		return errors.Join(err, set)
	}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, deaf: deaf, closed: make(chan struct{})}, nil
}

type conn struct {
	net.Conn
	deaf   <-chan struct{}
	closed chan struct{}
	once   sync.Once
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	select {
	case <-c.deaf:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return c.Conn.Read(p)
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
