// Package dns resolves the host names of gateways again and again, as the addresses
// behind such names change.
package dns

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Config configures a Resolver. All fields but Every are required.
type Config struct {
	// Lookup returns the addresses of an absolute host name, as
	// net.Resolver.LookupNetIP does.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// Publish gets the sorted addresses by host after the first lookup of all
	// wanted hosts, and after each change. A host that was never resolved has no
	// addresses. Publish must neither block nor change the map.
	Publish func(map[string][]netip.Addr)
	Log     *slog.Logger
	// Every is the longest interval between two lookups of a host; the shortest is
	// half of it. Hosts that were never resolved are looked up more often. The
	// default is 30 s.
	Every time.Duration
	// Jitter returns a random duration between 0 and its argument.
	Jitter func(time.Duration) time.Duration
	Now    func() time.Time
}

// Limits of lookups.
const (
	maxAddresses = 16 // of one host
	atOnce       = 8
	timeout      = 5 * time.Second
	defaultEvery = 30 * time.Second
	// eager is the factor by which hosts without addresses are looked up more often.
	eager = 6
)

// Resolver resolves hosts periodically. If a lookup fails, the last addresses stay.
type Resolver struct {
	cfg  Config
	wake chan struct{}

	mu   sync.Mutex
	want []string
	due  map[string]time.Time // of the next lookups; never changed after it is set
}

// New returns a Resolver. Run makes it work.
func New(cfg Config) *Resolver {
	cfg.Every = cmp.Or(cfg.Every, defaultEvery)
	return &Resolver{cfg: cfg, wake: make(chan struct{}, 1)}
}

// Want sets the hosts to resolve. It never blocks.
func (r *Resolver) Want(hosts []string) {
	r.mu.Lock()
	r.want = slices.Clone(hosts)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Due returns when each host is looked up again. The caller must not change the result.
func (r *Resolver) Due() map[string]time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.due
}

// hostAddresses is the result of the last lookup of a host.
type hostAddresses struct {
	addresses []netip.Addr
	failing   bool
	due       time.Time
}

// Run resolves until ctx ends; then it returns nil.
func (r *Resolver) Run(ctx context.Context) error {
	known := make(map[string]hostAddresses)
	select {
	case <-ctx.Done():
		return nil
	case <-r.wake: // the first Want
	}
	for first := true; ; first = false {
		changed := r.round(ctx, known)
		if ctx.Err() != nil {
			return nil
		}
		if changed || first {
			r.cfg.Publish(addresses(known))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-time.After(r.pause(known)):
		}
	}
}

// pause returns the time until the next lookup.
func (r *Resolver) pause(known map[string]hostAddresses) time.Duration {
	pause := r.cfg.Every
	for _, a := range known {
		pause = min(pause, a.due.Sub(r.cfg.Now()))
	}
	return max(pause, 0)
}

func addresses(known map[string]hostAddresses) map[string][]netip.Addr {
	out := make(map[string][]netip.Addr, len(known))
	for host, a := range known {
		out[host] = a.addresses
	}
	return out
}

// round looks up the hosts that are due and forgets unwanted hosts. It reports whether
// addresses changed or hosts were looked up for the first time.
func (r *Resolver) round(ctx context.Context, known map[string]hostAddresses) (changed bool) {
	r.mu.Lock()
	want := r.want
	r.mu.Unlock()
	maps.DeleteFunc(known, func(host string, a hostAddresses) bool {
		gone := !slices.Contains(want, host)
		changed = changed || gone && len(a.addresses) > 0
		return gone
	})
	now := r.cfg.Now()
	var due []string
	for _, host := range want {
		if a, ok := known[host]; !ok || !now.Before(a.due) {
			due = append(due, host)
		}
	}
	results := make([]hostAddresses, len(due))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, host := range due {
		before := known[host] // read here: the map is not shared
		g.Go(func() error {
			results[i] = r.lookUp(ctx, host, before)
			return nil
		})
	}
	_ = g.Wait() // lookUp returns no error
	for i, host := range due {
		before, asked := known[host]
		changed = changed || !asked || !slices.Equal(before.addresses, results[i].addresses)
		known[host] = results[i]
	}
	next := make(map[string]time.Time, len(known))
	for host, a := range known {
		next[host] = a.due
	}
	r.mu.Lock()
	r.due = next
	r.mu.Unlock()
	return changed
}

// lookUp resolves a host. If that fails, the addresses before stay.
func (r *Resolver) lookUp(ctx context.Context, host string, before hostAddresses) hostAddresses {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	found, err := r.cfg.Lookup(limited, absolute(host))
	for i, a := range found {
		found[i] = a.Unmap()
	}
	slices.SortFunc(found, netip.Addr.Compare)
	found = slices.Compact(found)
	found = found[:min(len(found), maxAddresses)]
	if err == nil && len(found) == 0 {
		err = errors.New("it has no address")
	}
	after := hostAddresses{found, err != nil, r.cfg.Now().Add(r.cfg.Every/2 + r.cfg.Jitter(r.cfg.Every/2))}
	switch {
	case ctx.Err() != nil:
		return before
	case err != nil:
		after.addresses = before.addresses
		if len(after.addresses) == 0 {
			after.due = r.cfg.Now().Add(r.cfg.Every / eager)
		}
		if !before.failing {
			if e, ok := errors.AsType[*net.DNSError](err); ok {
				err = errors.New(e.Err) // without the name, which the log has
			}
			if len(after.addresses) > 0 {
				r.cfg.Log.Warn("host name of a gateway cannot be resolved, its last addresses stay", "host", host, "addresses", after.addresses, "error", err)
			} else {
				// A warning follows where its network has no other gateway.
				r.cfg.Log.Info("host name of a gateway cannot be resolved, the gateway is not used", "host", host, "error", err)
			}
		}
	case before.failing || !slices.Equal(before.addresses, found):
		r.cfg.Log.Info("host name of a gateway is resolved", "host", host, "addresses", found)
	}
	return after
}

// absolute makes a name with a dot absolute. Otherwise the resolver would first try
// the search domains of this machine, which may have other owners.
func absolute(host string) string {
	if strings.Contains(strings.TrimSuffix(host, "."), ".") && !strings.HasSuffix(host, ".") {
		return host + "."
	}
	return host
}
