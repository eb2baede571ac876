package xds

import (
	"context"
	"net"
	"sync"

	"google.golang.org/grpc/peer"
)

// Conns remembers the connections of a listener, so that the one behind a
// stream can be closed. gRPC itself has no way to do that. The zero value
// works.
type Conns struct {
	mu    sync.Mutex
	conns map[string]net.Conn // by the peer's address
}

// Listen remembers what the listener accepts.
func (c *Conns) Listen(l net.Listener) net.Listener { return connsListener{l, c} }

// Close closes the connection of the peer in the context of a stream.
func (c *Conns) Close(ctx context.Context) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return
	}
	c.mu.Lock()
	conn := c.conns[p.Addr.String()]
	c.mu.Unlock()
	if conn != nil {
		conn.Close() // the only error is that it is closed already
	}
}

func (c *Conns) put(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conns == nil {
		c.conns = make(map[string]net.Conn)
	}
	c.conns[conn.RemoteAddr().String()] = conn
}

func (c *Conns) drop(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if key := conn.RemoteAddr().String(); c.conns[key] == conn {
		delete(c.conns, key)
	}
}

type connsListener struct {
	net.Listener
	conns *Conns
}

// Accept implements net.Listener.
func (l connsListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tracked := &trackedConn{Conn: conn, conns: l.conns}
	l.conns.put(tracked)
	return tracked, nil
}

type trackedConn struct {
	net.Conn
	conns *Conns
}

// Close implements net.Conn.
func (c *trackedConn) Close() error {
	c.conns.drop(c)
	return c.Conn.Close()
}
