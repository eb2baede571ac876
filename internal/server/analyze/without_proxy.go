package analyze

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// checkUnlabelled finds namespaces without a label for injection whose pods take part in the traffic of
// the mesh, and pods without a proxy in a mesh with STRICT. A label that refuses injection says that the
// pods need no proxy.
func (c *injectedCluster) checkUnlabelled() {
	if len(c.injectors) == 0 || c.elsewhere[c.id] {
		return // the configuration is not that of the cluster
	}
	plain := map[string][]*snapshot.Pod{}
	for name, ns := range c.namespaces {
		_, injection := ns.Labels[labelInjection]
		_, revision := ns.Labels[labelRevision]
		_, ambient := ns.Labels[labelDataplane]
		if c.outside(name) || injection || revision || ambient {
			continue
		}
		for _, p := range c.workloads[name] {
			if c.isPlain(p, ns) {
				plain[name] = append(plain[name], p)
			}
		}
	}
	if len(plain) == 0 {
		return
	}
	callers := c.callers()
	for _, name := range slices.Sorted(maps.Keys(plain)) {
		ns, pods := c.namespaces[name], plain[name]
		uses, level := c.usesOfProxies(name, pods, callers[name]), codes.Warning
		if len(uses) > 0 {
			delete(plain, name) // one finding for both
		} else if uses, level = c.routesOf(name), codes.Info; len(uses) == 0 || c.proxied(name) {
			continue
		}
		text := "has no label for injection, so %s no proxy, although objects of the mesh need one: %s"
		if level == codes.Info {
			text = "has no label for injection, so %s no proxy: their own calls do not use %s"
		}
		c.findIn(level, codes.NamespaceNotInjected, ns, c.injectFix([]string{name}, pods), "metadata.labels", text, have(len(pods)), listed(uses))
	}
	c.checkPlaintext(plain)
}

// have returns the number of pods with a verb.
func have(n int) string {
	verb := " have"
	if n == 1 {
		verb = " has"
	}
	return output.Plural(n, "pod") + verb
}

// isPlain reports whether a pod has no proxy, while nothing says that it needs none or asks for one.
func (c *injectedCluster) isPlain(p *snapshot.Pod, ns *snapshot.Namespace) bool {
	i := p.Injection
	if p.Cluster != c.id || i == nil || i.Ending || i.Injected || i.Proxy != "" || p.HostNetwork || p.Proxyless {
		return false
	}
	_, revision := p.Labels[labelRevision]
	_, ambient := p.Labels[labelDataplane]
	return i.Label == "" && i.Annotation == "" && !revision && !ambient && !c.injects(ns.Labels, p.Labels)
}

// proxied reports whether some pod of a namespace has a proxy, in any cluster.
func (m *checker) proxied(namespace string) bool { return m.proxiedAs(namespace, "") }

// proxiedAs is proxied for the pods of a service account; "" stands for all.
func (m *checker) proxiedAs(namespace, account string) bool {
	return slices.ContainsFunc(m.workloads[namespace], func(p *snapshot.Pod) bool {
		return (account == "" || p.ServiceAccount == account) && mayHaveProxy(p)
	})
}

// mayHaveProxy reports whether a pod has a proxy, or gRPC in its place, or is not known to have none.
func mayHaveProxy(p *snapshot.Pod) bool {
	return p.Injection == nil || p.Injection.Proxy != "" || p.Proxyless
}

// usesOfProxies returns the objects that have no effect, or the wrong one, because the pods of a namespace
// have no proxy.
func (c *injectedCluster) usesOfProxies(namespace string, plain []*snapshot.Pod, callers []caller) []string {
	var out []string
	add := func(o snapshot.Object, how string) {
		if text := fmt.Sprintf("%s %s (%s)", o.Key().Kind, nameOf(o), how); !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	if facts := c.Snapshot.Namespaces.Get(namespace); facts != nil {
		for _, kind := range []snapshot.Kind{
			snapshot.KindPeerAuthentication, snapshot.KindAuthorizationPolicy, snapshot.KindRequestAuthentication, snapshot.KindSidecar, snapshot.KindWasmPlugin,
		} {
			for _, p := range facts.Policies[kind] {
				if c.onlyFor(p, plain) {
					add(p, "applies to them")
				}
			}
		}
	}
	for _, by := range callers {
		named := func(pod *snapshot.Pod) bool { return by.account == "" || pod.ServiceAccount == by.account }
		if slices.ContainsFunc(plain, named) && !c.proxiedAs(namespace, by.account) {
			add(by.policy, "names them as callers")
		}
	}
	for _, v := range c.virtual {
		for _, r := range v.HTTP {
			if !c.proxied(namespace) && slices.ContainsFunc(r.GetMatch(), func(m *networkingv1alpha3.HTTPMatchRequest) bool { return m.GetSourceNamespace() == namespace }) {
				add(v, "has routes for their calls")
			}
		}
	}
	for _, svc := range c.services[namespace] {
		if svc.Cluster != c.id || len(svc.Selector) == 0 {
			continue
		}
		all := c.selected(namespace, svc.Selector)
		if slices.ContainsFunc(all, func(p *snapshot.Pod) bool { return slices.Contains(plain, p) }) &&
			slices.ContainsFunc(all, func(p *snapshot.Pod) bool { return p.Cluster == c.id && p.Injection != nil && p.Injection.Proxy != "" }) {
			add(svc, "other pods of it have a proxy")
		}
	}
	return out
}

// onlyFor reports whether a policy is for pods of which none has a proxy, and for some of a list.
func (m *checker) onlyFor(p snapshot.Policy, plain []*snapshot.Pod) bool {
	var selector map[string]string
	switch s := p.Content().(type) {
	case *securityv1beta1.PeerAuthentication:
		if s.GetMtls().GetMode() != securityv1beta1.PeerAuthentication_MutualTLS_STRICT {
			return false
		}
		selector = s.GetSelector().GetMatchLabels()
	case *networkingv1alpha3.Sidecar:
		selector = s.GetWorkloadSelector().GetLabels()
	case interface {
		GetSelector() *typev1beta1.WorkloadSelector
		GetTargetRefs() []*typev1beta1.PolicyTargetReference
		GetTargetRef() *typev1beta1.PolicyTargetReference
	}:
		if len(s.GetTargetRefs()) > 0 || s.GetTargetRef() != nil {
			return false
		}
		selector = s.GetSelector().GetMatchLabels()
	default:
		return false
	}
	all := m.selected(p.Key().Namespace, selector)
	return !slices.ContainsFunc(all, mayHaveProxy) &&
		slices.ContainsFunc(plain, func(w *snapshot.Pod) bool { return slices.Contains(all, w) })
}

// caller is a service account, or "" for all, that an AuthorizationPolicy names as a caller.
type caller struct {
	policy  *snapshot.AuthorizationPolicy
	account string
}

// callers returns the callers that AuthorizationPolicies name, by namespace.
func (m *checker) callers() map[string][]caller {
	out := map[string][]caller{}
	for _, p := range list[*snapshot.AuthorizationPolicy](m, snapshot.KindAuthorizationPolicy) {
		for _, r := range p.Spec.GetRules() {
			for _, from := range r.GetFrom() {
				s := from.GetSource()
				for _, namespace := range s.GetNamespaces() {
					out[namespace] = append(out[namespace], caller{p, ""})
				}
				for _, text := range s.GetPrincipals() {
					id, err := mesh.ParseIdentity("spiffe://" + text)
					if err == nil && !m.isForeign(id.TrustDomain) {
						out[id.Namespace] = append(out[id.Namespace], caller{p, id.ServiceAccount})
					}
				}
			}
		}
	}
	return out
}

// routesOf returns the objects of a namespace for the clients of its Services.
func (c *injectedCluster) routesOf(namespace string) []string {
	var out []string
	of := func(host string) bool {
		svc := c.Snapshot.Services.Get(host)
		return svc != nil && svc.Namespace == namespace && !svc.Entry
	}
	for _, v := range c.virtual {
		if v.Namespace == namespace && slices.Contains(v.Gateways, snapshot.MeshGateway) && slices.ContainsFunc(v.Hosts, of) {
			out = append(out, "VirtualService "+nameOf(v))
		}
	}
	for _, d := range c.rules {
		if d.Namespace == namespace && of(snapshot.RuledHost(d)) {
			out = append(out, "DestinationRule "+nameOf(d))
		}
	}
	return out
}

// injectFix returns the command that labels namespaces and replaces pods in them, and the label for the
// case that the pods need no proxy.
func (c *injectedCluster) injectFix(namespaces []string, pods []*snapshot.Pod) string {
	label := labelInjection + "=enabled"
	if !slices.Contains(c.names, mesh.DefaultRevision) {
		label = labelRevision + "=" + c.revisionFor("")
	}
	kubectl := c.kubectl(c.id, "") + " label namespace " + strings.Join(namespaces, " ") + " "
	out := []string{kubectl + label}
	for _, p := range pods {
		if command := c.replace(p); !slices.Contains(out, command) {
			out = append(out, command)
		}
	}
	const most = 5
	if len(out) > most {
		out = out[:1]
		for _, name := range namespaces {
			out = append(out, c.kubectl(c.id, name)+" rollout restart deployment")
		}
	}
	return strings.Join(out, " && ") + " # or, if they need no proxy: " + kubectl + labelInjection + "=disabled"
}

// checkPlaintext finds PeerAuthentications with STRICT for a whole mesh or namespace, while pods of
// unlabelled namespaces have no proxy: their calls fail. It is a remark, as nothing shows that they call.
func (c *injectedCluster) checkPlaintext(plain map[string][]*snapshot.Pod) {
	root := c.Snapshot.Mesh.RootNamespace
	if len(plain) == 0 || !slices.ContainsFunc(slices.Collect(maps.Keys(c.workloads)), func(ns string) bool { return !c.outside(ns) && c.proxied(ns) }) {
		return
	}
	names, noun := slices.Sorted(maps.Keys(plain)), "namespaces"
	if len(names) == 1 {
		noun = "namespace"
	}
	var counts []string
	var pods []*snapshot.Pod
	for _, name := range names {
		counts = append(counts, fmt.Sprintf("%s (%d)", name, len(plain[name])))
		pods = append(pods, plain[name]...)
	}
	report := func(in, callees string) bool {
		p := strictFor(c.Snapshot.Namespaces.Get(in))
		if p == nil {
			return false
		}
		c.findFix(codes.PlaintextToStrict, p, c.injectFix(names, pods), "spec.mtls.mode",
			"is STRICT, but the pods of %s %s have no proxy, and no label says that they need none: their calls to %s fail, and they accept plaintext themselves",
			noun, listed(counts), callees)
		return true
	}
	if report(root, "pods with a proxy") {
		return
	}
	for _, facts := range c.Snapshot.Namespaces.All() {
		if facts.Name != root && c.proxied(facts.Name) {
			report(facts.Name, "pods of namespace "+facts.Name)
		}
	}
}

// strictFor returns the PeerAuthentication by which all workloads of a namespace, or of the mesh for the
// root namespace, require mTLS, or nil.
func strictFor(facts *snapshot.NamespaceFacts) snapshot.Object {
	for p := range snapshot.Policies[*securityv1beta1.PeerAuthentication](facts, snapshot.KindPeerAuthentication) {
		if len(p.Spec.GetSelector().GetMatchLabels()) > 0 || p.Spec.GetMtls() == nil {
			continue
		}
		if p.Spec.GetMtls().GetMode() == securityv1beta1.PeerAuthentication_MutualTLS_STRICT {
			return p
		}
		return nil // the oldest one applies
	}
	return nil
}
