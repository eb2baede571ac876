package server

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

const (
	// maxCheckedMesh is the number of objects of the largest mesh that is computed again with an
	// object that the webhook validates.
	maxCheckedMesh = 5_000
	// maxCheckTime bounds this computation. There is one at a time.
	maxCheckTime = 2 * time.Second
)

// findingsOfChange returns what the checks of analyze would find about an object if it replaced
// the one of its name, without remarks. In a large mesh, and if that takes long, it returns nothing:
// runAnalysis makes the checks later.
func (s *Server) findingsOfChange(ctx context.Context, object snapshot.Object) []string {
	ctx, cancel := context.WithTimeout(ctx, maxCheckTime)
	defer cancel()
	select {
	case s.checking <- struct{}{}:
		defer func() { <-s.checking }()
	case <-ctx.Done():
		return nil
	}
	now, err := s.registry.Contents(ctx)
	if err != nil || sizeOf(now.Objects) > maxCheckedMesh {
		return nil
	}
	next, err := s.withObject(ctx, now.Objects, object)
	if err != nil {
		return nil
	}
	var out []string
	for _, f := range analyze.Check(next, analyze.Options{Now: s.cfg.Now(), SecretsRead: s.secretsRead}) {
		if f.Object == object.Key() && analyze.KindOf(f.Code).Level.AtLeast(analyze.Warning) {
			r := analyze.Reports([]analyze.Finding{f})[0]
			out = append(out, string(f.Code)+": "+r.Text())
		}
	}
	return out
}

func sizeOf(objects map[snapshot.Kind][]snapshot.Object) int {
	n := 0
	for _, list := range objects {
		n += len(list)
	}
	return n
}

// withObject returns the contents of a registry with the objects, of which one replaces the one of
// its name.
func (s *Server) withObject(ctx context.Context, objects map[snapshot.Kind][]snapshot.Object, object snapshot.Object) (*registry.Contents, error) {
	clusters := map[mesh.ClusterID]bool{s.cfg.ClusterID: true}
	var events []snapshot.Event
	for _, list := range objects {
		for _, o := range list {
			clusters[o.Key().Cluster] = true
			events = append(events, snapshot.Event{Key: o.Key(), Object: o})
		}
	}
	events = append(events, snapshot.Event{Key: object.Key(), Object: object})
	trial := registry.New(registry.Config{
		Local: s.cfg.ClusterID, Clusters: slices.Sorted(maps.Keys(clusters)),
		Network:     map[mesh.ClusterID]mesh.NetworkID{s.cfg.ClusterID: s.cfg.Network},
		TrustDomain: s.cfg.TrustDomain, SystemNamespace: s.cfg.systemNamespace(),
		Publish: func(*snapshot.Snapshot, *snapshot.Changes) {}, Log: slog.New(slog.DiscardHandler), Now: s.cfg.Now,
	})
	trial.Apply(events)
	for c := range clusters {
		trial.Synced(c)
	}
	ctx, stop := context.WithCancel(ctx)
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return trial.Run(ctx) })
	next, err := trial.Contents(ctx)
	stop()
	return next, errors.Join(err, running.Wait())
}
