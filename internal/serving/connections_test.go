package serving

import (
	"net"
	"net/netip"
	"testing"
)

// peerConn is a connection of a peer.
type peerConn struct {
	net.Conn
	from   string
	closed bool
}

func (c *peerConn) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.from))
}
func (c *peerConn) Close() error { c.closed = true; return nil }

// peers are connections to accept.
type peers struct {
	net.Listener
	next []*peerConn
}

func (p *peers) Accept() (net.Conn, error) {
	if len(p.next) == 0 {
		return nil, net.ErrClosed
	}
	c := p.next[0]
	p.next = p.next[1:]
	return c, nil
}

// TestBound: each source has a share of the connections, and a source with fewer connections than
// another gets one of them.
func TestBound(t *testing.T) {
	t.Parallel()
	from := &peers{}
	l := Bound(from, 5, 3)
	connect := func(addr string) (net.Conn, *peerConn) {
		raw := &peerConn{from: addr}
		from.next = append(from.next, raw)
		c, err := l.Accept()
		if err != nil && !raw.closed {
			t.Fatalf("%s was neither accepted nor closed", addr)
		}
		return c, raw
	}
	var raws []*peerConn
	var conns []net.Conn
	for _, addr := range []string{"10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "[2001:db8::1]:1", "[2001:db8::2]:1"} {
		c, raw := connect(addr)
		if raw.closed {
			t.Fatalf("%s was refused", addr)
		}
		conns, raws = append(conns, c), append(raws, raw)
	}
	if _, raw := connect("10.0.0.1:4"); !raw.closed {
		t.Error("a source has more than its share")
	}
	c, raw := connect("10.0.0.2:1")
	if raw.closed || !raws[0].closed || raws[1].closed {
		t.Error("a new source did not replace the oldest connection of the source with the most")
	}
	for _, c := range append(conns, c, c) { // closed twice
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if b, _ := l.(*boundListener); b.n != 0 || len(b.open) != 0 {
		t.Errorf("%d connections of %d sources are left", b.n, len(b.open))
	}
}
