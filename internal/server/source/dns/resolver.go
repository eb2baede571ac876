// Package dns keeps the addresses of host names known: those of gateways whose
// load balancers have no address that stays.
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

// Config of a Resolver. All fields but Every are needed.
type Config struct {
	// Lookup returns the addresses of an absolute host name, as
	// net.Resolver.LookupNetIP does.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// Publish is given the addresses by host, sorted, once all that was wanted at
	// first was asked for, and whenever they change. A host that was asked for and
	// never had an answer has none. It must neither block nor change them.
	Publish func(map[string][]netip.Addr)
	Log     *slog.Logger
	// Every is how often names are asked for again, a little earlier or later.
	// Names that never had an answer are asked for more often. Default 30 s.
	Every time.Duration
	// Jitter is a random part of a duration, at most all of it.
	Jitter func(time.Duration) time.Duration
	Now    func() time.Time
}

// Limits of what is asked for.
const (
	maxAddresses = 16 // of one name
	atOnce       = 8
	timeout      = 5 * time.Second
	defaultEvery = 30 * time.Second
	// eager is how many times as often names without an answer are asked for.
	eager = 6
)

// Resolver resolves names again and again. When a name cannot be resolved, its
// last addresses stay.
type Resolver struct {
	cfg  Config
	wake chan struct{}

	mu   sync.Mutex
	want []string
}

// New makes a Resolver; Run makes it work.
func New(cfg Config) *Resolver {
	cfg.Every = cmp.Or(cfg.Every, defaultEvery)
	return &Resolver{cfg: cfg, wake: make(chan struct{}, 1)}
}

// Want says of which host names the addresses are to be known. It never blocks.
func (r *Resolver) Want(hosts []string) {
	r.mu.Lock()
	r.want = slices.Clone(hosts)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// answer is what is known of a name.
type hostAddresses struct {
	addresses []netip.Addr
	failing   bool
	due       time.Time
}

// Run resolves until ctx ends. It returns nil then.
func (r *Resolver) Run(ctx context.Context) error {
	known := make(map[string]hostAddresses)
	select {
	case <-ctx.Done():
		return nil
	case <-r.wake: // there is nothing to ask for before
	}
	for first := true; ; first = false {
		changed := r.round(ctx, known)
		if ctx.Err() != nil {
			return nil
		}
		if changed || first {
			r.cfg.Publish(addresses(known))
		}
		next := time.NewTimer(r.pause(known))
		select {
		case <-ctx.Done():
			next.Stop()
			return nil
		case <-r.wake:
			next.Stop()
		case <-next.C:
		}
	}
}

// pause is how long nothing has to be asked for.
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

// round asks for the names that are due and forgets those that are not wanted. It
// reports whether addresses changed, or names were asked for the first time.
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
	_ = g.Wait() // which has no error
	for i, host := range due {
		before, asked := known[host]
		changed = changed || !asked || !slices.Equal(before.addresses, results[i].addresses)
		known[host] = results[i]
	}
	return changed
}

// ask resolves a name. Without an answer, what was known before stays.
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

// absolute has names with a dot in them not looked for in the search domains of
// this machine first, where others could have them.
func absolute(host string) string {
	if strings.Contains(strings.TrimSuffix(host, "."), ".") && !strings.HasSuffix(host, ".") {
		return host + "."
	}
	return host
}
