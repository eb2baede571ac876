package admission

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc/peer"

	"github.com/meshctl/meshctl/internal/mesh"
)

// newConns returns the limits of n connections, with long time limits.
func newConns(n int, authenticate bool) *Conns {
	none := func() {}
	return NewConns(Config{
		Limits: Limits{FirstRequest: time.Minute, Write: time.Minute, AddressConns: n, PendingConns: n, IdentityConns: n},
		Stats:  Stats{Refused: none, Rejected: none, Stalled: none, Closed: none}, Log: slog.New(slog.DiscardHandler), Now: time.Now, Authenticate: authenticate,
	})
}

// TestSlowDown: Reads from a connection are delayed in proportion to the number of
// connections of its identity. Connections of other identities are not delayed.
func TestSlowDown(t *testing.T) {
	c := newConns(10, false)
	admit := func() (*Conn, net.Conn, context.Context) {
		server, client := net.Pipe()
		n := c.admit(server)
		t.Cleanup(func() { _ = n.Close(); _ = client.Close() })
		return n, client, peer.NewContext(t.Context(), &peer.Peer{Addr: n.RemoteAddr()})
	}
	flooding, client, ctx := admit()
	_, _, second := admit()
	calm, _, calmly := admit()
	for ctx, account := range map[context.Context]string{ctx: "flood", second: "flood", calmly: "calm"} {
		if err := Authenticated(ctx, mesh.Identity{ServiceAccount: account}); err != nil {
			t.Fatal(err)
		}
	}
	SlowDown(t.Context(), time.Hour) // not one of our connections
	for range 3 {
		SlowDown(ctx, time.Millisecond)
	}
	if late := time.Duration(flooding.readDelay.Load()); late != 6*time.Millisecond || calm.readDelay.Load() != 0 {
		t.Errorf("it is late by %v, want 6ms; another by %d", late, calm.readDelay.Load())
	}
	SlowDown(ctx, time.Hour) // more than the maximum
	go func() { _, _ = client.Write([]byte("x")) }()
	began := time.Now()
	if n, err := flooding.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if took := time.Since(began); took < maxReadDelay || flooding.readDelay.Load() != 0 {
		t.Errorf("read after %v, want at least %v", took, maxReadDelay)
	}
}
