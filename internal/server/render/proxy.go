package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/debug"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// maxMetadata bounds the metadata of a node, in bytes. It is the default of serve.
const maxMetadata = 512 << 10

// Proxy is the configuration of one proxy.
type Proxy struct {
	Name    string         // name.namespace
	Cluster mesh.ClusterID // may be empty
	sent    map[string]history.SentConfig
}

// Proxy returns the configuration of the proxy with an xDS node.
func (m *Mesh) Proxy(n Node) (*Proxy, error) {
	node, err := proxy.ParseNode(n, maxMetadata)
	if err != nil {
		return nil, err
	}
	caller := mesh.Caller{Cluster: node.Cluster, Identity: mesh.Identity{
		TrustDomain: m.snapshot.Mesh.TrustDomain, Namespace: node.Namespace, ServiceAccount: node.ServiceAccount,
	}}
	sent, err := m.offline.Sent(node, caller, func(clusters, listeners []*xdswire.Resource) map[string][]string {
		r := requests{}
		r.resources(clusters)
		r.resources(listeners)
		if node.ResolvesNames {
			r[xdswire.NameTableType] = nil
		}
		r[xdswire.BootstrapType] = nil
		out := make(map[string][]string)
		for url, names := range r {
			out[url] = slices.Sorted(maps.Keys(names))
		}
		return out
	})
	switch {
	case err != nil:
		return nil, err
	case m.faults.Load() > 0:
		return nil, fmt.Errorf("the configuration of %s cannot be generated: the log has the reason", node.ID.ProxyID())
	}
	return &Proxy{Name: node.ID.ProxyID(), Cluster: node.Cluster, sent: sent}, nil
}

// ConfigDump returns the configuration as JSON in the form of Envoy's dump, without private
// keys.
func (p *Proxy) ConfigDump() (any, error) { return debug.ConfigDump(p.sent, true) }

// Names of the types with one resource, which has no name: the table of the DNS proxy, and the
// patches of the bootstrap.
const (
	namesType     = "names"
	bootstrapType = "bootstrap"
)

// isSingle reports whether a type has one resource, which has no name.
func isSingle(typ string) bool { return typ == namesType || typ == bootstrapType }

// types are the types of resources, by their names in expectations and in order.
var types = []struct{ url, name string }{
	{xdswire.ClusterType, "cluster"},
	{xdswire.EndpointType, "endpoints"},
	{xdswire.ListenerType, "listener"},
	{xdswire.RouteType, "route"},
	{xdswire.SecretType, "secret"},
	{xdswire.ExtensionType, "extension"},
	{xdswire.NameTableType, namesType},
	{xdswire.BootstrapType, bootstrapType},
}

// Types returns the names of the types of resources.
func Types() []string {
	var out []string
	for _, t := range types {
		out = append(out, t.name)
	}
	return out
}

// Resources holds the resources of a proxy by type, each as its message in JSON. Private
// keys are replaced.
type Resources struct {
	Proxy      string         `json:"proxy"`
	Cluster    mesh.ClusterID `json:"cluster,omitzero"`
	Clusters   []Resource     `json:"clusters,omitzero"`
	Endpoints  []Resource     `json:"endpoints,omitzero"`
	Listeners  []Resource     `json:"listeners,omitzero"`
	Routes     []Resource     `json:"routes,omitzero"`
	Secrets    []Resource     `json:"secrets,omitzero"`
	Extensions []Resource     `json:"extensions,omitzero"`
	Names      []Resource     `json:"names,omitzero"`
	Bootstrap  []Resource     `json:"bootstrap,omitzero"`
}

// of returns the resources of a type.
func (r *Resources) of(name string) *[]Resource {
	return map[string]*[]Resource{
		"cluster": &r.Clusters, "endpoints": &r.Endpoints, "listener": &r.Listeners, "route": &r.Routes,
		"secret": &r.Secrets, "extension": &r.Extensions, namesType: &r.Names, bootstrapType: &r.Bootstrap,
	}[name]
}

// Of returns the resources of a type.
func (r *Resources) Of(name string) []Resource { return *r.of(name) }

// Resource is a resource of Envoy.
type Resource struct {
	Name string
	json []byte
}

// MarshalJSON returns the message of the resource.
func (r Resource) MarshalJSON() ([]byte, error) { return r.json, nil }

// Resources returns the resources, each type sorted by name.
func (p *Proxy) Resources() (*Resources, error) {
	out := &Resources{Proxy: p.Name, Cluster: p.Cluster}
	for _, t := range types {
		list := out.of(t.name)
		for _, r := range p.sent[t.url].Resources {
			shown, err := debug.Resource(r)
			if err != nil {
				return nil, err
			}
			text, err := json.Marshal(shown)
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", t.name, r.Name, err)
			}
			*list = append(*list, Resource{r.Name, text})
		}
	}
	return out, nil
}

// find returns the JSON value of a resource, or nil and a similar name. The only resource of its
// type has any name.
func (r *Resources) find(typ, name string) (value any, near string, err error) {
	var known []string
	for _, candidate := range *r.of(typ) {
		if known = append(known, candidate.Name); candidate.Name == name || isSingle(typ) {
			err := json.Unmarshal(candidate.json, &value)
			return value, "", err
		}
	}
	return nil, output.DidYouMean(name, known), nil
}
