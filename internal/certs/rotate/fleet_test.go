package rotate

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/mesh"
)

var seeds = flag.Int("seeds", 0, "how many random fleets TestNoHandshakeEverFails has; 0 is 6, and 3 with -short")

// fleet has clusters of proxies that renew certificates at random times during a random
// rotation.
type fleet struct {
	t     *testing.T
	rand  *mathrand.Rand
	clock *clock
	dir   *Dir
	disk  *faulty
	key   crypto.Signer

	planes  []*plane
	proxies []*proxy
	// verified remembers which leaf was shown to which bundle.
	verified map[[2]any]bool
	shakes   int
	failures []string
	steps    map[Phase]int
}

// plane is the control plane of a cluster. It may use an older state of the directory.
type plane struct {
	cluster   mesh.ClusterID
	authority *certs.Authority
	reads     []time.Time // when it will read, because something was written
}

// proxy has the certificate and the roots of its last renewal.
type proxy struct {
	name   string
	plane  *plane
	leaf   *x509.Certificate
	chain  *x509.CertPool
	roots  *x509.CertPool
	renews time.Time
}

func newFleet(t *testing.T, seed uint64) *fleet {
	f := &fleet{
		t: t, rand: mathrand.New(mathrand.NewPCG(seed, 1)), clock: newClock(),
		verified: map[[2]any]bool{}, steps: map[Phase]int{},
	}
	var names []mesh.ClusterID
	for i := range 1 + f.rand.IntN(3) {
		names = append(names, mesh.ClusterID(fmt.Sprintf("cluster%d", i+1)))
	}
	f.dir = newDir(t, f.clock, names...)
	f.disk = &faulty{Storage: quickDisk{}}
	f.dir.Storage = f.disk
	var err error
	if f.key, err = certs.GenerateKey(certs.ECDSAP256); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		p := &plane{cluster: name}
		f.read(p)
		f.planes = append(f.planes, p)
		for i := range 3 {
			x := &proxy{name: fmt.Sprintf("%s-%d", name, i), plane: p}
			f.renew(x)
			f.proxies = append(f.proxies, x)
		}
	}
	return f
}

// upTo returns a random time up to d.
func (f *fleet) upTo(d time.Duration) time.Duration {
	return time.Duration(f.rand.Int64N(int64(d) + 1))
}

// read makes a control plane read its directory.
func (f *fleet) read(p *plane) {
	var err error
	if p.authority, err = store.Load(f.dir.path(string(p.cluster)), f.clock.now); err != nil {
		f.t.Fatal(err)
	}
	p.reads = slices.DeleteFunc(p.reads, func(at time.Time) bool { return !at.After(f.clock.now) })
}

// renew gets a certificate with the longest life. Proxies renew early, at the last
// moment, or pause for a while.
func (f *fleet) renew(x *proxy) {
	a := x.plane.authority
	caller := mesh.Caller{Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "ns", ServiceAccount: x.name}, Cluster: x.plane.cluster}
	ttl := leafTTL
	if f.rand.IntN(4) == 0 {
		ttl = leafTTL/10 + f.upTo(leafTTL/2)
	}
	var err error
	if x.leaf, err = a.SignLeaf(f.key.Public(), caller, ttl, f.clock.now, rand.Reader); err != nil {
		f.t.Fatal(err)
	}
	x.chain, x.roots = x509.NewCertPool(), x509.NewCertPool()
	for _, c := range a.Chain {
		x.chain.AddCert(c)
	}
	for _, c := range a.Roots {
		x.roots.AddCert(c)
	}
	switch f.rand.IntN(5) {
	case 0:
		x.renews = x.leaf.NotAfter
	case 1:
		x.renews = x.leaf.NotAfter.Add(f.upTo(leafTTL))
	default:
		x.renews = f.clock.now.Add(ttl/3 + f.upTo(ttl/2))
	}
}

// handshakes makes every proxy verify every other one that has a certificate.
func (f *fleet) handshakes() {
	for _, shown := range f.proxies {
		if f.clock.now.After(shown.leaf.NotAfter) {
			continue // away: it has no certificate and asks for one first
		}
		for _, by := range f.proxies {
			if f.clock.now.After(by.leaf.NotAfter) {
				continue
			}
			f.shakes++
			pair := [2]any{shown.leaf, by.roots}
			if !f.verified[pair] {
				_, err := shown.leaf.Verify(x509.VerifyOptions{
					Roots: by.roots, Intermediates: shown.chain, CurrentTime: f.clock.now,
					KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
				})
				f.verified[pair] = true
				if err != nil {
					f.failures = append(f.failures, fmt.Sprintf("%s: %s refuses %s: %v", f.clock.now, by.name, shown.name, err))
				}
			}
		}
	}
}

// act tries a random step of the rotation. Most are refused.
func (f *fleet) act() {
	status, err := f.dir.Status()
	if err != nil {
		f.t.Fatal(err)
	}
	what := "start"
	if status != nil {
		what = []string{"next", "next", "finish", "finish", "abort", "restore", "start"}[f.rand.IntN(7)]
		if what == "abort" && f.rand.IntN(2) == 0 || what == "restore" && f.rand.IntN(3) > 0 {
			what = "next"
		}
	}
	f.disk.at, f.disk.after = 0, f.rand.IntN(2) == 0
	if f.rand.IntN(5) == 0 {
		f.disk.at = f.disk.writes + 1 + f.rand.IntN(6)
	}
	before := f.disk.writes
	state, err := f.dir.do(context.Background(), what)
	if f.disk.writes > before {
		for _, p := range f.planes {
			p.reads = append(p.reads, f.clock.now.Add(f.upTo(propagation)))
		}
	}
	_, refused := errors.AsType[*Refusal](err)
	switch {
	case err == nil:
		f.steps[state.Phase]++
	case !refused && !errors.Is(err, errCrash):
		f.t.Fatalf("%s: %v", what, err)
	}
}

// run advances time until this many steps have been taken.
func (f *fleet) run(steps int) {
	acts := f.clock.now
	for taken := 0; taken < steps && len(f.failures) == 0; {
		next := acts
		for _, p := range f.planes {
			for _, at := range p.reads {
				next = earlier(next, at)
			}
		}
		for _, x := range f.proxies {
			next = earlier(next, x.renews)
		}
		f.clock.now = next
		for _, p := range f.planes {
			if slices.ContainsFunc(p.reads, func(at time.Time) bool { return !at.After(next) }) {
				f.read(p)
			}
		}
		for _, x := range f.proxies {
			if !x.renews.After(next) {
				f.renew(x)
			}
		}
		if !acts.After(next) {
			f.act()
			taken++
			acts = next.Add(f.upTo(wait / 3))
		}
		f.handshakes()
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// TestNoHandshakeEverFails: proxies renew and control planes learn of steps at random
// times, and steps are interrupted and undone. Every proxy with a certificate always
// verifies every other one.
func TestNoHandshakeEverFails(t *testing.T) {
	t.Parallel()
	reached := map[Phase]int{}
	shakes := 0
	fleets := *seeds
	switch {
	case fleets > 0:
	case testing.Short():
		fleets = 3
	default:
		fleets = 6
	}
	for seed := range fleets {
		f := newFleet(t, uint64(seed))
		f.run(80)
		for _, failure := range f.failures {
			t.Errorf("seed %d: %s", seed, failure)
		}
		for p, n := range f.steps {
			reached[p] += n
		}
		shakes += f.shakes
	}
	t.Logf("%d handshakes; steps taken: %v", shakes, reached)
	for _, p := range []Phase{Trust, Sign, Back, Finished, Aborted} {
		if reached[p] < 2 {
			t.Errorf("phase %s was reached %d times: the test shows nothing about it", p, reached[p])
		}
	}
}

// TestEachGateIsNeeded: without the gate of a step, some handshake fails, so
// TestNoHandshakeEverFails would find a missing gate.
func TestEachGateIsNeeded(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("tests a test")
	}
	for _, open := range []Phase{Sign, Finished, Aborted} {
		t.Run(string(open), func(t *testing.T) {
			for seed := range uint64(200) {
				f := newFleet(t, seed)
				gate := f.dir.Gates[0]
				f.dir.Gates = []Gate{func(ctx context.Context, r Requirement) error {
					if r.To == open {
						return nil
					}
					return gate(ctx, r)
				}}
				f.run(40)
				if len(f.failures) > 0 {
					t.Logf("seed %d: %s", seed, f.failures[0])
					return
				}
			}
			t.Error("no handshake failed")
		})
	}
}
