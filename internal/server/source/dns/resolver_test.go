package dns

import (
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/meshctl/meshctl/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// zone is a DNS zone that tests change.
type zone struct {
	mu    sync.Mutex
	hosts map[string][]string // nil: it fails
	asked map[string]int
}

func (z *zone) set(host string, addresses ...string) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.hosts[host] = addresses
}

func (z *zone) lookup(_ context.Context, host string) ([]netip.Addr, error) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.asked[host]++
	texts, ok := z.hosts[host]
	if !ok || texts == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out, nil
}

// start runs a Resolver on the zone. want waits for published addresses.
func start(t *testing.T, z *zone, hosts ...string) (r *Resolver, want func(map[string][]string), log *harness.LogBuffer) {
	t.Helper()
	published := make(chan map[string][]netip.Addr, 100)
	log = &harness.LogBuffer{}
	r = New(Config{
		Lookup: z.lookup, Publish: func(m map[string][]netip.Addr) { published <- m },
		Log: slog.New(slog.NewTextHandler(log, nil)), Every: 10 * time.Millisecond, Jitter: func(d time.Duration) time.Duration { return d / 2 }, Now: time.Now,
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	r.Want(hosts)
	return r, func(want map[string][]string) {
		t.Helper()
		select {
		case got := <-published:
			texts := make(map[string][]string)
			for host, addresses := range got {
				for _, a := range addresses {
					texts[host] = append(texts[host], a.String())
				}
			}
			if diff := cmp.Diff(want, texts, cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("published (-want +got):\n%s", diff)
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("nothing was published, want %v", want)
		}
	}, log
}

func TestResolver(t *testing.T) {
	t.Parallel()
	z := &zone{hosts: map[string][]string{"lb.example.": {"192.0.2.2", "::ffff:192.0.2.1", "192.0.2.2"}, "here": {"127.0.0.9"}}, asked: map[string]int{}}
	r, want, log := start(t, z, "lb.example", "here", "late.example.")
	// The addresses are published after the first lookup of all hosts.
	want(map[string][]string{"lb.example": {"192.0.2.1", "192.0.2.2"}, "here": {"127.0.0.9"}})
	z.set("late.example.", "2001:db8::1")
	want(map[string][]string{"lb.example": {"192.0.2.1", "192.0.2.2"}, "here": {"127.0.0.9"}, "late.example.": {"2001:db8::1"}})
	// Failed and empty responses remove no addresses.
	z.set("lb.example.")
	z.set("here", []string{}...)
	z.set("late.example.", "2001:db8::2")
	want(map[string][]string{"lb.example": {"192.0.2.1", "192.0.2.2"}, "here": {"127.0.0.9"}, "late.example.": {"2001:db8::2"}})
	r.Want([]string{"here"})
	want(map[string][]string{"here": {"127.0.0.9"}})
	z.set("here", "127.0.0.10")
	want(map[string][]string{"here": {"127.0.0.10"}})
	r.Want(nil)
	want(nil)
	for _, line := range []string{
		`level=INFO msg="host name of a gateway cannot be resolved, the gateway is not used" host=late.example. error="no such host"`,
		`level=WARN msg="host name of a gateway cannot be resolved, its last addresses stay" host=lb.example addresses="[192.0.2.1 192.0.2.2]" error="no such host"`,
		`msg="host name of a gateway is resolved" host=late.example. addresses=[2001:db8::1]`,
	} {
		if strings.Count(log.String(), line) != 1 {
			t.Errorf("the log does not say once: %s\n%s", line, log)
		}
	}
}

// TestResolverFirst: nothing is published before the first lookup of all hosts, even
// if none has addresses.
func TestResolverFirst(t *testing.T) {
	t.Parallel()
	z := &zone{hosts: map[string][]string{}, asked: map[string]int{}}
	_, want, _ := start(t, z, "a.example", "b.example")
	want(nil)
	z.mu.Lock()
	defer z.mu.Unlock()
	if asked := maps.Clone(z.asked); asked["a.example."] == 0 || asked["b.example."] == 0 {
		t.Errorf("asked %v", asked)
	}
}
