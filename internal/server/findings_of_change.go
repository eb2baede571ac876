package server

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

const (
	// maxCheckedMesh is the size, as sizeOf counts, of the largest mesh that is computed again with
	// an object that the webhook validates.
	maxCheckedMesh = 20_000
	// maxCheckTime bounds this computation. There is one at a time.
	maxCheckTime = 2 * time.Second
)

// findingsOfChange returns what the checks of analyze would find about an object if it replaced
// the one of its name, without remarks. In a large mesh, and if that takes long, it returns nothing:
// runAnalysis makes the checks later. It ends soon after ctx.
func (s *Server) findingsOfChange(ctx context.Context, object snapshot.Object) []string {
	ctx, cancel := context.WithTimeout(ctx, maxCheckTime)
	defer cancel()
	select {
	case s.checking <- struct{}{}:
		defer func() { <-s.checking }()
	case <-ctx.Done():
		return nil
	}
	if now := s.registry.Current(); now == nil || now.Services.Len()+now.Pods.Len() > maxCheckedMesh {
		return nil // without the work of Contents
	}
	now, err := s.registry.Contents(ctx)
	if err != nil || sizeOf(now.Objects, object) > maxCheckedMesh {
		return nil
	}
	next, err := s.withObject(ctx, now.Objects, object)
	if err != nil {
		return nil
	}
	options := analyze.Options{Now: s.cfg.Now(), SecretsRead: s.secretsRead, Ended: func() bool { return ctx.Err() != nil }}
	var out []string
	for _, f := range analyze.Check(next, options) {
		if f.Object == object.Key() && f.Severity().AtLeast(codes.Warning) {
			r := analyze.Reports([]analyze.Finding{f})[0]
			out = append(out, string(f.Code)+": "+r.Text())
		}
	}
	if ctx.Err() != nil {
		return nil // not all of the findings
	}
	return out
}

// sizeOf counts what is computed of the objects of a mesh and another one: an object, and what each
// host of the object gets.
func sizeOf(objects map[snapshot.Kind][]snapshot.Object, more snapshot.Object) int {
	workloads := map[string]int{} // by namespace
	for _, kind := range []snapshot.Kind{snapshot.KindPod, snapshot.KindWorkloadEntry} {
		for _, o := range objects[kind] {
			workloads[o.Key().Namespace]++
		}
	}
	n := factsOf(more, workloads)
	for _, list := range objects {
		for _, o := range list {
			n += factsOf(o, workloads)
		}
	}
	return n
}

// factsOf counts what is computed of an object. workloads holds the number of workloads of each
// namespace.
func factsOf(object snapshot.Object, workloads map[string]int) int {
	switch o := object.(type) {
	case *snapshot.ServiceEntry:
		endpoints := len(o.Endpoints)
		if len(o.Selector) > 0 {
			endpoints = workloads[o.Namespace]
		}
		return len(o.Hosts) * (len(o.Ports)*(1+endpoints) + len(o.VIPs) + len(o.ExportTo))
	case *snapshot.VirtualService:
		return 1 + len(o.Hosts)*(len(o.HTTP)+len(o.TLS)+len(o.TCP))
	case *snapshot.Service:
		return 1 + len(o.Ports)
	case *snapshot.DestinationRule:
		return 1 + len(o.Spec.GetSubsets())
	case *snapshot.Gateway:
		n := 1
		for _, server := range o.Spec.GetServers() {
			n += len(server.GetHosts())
		}
		return n
	}
	return 1
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
	return registry.ContentsOf(ctx, registry.Config{
		Local: s.cfg.ClusterID, Clusters: slices.Sorted(maps.Keys(clusters)),
		Network:     map[mesh.ClusterID]mesh.NetworkID{s.cfg.ClusterID: s.cfg.Network},
		TrustDomain: s.cfg.TrustDomain, SystemNamespace: s.cfg.systemNamespace(), Now: s.cfg.Now,
	}, events, nil)
}
