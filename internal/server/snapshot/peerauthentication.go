package snapshot

import (
	securityv1beta1 "istio.io/api/security/v1beta1"
)

// MTLSMode is how a workload treats mTLS on one of its ports.
type MTLSMode uint8

// The modes of PeerAuthentication.
const (
	Permissive MTLSMode = iota
	Strict
	Disable
)

// MTLS is the outcome of all PeerAuthentication policies for one workload.
type MTLS struct {
	Default MTLSMode
	Ports   map[uint32]MTLSMode // overrides by target port
}

// Port is the mode of one target port.
func (m MTLS) Port(number uint32) MTLSMode {
	if mode, ok := m.Ports[number]; ok {
		return mode
	}
	return m.Default
}

// NamespaceMTLS is the mode that the mesh's and the namespace's policies
// decide together, before any policy that selects workloads. Either argument
// may be nil.
func NamespaceMTLS(root, ns *NamespaceFacts) MTLSMode {
	mode := Permissive
	if p := namespacePolicy(root); p != nil {
		mode = inherit(p.GetMtls(), mode)
	}
	if ns != nil && (root == nil || ns.Name != root.Name) {
		if p := namespacePolicy(ns); p != nil {
			mode = inherit(p.GetMtls(), mode)
		}
	}
	return mode
}

// WorkloadMTLS resolves the policies for a workload with those labels: mesh,
// then namespace, then the oldest policy that selects it. Policies with a
// selector in the root namespace select nothing.
func WorkloadMTLS(root, ns *NamespaceFacts, labels map[string]string) MTLS {
	out := MTLS{Default: NamespaceMTLS(root, ns)}
	if ns == nil || root != nil && ns.Name == root.Name {
		return out
	}
	for _, p := range ns.PeerAuth {
		sel := p.Spec.GetSelector().GetMatchLabels()
		if len(sel) == 0 || !Selects(sel, labels) {
			continue
		}
		out.Default = inherit(p.Spec.GetMtls(), out.Default)
		for port, m := range p.Spec.GetPortLevelMtls() {
			if out.Ports == nil {
				out.Ports = make(map[uint32]MTLSMode)
			}
			out.Ports[port] = inherit(m, out.Default)
		}
		break
	}
	return out
}

// Selects reports whether every label of the selector is among the labels.
func Selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if have, ok := labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

func namespacePolicy(ns *NamespaceFacts) *securityv1beta1.PeerAuthentication {
	if ns == nil {
		return nil
	}
	for _, p := range ns.PeerAuth {
		if len(p.Spec.GetSelector().GetMatchLabels()) == 0 {
			return p.Spec
		}
	}
	return nil
}

func inherit(m *securityv1beta1.PeerAuthentication_MutualTLS, parent MTLSMode) MTLSMode {
	switch m.GetMode() {
	case securityv1beta1.PeerAuthentication_MutualTLS_STRICT:
		return Strict
	case securityv1beta1.PeerAuthentication_MutualTLS_DISABLE:
		return Disable
	case securityv1beta1.PeerAuthentication_MutualTLS_PERMISSIVE:
		return Permissive
	}
	return parent
}
