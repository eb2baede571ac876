// Package peer decides whether a connection to a server of the agent comes from the agent's Envoy.
// Envoy forwards what others send, so its connections prove nothing about who sends, although they
// come from an address of this machine or pod. No content of a connection counts, because a route
// for TCP forwards any bytes: only the kernel says which process has the other end.
package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
)

// ErrForwarded is the error of Check for a connection of Envoy.
var ErrForwarded = errors.New("it comes through the proxy")

// maxChecks bounds the checks that run at a time; others wait.
const maxChecks = 4

// Guard knows the processes of Envoy. Before the first call of Starting, there is no Envoy.
type Guard struct {
	log     *slog.Logger
	proc    string       // where the file system proc is mounted
	group   atomic.Int64 // the process group of Envoy, noEnvoy or starting
	running chan struct{}
}

// Values of Guard.group that are no process group.
const (
	noEnvoy  = 0
	starting = -1
)

// New returns a guard.
func New(log *slog.Logger) *Guard {
	return &Guard{log: log, proc: "/proc", running: make(chan struct{}, maxChecks)}
}

// Starting says that Envoy is about to start: until Started, all connections from this machine are
// refused.
func (g *Guard) Starting() { g.group.Store(starting) }

// Started says which process group Envoy and its children have. A program that starts Envoy, such
// as a script, is in this group, too.
func (g *Guard) Started(group int) { g.group.Store(int64(group)) }

// Check returns nil if conn, which a listener for TCP accepted, does not come from Envoy. It
// returns ErrForwarded for a connection of Envoy, and another error for a connection from this
// machine whose process the kernel does not tell. For a connection from another machine it returns
// nil. The answer holds for the moment: the other end must stay open until then, as it does while a
// client waits for a response.
func (g *Guard) Check(conn net.Conn) error {
	group := g.group.Load()
	if group == noEnvoy {
		return nil
	}
	g.running <- struct{}{}
	defer func() { <-g.running }()
	local, remote := address(conn.LocalAddr()), address(conn.RemoteAddr())
	err := g.check(conn, int(group), local, remote)
	if err == nil || errors.Is(err, ErrForwarded) {
		return err
	}
	// A socket that this network namespace does not have may be on another machine.
	if there, addrErr := isLocal(remote.Addr(), local.Addr()); addrErr != nil || there {
		return errors.Join(err, addrErr)
	}
	return nil
}

// address returns the address of an end of a connection. IPv4 addresses have the form of IPv4, also
// at sockets for IPv6.
func address(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	at := tcp.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// check is Check for a socket of this network namespace: it returns an error if there is none.
func (g *Guard) check(conn net.Conn, group int, local, remote netip.AddrPort) error {
	if group == starting {
		return errors.New("the proxy is starting")
	}
	inode, err := inodeOf(remote, local)
	if err != nil {
		return err
	}
	forwarded, err := owns(g.proc, group, inode)
	switch {
	case err != nil:
		return err
	case forwarded:
		return ErrForwarded
	}
	// If Envoy closed its socket before its descriptors were read, the socket has no inode any more,
	// or the addresses belong to another connection, and then conn is closed.
	again, err := inodeOf(remote, local)
	switch {
	case err != nil:
		return err
	case again != inode:
		return errors.New("its other end was replaced")
	}
	return checkEstablished(conn)
}

// isLocal reports whether a peer at the address from is on this machine or in this pod.
func isLocal(from, to netip.Addr) (bool, error) {
	if from == to || from.IsLoopback() || !from.IsValid() {
		return true, nil
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return false, fmt.Errorf("list the addresses of this machine: %w", err)
	}
	for _, a := range all {
		if own, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(own.IP); ok && ip.Unmap() == from.WithZone("") {
				return true, nil
			}
		}
	}
	return false, nil
}

// connection is the key of a connection in the context of its requests.
type connection struct{}

// KeepConnection is for the field ConnContext of a server whose requests Handler checks.
func KeepConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connection{}, conn)
}

// Handler answers requests that come through Envoy with status 403, and passes on all others.
func (g *Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, ok := r.Context().Value(connection{}).(net.Conn)
		err := errors.New("the server does not know its connection")
		if ok {
			err = g.Check(conn)
		}
		if err == nil {
			next.ServeHTTP(w, r)
			return
		}
		g.refused(r.Context().Value(http.LocalAddrContextKey), err)
		w.Header().Set("Connection", "close")
		http.Error(w, "Only requests that do not come through the proxy are allowed: "+err.Error(), http.StatusForbidden)
	})
}

func (g *Guard) refused(at any, err error) {
	if errors.Is(err, ErrForwarded) {
		g.log.Warn("refused a request that the proxy forwarded to a port of the agent", "port", at)
		return
	}
	g.log.Warn("refused a request to a port of the agent, because the kernel does not tell whether the proxy forwarded it", "port", at, "error", err)
}

// Listener returns a listener for TCP whose connections end, before anything is read from them, if
// they come through Envoy.
func (g *Guard) Listener(l net.Listener) net.Listener { return &listener{l, g} }

type listener struct {
	net.Listener
	guard *Guard
}

// Accept implements net.Listener. The check is for the first Read, so that it holds up no other
// connection.
func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &checkedConn{Conn: conn, check: sync.OnceValue(func() error {
		err := l.guard.Check(conn)
		if err != nil {
			l.guard.refused(conn.LocalAddr(), err)
		}
		return err
	})}, nil
}

type checkedConn struct {
	net.Conn
	check func() error
}

// Read implements net.Conn.
func (c *checkedConn) Read(b []byte) (int, error) {
	if err := c.check(); err != nil {
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err} // to which servers answer nothing
	}
	return c.Conn.Read(b)
}
