package xdsgen

import (
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// chosenFilters holds the result of the EnvoyFilters for one workload. Its parts are empty
// if none selects the workload, so that such workloads share their views.
type chosenFilters struct {
	// inbound and outbound hold patches in the order in which they apply; for a gateway,
	// inbound is empty. added holds the patches that add clusters and listeners.
	inbound, outbound, added []*snapshot.Patch
	extensions, bootstrap    Views
}

// chooseFilters applies the EnvoyFilters that select a workload, in order. If two have an
// extension of one name, the first wins. They cannot replace the extensions of WasmPlugins,
// RequestAuthentications and AuthorizationPolicies.
func chooseFilters(s *snapshot.Snapshot, n Node, labels map[string]string, authorizations []authorization) chosenFilters {
	outbound := networkingv1alpha3.EnvoyFilter_SIDECAR_OUTBOUND
	if n.ID.Type == mesh.Router {
		outbound = networkingv1alpha3.EnvoyFilter_GATEWAY
	}
	inbound := func(p *snapshot.Patch) bool {
		return n.ID.Type != mesh.Router && p.AppliesIn(networkingv1alpha3.EnvoyFilter_SIDECAR_INBOUND)
	}
	var out chosenFilters
	var bootstrap []*snapshot.Patch
	extensions, pulled := pluginExtensions(s, n, labels)
	if rules := tokenRules(s, n.Namespace, labels); checksTokens(rules, authorizations) {
		extensions = append(extensions, tokenExtension(rules, n.ID.Type == mesh.Router))
	}
	for _, f := range snapshot.EnvoyFiltersFor(s.Namespaces.Get(s.Mesh.RootNamespace), s.Namespaces.Get(n.Namespace), labels) {
		for _, e := range f.Extensions {
			taken := func(other extension) bool { return other.name == e.Name }
			isPulled := func(p *snapshot.WasmPlugin) bool { return pluginName(p) == e.Name }
			if e.Proxy.Matches(n.Version, n.Metadata) && !slices.ContainsFunc(extensions, taken) && !slices.ContainsFunc(pulled, isPulled) && !isAuthorization(authorizations, e.Name) {
				extensions = append(extensions, extension{e.Name, e.Body, f.Key()})
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
	out.bootstrap = bootstrapViews(bootstrap)
	view := extensionView{authorizations: listOf(authorizations)}
	slices.SortFunc(extensions, func(a, b extension) int { return strings.Compare(a.name, b.name) })
	view.extensions = listOf(extensions)
	if view != (extensionView{}) {
		out.extensions.Shared = view
	}
	if len(pulled) > 0 {
		out.extensions.Own = PulledPlugins{plugins: listOf(pulled)}
	}
	return out
}

// isAdded reports whether a patch adds a cluster or a listener.
func isAdded(p *snapshot.Patch) bool {
	at := p.Spec.GetApplyTo()
	return p.Spec.GetPatch().GetOperation() == networkingv1alpha3.EnvoyFilter_Patch_ADD &&
		(at == networkingv1alpha3.EnvoyFilter_CLUSTER || at == networkingv1alpha3.EnvoyFilter_LISTENER)
}

// leaveOut removes added listeners with the names of the workload's own. Listeners
// of its own are in another view, and nothing else resolves conflicts between views.
func (f *chosenFilters) leaveOut(own []string) {
	f.added = slices.DeleteFunc(f.added, func(p *snapshot.Patch) bool {
		l, ok := p.Value.(*listenerv3.Listener)
		return ok && slices.Contains(own, l.GetName())
	})
}

// apply returns the assignment with the patches.
func (f *chosenFilters) apply(a Assignment) Assignment {
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

// extension is the configuration of a filter.
type extension struct {
	name string
	body string       // an encoded envoy.config.core.v3.TypedExtensionConfig
	of   snapshot.Key // the object that configures it; zero if several do
}

// extensionView is the view of the extension configurations (ECDS) of proxies with the
// same extensions.
type extensionView struct {
	extensions     list[extension]
	authorizations list[authorization]
}

func (v extensionView) Type() string { return xdswire.ExtensionType }

func (v extensionView) Keys() Keys {
	k := Keys{}
	if !v.extensions.Empty() {
		k.Fixed = 1
	}
	for u := range v.authorizationUnits {
		k.Listed = append(k.Listed, Key{Name: u.filter.Name})
	}
	return k
}

func (v extensionView) Unit(_ *snapshot.Snapshot, k Key) Unit {
	if k.Name == "" {
		return extensionUnit{v.extensions}
	}
	for u := range v.authorizationUnits {
		if u.filter.Name == k.Name {
			return u
		}
	}
	return nil
}

// names returns the names of the extensions.
func (v extensionView) names() []string {
	var out []string
	for e := range v.extensions.All {
		out = append(out, e.name)
	}
	for u := range v.authorizationUnits {
		out = append(out, u.filter.Name)
	}
	return out
}

func (v extensionView) authorizationUnits(yield func(authorizationUnit) bool) {
	for a := range v.authorizations.All {
		for _, f := range a.filters() {
			if !yield(authorizationUnit{a, f}) {
				return
			}
		}
	}
}

type extensionUnit struct{ extensions list[extension] }

func (u extensionUnit) Type() string { return xdswire.ExtensionType }

func (u extensionUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var out []*xdswire.Resource
	for e := range u.extensions.All {
		out = append(out, enc.Raw(xdswire.ExtensionType, e.name, []byte(e.body)))
	}
	return out, nil
}
