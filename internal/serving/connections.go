package serving

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// The connections of an HTTP server at a time: of all clients, and of one source.
const (
	MaxConnections         = 1024
	MaxConnectionsOfSource = 128
)

// Bound returns a listener that bounds the open connections of all sources, and of each source. If all
// are in use, a new connection replaces the oldest one of the source with the most, so that no source
// keeps others out.
func Bound(l net.Listener, all, ofSource int) net.Listener {
	return &boundListener{Listener: l, all: all, ofSource: ofSource, open: make(map[netip.Prefix][]*boundConn)}
}

type boundListener struct {
	net.Listener
	all, ofSource int

	mu   sync.Mutex // guards what follows
	n    int
	open map[netip.Prefix][]*boundConn // oldest first
}

type boundConn struct {
	net.Conn
	listener *boundListener
	source   netip.Prefix
}

// NetConn returns the connection itself, as that of tls.Conn does.
func (c *boundConn) NetConn() net.Conn { return c.Conn }

// Accept implements net.Listener.
func (l *boundListener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &boundConn{raw, l, SourceOf(raw.RemoteAddr().String())}
		replaced, ok := l.add(c)
		if replaced != nil {
			_ = replaced.Conn.Close()
		}
		if ok {
			return c, nil
		}
		_ = raw.Close()
	}
}

// add counts a connection, and returns the one that it replaces. ok is false if there is no room.
func (l *boundListener) add(c *boundConn) (replaced *boundConn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := len(l.open[c.source])
	if own >= l.ofSource {
		return nil, false
	}
	if l.n >= l.all {
		var most []*boundConn
		for _, list := range l.open {
			if len(list) > len(most) {
				most = list
			}
		}
		if len(most) <= own {
			return nil, false
		}
		replaced = most[0]
		l.remove(replaced)
	}
	l.open[c.source] = append(l.open[c.source], c)
	l.n++
	return replaced, true
}

// remove forgets a connection. The lock must be held.
func (l *boundListener) remove(c *boundConn) {
	list := l.open[c.source]
	at := slices.Index(list, c)
	if at < 0 {
		return
	}
	if l.n--; len(list) == 1 {
		delete(l.open, c.source)
		return
	}
	l.open[c.source] = slices.Delete(list, at, at+1)
}

// Close implements net.Conn.
func (c *boundConn) Close() error {
	c.listener.mu.Lock()
	c.listener.remove(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
