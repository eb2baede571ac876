package clusters

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// CountEvents returns a function that counts the events of Kubernetes APIs in
// Istio's metrics.
func CountEvents(reg prometheus.Registerer) func(*source.Resource, source.Change) {
	vec := func(name, help string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"type", "event"})
		reg.MustRegister(v)
		return v
	}
	registry := vec("pilot_k8s_reg_events", "Objects of services and endpoints that were added, updated or deleted in the Kubernetes APIs that are read.")
	config := vec("pilot_k8s_cfg_events", "Objects of configuration that were added, updated or deleted in the Kubernetes APIs that are read.")
	counters := make(map[snapshot.Kind]map[source.Change]prometheus.Counter)
	for _, r := range source.Watched() {
		v, name := config, r.KubeKind
		if known, ok := registryTypes(r.Kind); ok {
			v, name = registry, known
		} else if !r.Custom {
			continue // Istio counts no ConfigMaps and Secrets
		}
		counters[r.Kind] = make(map[source.Change]prometheus.Counter)
		for _, c := range []source.Change{source.Added, source.Updated, source.Deleted} {
			counters[r.Kind][c] = v.WithLabelValues(name, string(c))
		}
	}
	return func(r *source.Resource, c source.Change) {
		if n := counters[r.Kind][c]; n != nil {
			n.Inc()
		}
	}
}

// registryTypes returns Istio's name of a kind that its registry reads.
func registryTypes(k snapshot.Kind) (name string, ok bool) {
	name, ok = map[snapshot.Kind]string{
		snapshot.KindService: "Services", snapshot.KindEndpointSlice: "EndpointSlice", snapshot.KindPod: "Pods",
		snapshot.KindNode: "Nodes", snapshot.KindNamespace: "Namespaces",
	}[k]
	return name, ok
}

// countedRegistry counts the events that sources pass on in Istio's metrics.
type countedRegistry struct {
	Registry
	service, deleted, endpoints, config prometheus.Counter
}

// CountUpdates returns a registry that counts events and passes them to the other.
func CountUpdates(to Registry, reg prometheus.Registerer) Registry {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pilot_inbound_updates", Help: "Updates of objects received: svc and svcdelete are of services, eds of EndpointSlices, config of configuration.",
	}, []string{"type"})
	reg.MustRegister(v)
	return &countedRegistry{to, v.WithLabelValues("svc"), v.WithLabelValues("svcdelete"), v.WithLabelValues("eds"), v.WithLabelValues("config")}
}

// Apply implements snapshot.Sink.
func (r *countedRegistry) Apply(events []snapshot.Event) {
	r.count(events)
	r.Registry.Apply(events)
}

// Replace implements Registry.
func (r *countedRegistry) Replace(c mesh.ClusterID, events []snapshot.Event) {
	r.count(events)
	r.Registry.Replace(c, events)
}

func (r *countedRegistry) count(events []snapshot.Event) {
	for _, e := range events {
		switch e.Key.Kind {
		case snapshot.KindService:
			if e.Object == nil {
				r.deleted.Inc()
			} else {
				r.service.Inc()
			}
		case snapshot.KindEndpointSlice:
			r.endpoints.Inc()
		case snapshot.KindPod, snapshot.KindNode: // Istio counts none
		default:
			r.config.Inc()
		}
	}
}
