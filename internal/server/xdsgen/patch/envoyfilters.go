// Package patch applies EnvoyFilters to the resources of proxies.
package patch

import (
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/extensionconfig"
	"github.com/meshctl/meshctl/internal/server/xdsgen/plugins"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/rbac"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// chosenFilters holds the result of the EnvoyFilters for one workload. Its parts are empty
// if none selects the workload, so that such workloads share their views.
type chosenFilters struct {
	// inbound and outbound hold patches in the order in which they apply; for a gateway,
	// inbound is empty. added holds the patches that add clusters and listeners.
	inbound, outbound, added []*snapshot.Patch
	Extensions, Bootstrap    units.Views
}

// ChooseFilters applies the EnvoyFilters that select a workload, in order. If two have an
// extension of one name, the first wins. They cannot replace the extensions of WasmPlugins,
// RequestAuthentications and AuthorizationPolicies.
func ChooseFilters(s *snapshot.Snapshot, n proxy.Node, labels map[string]string, authorizations []rbac.Authorization) chosenFilters {
	outbound := networkingv1alpha3.EnvoyFilter_SIDECAR_OUTBOUND
	if n.ID.Type == mesh.Router {
		outbound = networkingv1alpha3.EnvoyFilter_GATEWAY
	}
	inbound := func(p *snapshot.Patch) bool {
		return n.ID.Type != mesh.Router && p.AppliesIn(networkingv1alpha3.EnvoyFilter_SIDECAR_INBOUND)
	}
	var out chosenFilters
	var bootstrap []*snapshot.Patch
	extensions, pulled := plugins.PluginExtensions(s, n, labels)
	if rules := rbac.TokenRules(s, n.Namespace, labels); rbac.ChecksTokens(rules, authorizations) {
		extensions = append(extensions, rbac.TokenExtension(rules, n.ID.Type == mesh.Router))
	}
	for _, f := range snapshot.EnvoyFiltersFor(s.Namespaces.Get(s.Mesh.RootNamespace), s.Namespaces.Get(n.Namespace), labels) {
		for _, e := range f.Extensions {
			taken := func(other units.Extension) bool { return other.Name == e.Name }
			isPulled := func(p *snapshot.WasmPlugin) bool { return plugins.PluginName(p) == e.Name }
			if e.Proxy.Matches(n.Version, n.Metadata) && !slices.ContainsFunc(extensions, taken) && !slices.ContainsFunc(pulled, isPulled) && !rbac.IsAuthorization(authorizations, e.Name) {
				extensions = append(extensions, units.Extension{Name: e.Name, Body: e.Body, Of: f.Key()})
			}
		}
		for _, p := range f.Patches {
			switch {
			case !p.Proxy.Matches(n.Version, n.Metadata):
			case p.Spec.GetApplyTo() == networkingv1alpha3.EnvoyFilter_BOOTSTRAP:
				if p.AppliesIn(outbound) || inbound(p) {
					bootstrap = append(bootstrap, p)
				}
			case isAdded(p) && (p.AppliesIn(outbound) || inbound(p)):
				out.added = append(out.added, p)
			case !isAdded(p):
				if p.AppliesIn(outbound) {
					out.outbound = append(out.outbound, p)
				}
				if inbound(p) {
					out.inbound = append(out.inbound, p)
				}
			}
		}
	}
	out.Bootstrap = bootstrapViews(bootstrap)
	view := extensionconfig.View{Authorizations: wire.ListOf(authorizations)}
	slices.SortFunc(extensions, func(a, b units.Extension) int { return strings.Compare(a.Name, b.Name) })
	view.Extensions = wire.ListOf(extensions)
	if view != (extensionconfig.View{}) {
		out.Extensions.Shared = view
	}
	if len(pulled) > 0 {
		out.Extensions.Own = plugins.PulledPlugins{Plugins: wire.ListOf(pulled)}
	}
	return out
}

// isAdded reports whether a patch adds a cluster or a listener.
func isAdded(p *snapshot.Patch) bool {
	at := p.Spec.GetApplyTo()
	return p.Spec.GetPatch().GetOperation() == networkingv1alpha3.EnvoyFilter_Patch_ADD &&
		(at == networkingv1alpha3.EnvoyFilter_CLUSTER || at == networkingv1alpha3.EnvoyFilter_LISTENER)
}

// LeaveOut removes added listeners with the names of the workload's own. Listeners
// of its own are in another view, and nothing else resolves conflicts between views.
func (f *chosenFilters) LeaveOut(own []string) {
	f.added = slices.DeleteFunc(f.added, func(p *snapshot.Patch) bool {
		l, ok := p.Value.(*listenerv3.Listener)
		return ok && slices.Contains(own, l.GetName())
	})
}

// Apply returns the assignment with the patches.
func (f *chosenFilters) Apply(a units.Assignment) units.Assignment {
	if len(f.inbound)+len(f.outbound)+len(f.added) == 0 {
		return a
	}
	for _, typ := range []string{xdswire.ClusterType, xdswire.ListenerType, xdswire.RouteType} {
		v := a[typ]
		v.Shared, v.Private, v.Own = patched(v.Shared, f.outbound, f.added), patched(v.Private, f.outbound, nil), patched(v.Own, f.inbound, nil)
		a[typ] = v
	}
	return a
}
