package harness

import (
	"net"
	"sync"
)

// Pipes is a listener in memory, for servers in a bubble of testing/synctest, whose time does not
// pass while a goroutine waits for the network.
type Pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
	mu     sync.Mutex
	dials  int
}

// NewPipes returns a listener without connections.
func NewPipes() *Pipes {
	closed := make(chan struct{})
	return &Pipes{conns: make(chan net.Conn), closed: closed, close: sync.OnceFunc(func() { close(closed) })}
}

// Dial connects to the listener.
func (p *Pipes) Dial() net.Conn {
	p.mu.Lock()
	p.dials++
	p.mu.Unlock()
	client, server := net.Pipe()
	select {
	case p.conns <- server:
	case <-p.closed:
		_ = server.Close()
	}
	return client
}

// Dials returns the number of connections so far.
func (p *Pipes) Dials() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dials
}

// Accept implements net.Listener.
func (p *Pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (p *Pipes) Close() error { p.close(); return nil }

// Addr implements net.Listener.
func (p *Pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes", Net: "unix"} }
