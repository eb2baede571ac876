package registry

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Contents holds a snapshot with the objects and the problems behind it.
type Contents struct {
	Snapshot *snapshot.Snapshot
	// Settings holds MeshConfig and MeshNetworks of the local cluster, or nil.
	Settings *snapshot.MeshSettings
	// Objects holds the objects of the mesh by kind, sorted by cluster, namespace and
	// name. EndpointSlices and nodes are left out.
	Objects  map[snapshot.Kind][]snapshot.Object
	Problems []facts.Problem
}

// Contents returns the contents of the newest snapshot. It waits for the first one.
func (r *Registry) Contents(ctx context.Context) (*Contents, error) {
	select {
	case <-r.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	answer := make(chan *Contents, 1)
	select {
	case r.asks <- answer:
		return <-answer, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// ContentsOf returns the contents of a registry that has read these objects, and nothing else,
// from all its clusters. addresses returns the addresses of host names of gateways; nil means that
// host names are not used.
func ContentsOf(ctx context.Context, cfg Config, events []snapshot.Event, addresses func(hosts []string) map[string][]netip.Addr) (*Contents, error) {
	cfg.Publish = func(*snapshot.Snapshot, *snapshot.Changes) {}
	cfg.Log = slog.New(slog.DiscardHandler)
	var r *Registry
	if addresses != nil {
		cfg.Resolve = func(hosts []string) { r.SetAddresses(addresses(hosts)) }
	}
	r = New(cfg)
	r.Apply(events)
	for _, c := range cfg.Clusters {
		r.Synced(c)
	}
	ctx, stop := context.WithCancel(ctx)
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return r.Run(ctx) })
	out, err := r.Contents(ctx)
	stop()
	return out, errors.Join(err, running.Wait())
}

// contents returns the contents of a snapshot, on the goroutine of Run.
func (s *state) contents(of *snapshot.Snapshot) *Contents {
	c := &Contents{
		Snapshot: of, Settings: s.MeshSettings.Get(nil), Objects: make(map[snapshot.Kind][]snapshot.Object), Problems: s.problems(),
	}
	for kind, input := range s.Inputs {
		if kind == snapshot.KindEndpointSlice || kind == snapshot.KindNode {
			continue
		}
		var list []snapshot.Object
		for e := range input.Events {
			list = append(list, e.Object)
		}
		slices.SortFunc(list, func(a, b snapshot.Object) int { return compareKeys(a.Key(), b.Key()) })
		c.Objects[kind] = list
	}
	return c
}
