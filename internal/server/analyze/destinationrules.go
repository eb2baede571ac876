package analyze

import (
	"fmt"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// destinationRules checks the DestinationRules.
func (m *checker) destinationRules() {
	routed := m.routedSubsets()
	for _, d := range until(m, m.rules) {
		host := snapshot.RuledHost(d)
		if host != "*" && !m.served(host) {
			near, effect, level := m.nearestHost(host), "", codes.Level("")
			if lost := m.lost[d]; len(lost) > 0 {
				effect, level = ", so requests of "+listed(lost)+" to its subsets fail", codes.Error
			}
			m.findIn(level, codes.UnknownDestinationRuleHost, d, m.correctTo(d, "spec.host", near), "spec.host", "no service has the host %s: the rule has no effect%s%s", host, effect, didYouMean(near))
			continue
		}
		m.subsets(d, host, routed)
		m.subsetTimeouts(d, host)
		for _, p := range policies(d) {
			m.verifies(d, p)
			m.clientCredential(d, p)
			m.tlsMode(d, host, p)
		}
	}
	m.sharedRules()
}

// subsetOf is a subset of the service with a key.
type subsetOf struct{ service, subset string }

// routedSubsets returns the subsets to which a VirtualService sends requests.
func (m *checker) routedSubsets() map[subsetOf]bool {
	out := map[subsetOf]bool{}
	for _, v := range m.virtual {
		for _, d := range destinations(v) {
			if svc := m.service(d.GetHost(), v.Namespace); svc != nil && d.GetSubset() != "" {
				out[subsetOf{svc.Key, d.GetSubset()}] = true
			}
		}
	}
	return out
}

// subsets finds the subsets without endpoints, if the service has some. It is only a remark if no route
// names the subset.
func (m *checker) subsets(d *snapshot.DestinationRule, host string, routed map[subsetOf]bool) {
	svc := m.service(host, d.Namespace)
	if svc == nil {
		return
	}
	all := m.backendsOf(svc)
	if len(all) == 0 {
		return
	}
	for i, s := range d.Spec.GetSubsets() {
		if slices.ContainsFunc(all, func(e *snapshot.Endpoint) bool { return m.mayHaveLabels(e, s.GetLabels()) }) {
			continue
		}
		effect, level := fmt.Sprintf("requests to subset %s fail", s.GetName()), codes.Error
		if !routed[subsetOf{svc.Key, s.GetName()}] {
			effect, level = fmt.Sprintf("requests to subset %s would fail, but no VirtualService routes to it", s.GetName()), codes.Info
		}
		but, fix := m.otherLabels(d, at("spec.subsets", i)+".labels", s.GetLabels(), all)
		m.findIn(level, codes.DestinationRuleSubsetNotSelectPods, d, fix, at("spec.subsets", i)+".labels", "no endpoint of %s%s has the labels %s%s: %s",
			svc.Host, m.where(), labelText(s.GetLabels()), but, effect)
	}
}

// otherLabels lists the values that endpoints have for the only label of a subset, and returns how to set it
// to the value that was probably meant.
func (m *checker) otherLabels(d *snapshot.DestinationRule, field string, labels map[string]string, all []*snapshot.Endpoint) (text, fix string) {
	if len(labels) != 1 {
		return "", ""
	}
	for key, wrong := range labels {
		var values, texts []string
		for _, e := range all {
			if v, _ := e.Label(key); v != "" && !slices.Contains(values, v) {
				values = append(values, v)
			}
		}
		slices.Sort(values)
		for _, v := range values {
			texts = append(texts, key+"="+v)
		}
		if len(values) > 0 {
			text = ", but " + listed(texts)
		}
		const short = 4 // such as v1 and v2, which are no mistakes for each other
		if near := nearest(wrong, values); len(wrong) >= short || strings.EqualFold(near, wrong) {
			fix = m.correctTo(d, field+"["+key+"]", near)
		}
	}
	return text, fix
}

// backendsOf returns the endpoints of a service. In a cluster without EndpointSlices of the service,
// as a directory may be, these are the pods that its Service selects.
func (m *checker) backendsOf(svc *snapshot.MeshService) []*snapshot.Endpoint {
	all := m.endpoints(svc, 0)
	for i := range svc.Clusters {
		c := &svc.Clusters[i]
		if len(c.Selector) == 0 || slices.ContainsFunc(all, func(e *snapshot.Endpoint) bool { return e.Cluster == c.Cluster }) {
			continue
		}
		for _, w := range m.selected(svc.Namespace, c.Selector) {
			if w.Cluster == c.Cluster && !w.External {
				all = append(all, &snapshot.Endpoint{
					Cluster: w.Cluster, Node: w.Node, Labels: w.Labels, Locality: m.localityOf(w),
					Pod: snapshot.PodKey{Cluster: w.Cluster, Namespace: w.Namespace, Name: w.Name}.String(),
				})
			}
		}
	}
	return all
}

// localityOf returns the known locality of a workload.
func (m *checker) localityOf(w *snapshot.Pod) mesh.Locality {
	if l, ok := mesh.LocalityOfLabels(w.Labels); ok {
		return l
	}
	key := snapshot.NodeKey(w.Cluster, w.Node)
	if w.External {
		key = snapshot.WorkloadEntryKey(w.Cluster, w.Namespace, w.Name)
	}
	if l := m.Snapshot.Localities.Get(key); l != nil {
		return *l
	}
	return mesh.Locality{}
}

// mayHaveLabels reports whether an endpoint has all of the wanted labels. A label of its place
// that is not known may have any value, such as the region in a directory without Nodes, and the
// cluster if only one cluster of the mesh was read.
func (m *checker) mayHaveLabels(e *snapshot.Endpoint, want map[string]string) bool {
	known := make(map[string]string, len(want))
	for name, value := range want {
		_, ofPlace := snapshot.TopologyLabel(name, "", "", mesh.Locality{}, "")
		if v, _ := e.Label(name); ofPlace && v == "" || name == mesh.LabelCluster && len(m.clusters) < 2 {
			continue
		}
		known[name] = value
	}
	return e.HasLabels(known)
}

// endpoints returns the endpoints of a service at a port; 0 stands for all ports.
func (m *checker) endpoints(svc *snapshot.MeshService, number uint32) []*snapshot.Endpoint {
	eps := m.Snapshot.Endpoints.Get(svc.Key)
	if eps == nil {
		return nil
	}
	var out []*snapshot.Endpoint
	for i := range svc.Ports {
		if number != 0 && svc.Ports[i].Number != number {
			continue
		}
		list := eps.ByPort[svc.Ports[i].Name]
		for j := range list {
			out = append(out, &list[j])
		}
	}
	return out
}

// policy is a part of a DestinationRule with TLS settings.
type policy struct {
	field  string
	tls    *networkingv1alpha3.ClientTLSSettings
	port   uint32 // 0 means all ports without a policy of their own
	but    []uint32
	labels map[string]string // of a subset
}

// policies returns the parts of a DestinationRule with TLS settings.
func policies(d *snapshot.DestinationRule) []policy {
	var out []policy
	add := func(field string, p *networkingv1alpha3.TrafficPolicy, labels map[string]string) {
		var ports []uint32
		for i, s := range p.GetPortLevelSettings() {
			ports = append(ports, s.GetPort().GetNumber())
			if s.GetTls() != nil {
				out = append(out, policy{at(field+".portLevelSettings", i) + ".tls", s.GetTls(), s.GetPort().GetNumber(), nil, labels})
			}
		}
		if p.GetTls() != nil {
			out = append(out, policy{field + ".tls", p.GetTls(), 0, ports, labels})
		}
	}
	add("spec.trafficPolicy", d.Spec.GetTrafficPolicy(), nil)
	for i, s := range d.Spec.GetSubsets() {
		add(at("spec.subsets", i)+".trafficPolicy", s.GetTrafficPolicy(), s.GetLabels())
	}
	return out
}

// originates reports whether clients make TLS of their own with the settings.
func originates(t *networkingv1alpha3.ClientTLSSettings) bool {
	return t.GetMode() == networkingv1alpha3.ClientTLSSettings_SIMPLE || t.GetMode() == networkingv1alpha3.ClientTLSSettings_MUTUAL
}

// verifies finds TLS that accepts every certificate.
func (m *checker) verifies(d *snapshot.DestinationRule, p policy) {
	if !originates(p.tls) || !p.tls.GetInsecureSkipVerify().GetValue() {
		return
	}
	code := codes.NoServerCertificateVerificationDestinationLevel
	if p.port != 0 {
		code = codes.NoServerCertificateVerificationPortLevel
	}
	m.findExtra(code, d, p.field+".insecureSkipVerify", "is true: clients accept the certificate of any server")
}

// clientCredential checks the Secret of TLS settings, which a client needs in its own
// namespace.
func (m *checker) clientCredential(d *snapshot.DestinationRule, p policy) {
	if ref, isMap := strings.CutPrefix(p.tls.GetCredentialName(), snapshot.ConfigMapPrefix); isMap {
		if namespace, name, _ := strings.Cut(ref, "/"); originates(p.tls) && m.Credential == nil && (m.SecretsRead == nil || m.SecretsRead(namespace)) && m.Snapshot.ConfigMaps.Get(snapshot.ConfigMapKey(namespace, name)) == nil {
			m.find(codes.ReferencedResourceNotFound, d, p.field+".credentialName", "there is no ConfigMap %s with CA certificates: connections fail", ref)
		}
		return
	}
	name := strings.TrimPrefix(p.tls.GetCredentialName(), "kubernetes://")
	if name == "" || !originates(p.tls) || m.Credential != nil || m.SecretsRead != nil && !m.SecretsRead(d.Namespace) {
		return
	}
	if namespace, object, two := strings.Cut(name, "/"); two && m.secret(d.Cluster, namespace, object) != nil {
		return
	}
	if !m.anySecret(name) && !m.anySecret(name+"-cacert") {
		m.find(codes.ReferencedResourceNotFound, d, p.field+".credentialName", "there is no Secret %s: connections fail", name)
	}
}

// tlsMode compares the TLS of clients with the TLS that the endpoints accept.
func (m *checker) tlsMode(d *snapshot.DestinationRule, host string, p policy) {
	for _, svc := range m.ruled(d, host) {
		var all, wrong int
		for i := range svc.Ports {
			number := svc.Ports[i].Number
			if p.port != 0 && p.port != number || slices.Contains(p.but, number) {
				continue
			}
			for _, e := range m.endpoints(svc, number) {
				if !snapshot.Selects(p.labels, e.Labels) {
					continue
				}
				all++
				if !m.accepts(e, p.tls.GetMode()) {
					wrong++
				}
			}
		}
		if wrong == 0 {
			continue
		}
		number := "the endpoints"
		if wrong < all {
			number = fmt.Sprintf("%d of %d endpoints", wrong, all)
		}
		why, mode := "require mTLS of the mesh, by PeerAuthentication STRICT", networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL
		if p.tls.GetMode() == networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL {
			why, mode = "accept no mTLS of the mesh: they have no proxy, or PeerAuthentication DISABLE", networkingv1alpha3.ClientTLSSettings_DISABLE
		}
		fix := ""
		if wrong == all { // else some endpoints need the one, and some the other
			fix = m.set(d, p.field+".mode", mode.String())
		}
		m.findFix(codes.TLSModeConflict, d, fix, p.field+".mode", "%s does not go with %s of %s, which %s", p.tls.GetMode(), number, svc.Host, why)
		return
	}
}

// ruled returns the services to whose host a DestinationRule applies, a few of them for a
// wildcard.
func (m *checker) ruled(d *snapshot.DestinationRule, host string) []*snapshot.MeshService {
	if !strings.HasPrefix(host, "*") {
		if svc := m.service(host, d.Namespace); svc != nil {
			return []*snapshot.MeshService{svc}
		}
		return nil
	}
	const most = 1000
	var out []*snapshot.MeshService
	for key, svc := range m.Snapshot.Services.All() {
		if snapshot.HostsOverlap(host, svc.Host) && m.appliesTo(key, d) {
			if out = append(out, svc); len(out) == most {
				break
			}
		}
	}
	return out
}

// appliesTo reports whether a DestinationRule is the first one of a service for some
// client.
func (m *checker) appliesTo(key string, d *snapshot.DestinationRule) bool {
	rules := m.Snapshot.Rules.Get(key)
	if rules == nil {
		return false
	}
	is := func(r *snapshot.HostRule) bool { return r.Namespace == d.Namespace && r.Name == d.Name }
	for _, own := range rules.Own {
		if slices.ContainsFunc(own, is) {
			return true
		}
	}
	return slices.ContainsFunc(rules.Default, is)
}

// accepts reports whether an endpoint accepts connections in a mode.
func (m *checker) accepts(e *snapshot.Endpoint, mode networkingv1alpha3.ClientTLSSettings_TLSmode) bool {
	if mode == networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL {
		return e.MTLS
	}
	pod := m.Snapshot.Pods.Get(e.Pod)
	if !e.TLSMode || pod == nil {
		return true
	}
	namespaces := m.Snapshot.Namespaces
	modes := snapshot.WorkloadMTLS(namespaces.Get(m.Snapshot.Mesh.RootNamespace), namespaces.Get(pod.Namespace), pod.Labels)
	return modes.Port(e.Port) != snapshot.Strict
}

// sharedRules finds the parts of DestinationRules that an earlier one of the same host,
// namespace and selector precludes.
func (m *checker) sharedRules() {
	type group struct {
		namespace, host string
		selector        snapshot.LabelSelector
		exports         string
	}
	rules := slices.Clone(m.rules)
	slices.SortStableFunc(rules, func(a, b *snapshot.DestinationRule) int { return a.Created.Compare(b.Created) })
	before := map[group][]*snapshot.DestinationRule{}
	for _, d := range rules {
		exports := slices.Sorted(slices.Values(d.Spec.GetExportTo()))
		g := group{d.Namespace, snapshot.RuledHost(d), snapshot.SelectorOf(d.Spec.GetWorkloadSelector().GetMatchLabels()), strings.Join(exports, ",")}
		for _, first := range before[g] {
			m.precludedRule(first, d)
		}
		before[g] = append(before[g], d)
	}
}

func (m *checker) precludedRule(first, second *snapshot.DestinationRule) {
	if first.Spec.GetTrafficPolicy() != nil && second.Spec.GetTrafficPolicy() != nil {
		m.findExtra(codes.ConflictingDestinationRules, second, "spec.trafficPolicy", "has no effect: the policy of DestinationRule %s for the same host counts", nameOf(first))
	}
	for i, s := range second.Spec.GetSubsets() {
		if slices.ContainsFunc(first.Spec.GetSubsets(), func(o *networkingv1alpha3.Subset) bool { return o.GetName() == s.GetName() }) {
			m.findExtra(codes.ConflictingDestinationRules, second, at("spec.subsets", i), "has no effect: DestinationRule %s defines subset %s for the same host", nameOf(first), s.GetName())
		}
	}
}
