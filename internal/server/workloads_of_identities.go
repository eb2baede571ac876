package server

import (
	"slices"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// indexInterval is the least time between two indexes of all pods.
const indexInterval = 5 * time.Second

// workloadIndex finds the workload of an identity. It indexes all pods when an agent asks and pods
// have changed since the last index.
type workloadIndex struct {
	mu    sync.Mutex // guards what follows
	pods  *snapshot.Table[string, snapshot.Pod]
	built time.Time
	of    map[account]mesh.WorkloadLabels
}

type account struct{ namespace, name string }

// workloadOf returns the workload of an identity, for metrics. It reports false if there is no pod of
// the identity, or if several workloads have it.
func (s *Server) workloadOf(text string) (mesh.WorkloadLabels, bool) {
	id, err := mesh.ParseIdentity(text)
	now := s.registry.Current()
	if err != nil || now == nil || id.TrustDomain != now.Mesh.TrustDomain && !slices.Contains(now.Mesh.Aliases, id.TrustDomain) {
		return mesh.WorkloadLabels{}, false
	}
	i := &s.workloads
	i.mu.Lock()
	defer i.mu.Unlock()
	if at := s.cfg.Now(); i.of == nil || i.pods != now.Pods && at.Sub(i.built) >= indexInterval {
		i.pods, i.built, i.of = now.Pods, at, indexWorkloads(now.Pods)
	}
	w := i.of[account{id.Namespace, id.ServiceAccount}]
	return w, w.Name != ""
}

func indexWorkloads(pods *snapshot.Table[string, snapshot.Pod]) map[account]mesh.WorkloadLabels {
	out := make(map[account]mesh.WorkloadLabels)
	for _, pod := range pods.All() {
		key := account{pod.Namespace, pod.ServiceAccount}
		w := mesh.WorkloadLabelsOf(pod.Workload, pod.Labels, pod.Cluster)
		if have, ok := out[key]; ok {
			w = have.Common(w)
		}
		out[key] = w
	}
	return out
}
