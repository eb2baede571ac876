package registry

import (
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// build recomputes the dirty facts. It returns the next snapshot and its differences
// from before, which is nil for the first one.
func (s *state) build(before *snapshot.Snapshot) (*snapshot.Snapshot, *snapshot.Changes) {
	next := &snapshot.Snapshot{Seq: 1}
	if before != nil {
		*next = *before
		next.Seq++
	}
	b := newBuilder(s, next)
	b.mesh()
	b.gateways()
	b.policies()
	b.endpoints()
	b.unreachableNetworks()
	b.services()
	b.pods()
	b.secrets()
	b.caConfigMaps()
	b.trustBundle()
	s.dirty = newDirty()
	return next, b.changes
}

// builder holds the data of one call of build.
type builder struct {
	*state
	next    *snapshot.Snapshot
	changes *snapshot.Changes
	local   *clusterState
	order   []*clusterState // as from ordered

	weight        map[mesh.ClusterID]uint32 // weights of endpoints that differ from defaultWeight
	defaultWeight uint32
	newOmitted    map[string]*Omitted // changes of report.omitted

	users            map[vipUse]name // services of addresses that several services have
	conflictsChanged bool
	newConflicts     int
}

func newBuilder(s *state, next *snapshot.Snapshot) *builder {
	local := s.cluster(s.cfg.Local)
	return &builder{state: s, next: next, local: local, order: s.ordered(), changes: &snapshot.Changes{
		Services: map[string]struct{}{}, Endpoints: map[string]struct{}{},
		Ports: map[uint32]struct{}{}, Pods: map[string]struct{}{}, Secrets: map[string]struct{}{}, Namespaces: map[string]struct{}{},
	}}
}

// markAll marks all services and their endpoints as dirty.
func (b *builder) markAll() {
	for _, c := range b.clusters {
		for n := range c.services {
			b.dirty.services.add(n)
			b.dirty.endpoints.add(n)
		}
	}
}

func (b *builder) pods() {
	update := make(map[string]*snapshot.Pod, len(b.dirty.pods))
	for k := range b.dirty.pods {
		update[k.String()] = nil
		if c := b.clusters[k.Cluster]; c != nil {
			update[k.String()] = c.pods[name{k.Namespace, k.Name}]
		}
		b.changes.Pods[k.String()] = struct{}{}
	}
	for k := range b.dirty.entries {
		key := snapshot.WorkloadEntryKey(k.Cluster, k.Namespace, k.Name)
		update[key] = nil
		if c := b.clusters[k.Cluster]; c != nil {
			if w := c.entries[name{k.Namespace, k.Name}]; w != nil {
				update[key] = &w.Pod
			}
		}
		b.changes.Pods[key] = struct{}{}
	}
	b.next.Pods = b.next.Pods.With(update)
}

func (b *builder) trustBundle() {
	if old := b.next.TrustBundle; b.trust == nil || old != nil && slices.Equal(old.Roots, b.trust.Roots) {
		return
	}
	b.next.TrustBundle = b.trust
	b.changes.TrustBundle = true
}

func (b *builder) secrets() {
	update := make(map[string]*snapshot.Secret, len(b.dirty.secrets))
	for k := range b.dirty.secrets {
		key := snapshot.SecretKey(k.cluster, k.name.namespace, k.name.name)
		update[key] = nil
		if c := b.clusters[k.cluster]; c != nil {
			update[key] = c.secrets[k.name]
		}
		b.changes.Secrets[key] = struct{}{}
	}
	b.next.Secrets = b.next.Secrets.With(update)
}

func (b *builder) caConfigMaps() {
	update := make(map[string]*snapshot.ConfigMap, len(b.dirty.configMaps))
	for n := range b.dirty.configMaps {
		key := snapshot.ConfigMapKey(n.namespace, n.name)
		update[key] = b.configMaps[n]
		b.changes.Secrets[key] = struct{}{}
	}
	b.next.ConfigMaps = b.next.ConfigMaps.With(update)
}
