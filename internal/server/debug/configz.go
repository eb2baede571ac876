package debug

import (
	"fmt"
	"net/http"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// maxEntries bounds the entries of one page. Beyond it, the caller must narrow the
// query.
const maxEntries = 10_000

// tooMany returns the error for a page with more entries.
func tooMany(what, instead string) error {
	return &Error{http.StatusBadRequest, fmt.Sprintf("there are more than %d %s: ask with %s", maxEntries, what, instead)}
}

// groupVersionKind names a kind, in Istio's fields.
type groupVersionKind struct {
	Group   string `json:"group"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
}

// resourcesz returns the kinds of configuration that are read.
func resourcesz() []groupVersionKind {
	var out []groupVersionKind
	for _, r := range source.Watched() {
		if r.Custom && !r.Unread {
			out = append(out, groupVersionKind{r.Group, r.Versions[0], r.KubeKind})
		}
	}
	return out
}

// object is a configuration object in the form of Kubernetes.
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

// filterSpec is the shown part of an EnvoyFilter. The patches are kept only in the
// form that Envoy gets.
type filterSpec struct {
	WorkloadSelector *labelSelector `json:"workloadSelector,omitempty"`
	Priority         int32          `json:"priority,omitempty"`
}

type labelSelector struct {
	Labels map[string]string `json:"labels"`
}

// configz returns the configuration objects that have an effect: objects of the own
// cluster, of kinds that have one.
func configz(s *snapshot.Snapshot, rules *snapshot.Table[string, snapshot.DestinationRule], namespace string) ([]object, error) {
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
		for _, kind := range snapshot.PolicyKinds {
			for _, p := range facts.Policies[kind] {
				add(kind, *p.Info(), p.Content())
			}
		}
		for _, x := range facts.EnvoyFilters {
			spec := filterSpec{Priority: x.Priority}
			if len(x.Selector) > 0 {
				spec.WorkloadSelector = &labelSelector{x.Selector}
			}
			add(snapshot.KindEnvoyFilter, x.Meta, spec)
		}
		if len(out) > maxEntries {
			return nil, tooMany("objects", "?namespace=")
		}
	}
	for _, r := range rules.All() {
		add(snapshot.KindDestinationRule, r.Meta, r.Spec)
	}
	if len(out) > maxEntries {
		return nil, tooMany("objects", "?namespace=")
	}
	return out, nil
}

// eachEmpty calls each with the Envoy clusters of services without an endpoint in any
// cluster, sorted by host, until it returns false. Headless services and external
// names have no endpoints by their kind, so they do not count.
func eachEmpty(s *snapshot.Snapshot, each func(mesh.ClusterName) bool) {
	for key, svc := range s.Services.All() {
		if svc.Headless || svc.ExternalName != "" || svc.Resolution == snapshot.ByDestination {
			continue
		}
		eps := s.Endpoints.Get(key)
		for i := range svc.Ports {
			p := &svc.Ports[i]
			if p.Protocol == mesh.UDP || eps != nil && len(eps.ByPort[p.Name]) > 0 {
				continue
			}
			if !each(mesh.ClusterName{Direction: mesh.Outbound, Port: p.Number, Host: svc.Host}) {
				return
			}
		}
	}
}

// pushStatus returns the problems of the snapshot by Istio's metric.
func pushStatus(s *snapshot.Snapshot) any {
	type event struct{} // Istio names a proxy here; no proxy is involved
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

// noInstances is Istio's metric for clusters without endpoints.
const noInstances = "pilot_eds_no_instances"
