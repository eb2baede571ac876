package snapshot

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
)

// EnvoyFilter holds the supported patches of an EnvoyFilter object. Their values are
// validated.
type EnvoyFilter struct {
	Meta
	// Selector selects proxies of the namespace by their labels. If it is empty, it
	// selects all of them.
	Selector map[string]string
	// Gateways holds the names of the Gateways of the Kubernetes Gateway API whose proxies
	// the object selects. If it is set, Selector is not used. Nil means not set.
	Gateways []string
	// Priority orders the objects, the lowest first.
	Priority   int32
	Extensions []Extension
	Patches    []*Patch
}

// Key implements Object.
func (o *EnvoyFilter) Key() Key { return o.key(KindEnvoyFilter) }

// Selects reports whether the object selects a proxy with these labels, if it counts in the
// namespace of the proxy.
func (o *EnvoyFilter) Selects(labels map[string]string) bool {
	if o.Gateways != nil {
		name := labels[mesh.LabelGatewayName]
		return name != "" && slices.Contains(o.Gateways, name)
	}
	return Selects(o.Selector, labels)
}

// Extension is the configuration of a filter. Proxies request it by name (ECDS).
type Extension struct {
	Name string
	// Body is an encoded envoy.config.core.v3.TypedExtensionConfig.
	Body  string
	Proxy ProxyMatch `json:",omitzero"`
}

// Patch is a patch of an EnvoyFilter for listeners, routes or clusters. It is immutable.
type Patch struct {
	// Of is the EnvoyFilter, and Index the place of the patch in its list.
	Of    Key
	Index int
	// Spec has no value. Value holds that as a message of Envoy's API; nil for REMOVE.
	Spec  *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch
	Value proto.Message
	Proxy ProxyMatch
}

// SameAs reports whether both patches do the same.
func (p *Patch) SameAs(other *Patch) bool {
	return p.Of == other.Of && p.Index == other.Index && proto.Equal(p.Spec, other.Spec) && proto.Equal(p.Value, other.Value)
}

// AppliesIn reports whether the patch is for proxies in a context.
func (p *Patch) AppliesIn(context networkingv1alpha3.EnvoyFilter_PatchContext) bool {
	c := p.Spec.GetMatch().GetContext()
	return c == context || c == networkingv1alpha3.EnvoyFilter_ANY
}

// ProxyMatch selects proxies by what they report of themselves. The zero value selects all.
type ProxyMatch struct {
	// Version is a regular expression that matches a part of ISTIO_VERSION, or of mesh.IstioVersion for
	// an agent of meshctl. Empty means any.
	Version  string            `json:",omitempty"`
	Metadata map[string]string `json:",omitempty"`
	version  *regexp.Regexp    // of Version
}

// NewProxyMatch compiles a match. The error is about the version.
func NewProxyMatch(version string, metadata map[string]string) (ProxyMatch, error) {
	m := ProxyMatch{Version: version, Metadata: metadata}
	if version == "" {
		return m, nil
	}
	var err error
	m.version, err = regexp.Compile(version)
	return m, err
}

// Equal reports whether both select the same proxies.
func (m ProxyMatch) Equal(other ProxyMatch) bool {
	return m.Version == other.Version && maps.Equal(m.Metadata, other.Metadata)
}

// Matches reports whether a proxy with this version and metadata is selected.
func (m ProxyMatch) Matches(version string, metadata map[string]string) bool {
	if m.version != nil && !m.matchesVersion(version) {
		return false
	}
	for k, v := range m.Metadata {
		if is, ok := metadata[k]; !ok || is != v {
			return false
		}
	}
	return true
}

// matchesVersion reports whether the pattern matches ISTIO_VERSION. An agent of meshctl also has the
// version of Istio with which it is compatible: filters are written for versions of Istio.
func (m ProxyMatch) matchesVersion(version string) bool {
	return version != "" && (m.version.MatchString(version) || mesh.IsAgentVersion(version) && m.version.MatchString(mesh.IstioVersion))
}

// OnlyOtherVersions reports whether the pattern matches no version that an agent of meshctl may have.
func (m ProxyMatch) OnlyOtherVersions() bool {
	return m.version != nil && !strings.Contains(m.Version, "meshctl") && !m.matchesVersion(mesh.AgentVersion(""))
}

// EnvoyFiltersFor returns the EnvoyFilters that select a workload with these labels, in the
// order in which they apply: by priority, and of one priority first those of the root
// namespace, then its own. Either namespace may be nil.
func EnvoyFiltersFor(root, ns *NamespaceFacts, labels map[string]string) []*EnvoyFilter {
	var out []*EnvoyFilter
	add := func(facts *NamespaceFacts) {
		for _, f := range facts.EnvoyFilters {
			if f.Selects(labels) {
				out = append(out, f)
			}
		}
	}
	if root != nil {
		add(root)
	}
	if ns != nil && ns != root {
		add(ns)
	}
	slices.SortStableFunc(out, func(a, b *EnvoyFilter) int { return cmp.Compare(a.Priority, b.Priority) })
	return out
}
