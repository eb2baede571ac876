package harness

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
)

// DialStalling connects to a TCP address. Once stop is closed, the connection
// stays open but reads no more bytes. buffer is the size of its receive buffer:
// it is set before connecting, because an advertised window does not shrink.
func DialStalling(ctx context.Context, d net.Dialer, addr string, buffer int, stop <-chan struct{}) (net.Conn, error) {
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
	return &stallingConn{Conn: c, stop: stop, closed: make(chan struct{})}, nil
}

type stallingConn struct {
	net.Conn
	stop   <-chan struct{}
	closed chan struct{}
	once   sync.Once
}

// Read implements net.Conn.
func (c *stallingConn) Read(p []byte) (int, error) {
	select {
	case <-c.stop:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return c.Conn.Read(p)
	}
}

// Close implements net.Conn.
func (c *stallingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}
