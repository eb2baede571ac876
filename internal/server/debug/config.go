package debug

import (
	"fmt"
	"net/http"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// maxEntries bounds what one page lists. Who gets an error for it asks for less.
const maxEntries = 10_000

// tooMany is the answer when a page would list more.
func tooMany(what, instead string) error {
	return &Error{http.StatusBadRequest, fmt.Sprintf("there are more than %d %s: ask with %s", maxEntries, what, instead)}
}

// groupVersionKind names a kind, in Istio's fields.
type groupVersionKind struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

// resourcesz are the kinds of configuration that are followed.
func resourcesz() []groupVersionKind {
	var out []groupVersionKind
	for _, r := range source.Watched() {
		if r.Custom && !r.Unread {
			out = append(out, groupVersionKind{r.Group, r.Versions[0], r.KubeKind})
		}
	}
	return out
}

// object is a configuration object as Kubernetes has it.
type object struct {
	Kind       string     `json:"kind"`
	APIVersion string     `json:"apiVersion"`
	Metadata   objectMeta `json:"metadata"`
	Spec       any        `json:"spec"`
}

type objectMeta struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Created   time.Time         `json:"creationTimestamp,omitzero"`
}

// filterSpec is what is shown of an EnvoyFilter: whom it is for. The patches are
// kept as Envoy is given them only.
type filterSpec struct {
	WorkloadSelector *labelSelector `json:"workloadSelector,omitempty"`
	Priority         int32          `json:"priority,omitempty"`
}

type labelSelector struct {
	Labels map[string]string `json:"labels"`
}

// configz are the configuration objects that count: those of the own cluster, of
// kinds that have an effect.
func configz(s *snapshot.Snapshot, namespace string) ([]object, error) {
	versions := make(map[string]string)
	for _, r := range source.Watched() {
		if r.Custom && r.Use == source.ForConfiguration {
			versions[r.KubeKind] = r.Group + "/" + r.Versions[0]
		}
	}
	out := []object{}
	add := func(kind snapshot.Kind, m snapshot.Meta, spec any) {
		if namespace == "" || m.Namespace == namespace {
			out = append(out, object{string(kind), versions[string(kind)], objectMeta{m.Name, m.Namespace, m.Labels, m.Created}, spec})
		}
	}
	for _, g := range s.GatewayConfigs {
		add(snapshot.KindGateway, g.Meta, g.Spec)
	}
	for _, facts := range s.Namespaces.All() {
		for _, x := range facts.Sidecars {
			add(snapshot.KindSidecar, x.Meta, x.Spec)
		}
		for _, x := range facts.EnvoyFilters {
			spec := filterSpec{Priority: x.Priority}
			if len(x.Selector) > 0 {
				spec.WorkloadSelector = &labelSelector{x.Selector}
			}
			add(snapshot.KindEnvoyFilter, x.Meta, spec)
		}
		for _, x := range facts.PeerAuth {
			add(snapshot.KindPeerAuthentication, x.Meta, x.Spec)
		}
		if len(out) > maxEntries {
			return nil, tooMany("objects", "?namespace=")
		}
	}
	return out, nil
}

// eachEmpty calls each with the clusters of services that have no endpoint
// anywhere, in the order of their hosts, until it returns false. Those of headless
// services and of names elsewhere have none by their kind.
func eachEmpty(s *snapshot.Snapshot, each func(mesh.ClusterName) bool) {
	for host, svc := range s.Services.All() {
		if svc.Headless || svc.ExternalName != "" {
			continue
		}
		eps := s.Endpoints.Get(host)
		for i := range svc.Ports {
			p := &svc.Ports[i]
			if p.Protocol == mesh.UDP || eps != nil && len(eps.ByPort[p.Name]) > 0 {
				continue
			}
			if !each(mesh.ClusterName{Direction: mesh.Outbound, Port: p.Number, Host: host}) {
				return
			}
		}
	}
}

// pushStatus is what is not well with the snapshot, by Istio's metric and what it
// is about.
func pushStatus(s *snapshot.Snapshot) any {
	type event struct{} // Istio tells here of one proxy, which this is not about
	empty := make(map[string]event)
	eachEmpty(s, func(cluster mesh.ClusterName) bool {
		empty[cluster.String()] = event{}
		return len(empty) < maxEntries
	})
	out := make(map[string]map[string]event)
	if len(empty) > 0 {
		out[noInstances] = empty
	}
	return out
}

// noInstances is Istio's name for clusters without endpoints.
const noInstances = "pilot_eds_no_instances"
