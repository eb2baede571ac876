package snapshot

import (
	"iter"

	securityv1beta1 "istio.io/api/security/v1beta1"
)

// MTLSMode is the mode of mTLS on a port of a workload.
type MTLSMode uint8

// The modes of PeerAuthentication.
const (
	Permissive MTLSMode = iota
	Strict
	Disable
)

func (m MTLSMode) String() string { return [...]string{"PERMISSIVE", "STRICT", "DISABLE"}[m] }

// MTLS is the result of all PeerAuthentication policies for one workload.
type MTLS struct {
	Default MTLSMode
	Ports   map[uint32]MTLSMode // overrides by target port
}

// Port returns the mode of a target port.
func (m MTLS) Port(number uint32) MTLSMode {
	if mode, ok := m.Ports[number]; ok {
		return mode
	}
	return m.Default
}

// NamespaceMTLS returns the mode of a namespace, as the policies without a selector of
// the root namespace and of the namespace set it. Either argument may be nil.
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

// AllPlaintext reports whether no workload of a namespace accepts mTLS: the mode of the
// namespace is Disable, and no policy with a selector has another one. Either argument may be
// nil.
func AllPlaintext(root, ns *NamespaceFacts) bool {
	if NamespaceMTLS(root, ns) != Disable {
		return false
	}
	for p := range peerAuthentications(ns) {
		if len(p.Spec.GetSelector().GetMatchLabels()) == 0 || root != nil && ns.Name == root.Name {
			continue
		}
		if inherit(p.Spec.GetMtls(), Disable) != Disable {
			return false
		}
		for _, m := range p.Spec.GetPortLevelMtls() {
			if inherit(m, Disable) != Disable {
				return false
			}
		}
	}
	return true
}

// WorkloadMTLS returns the modes of a workload with these labels. The oldest policy
// that selects it overrides the mode of its namespace. Policies of the root namespace
// that have a selector have no effect.
func WorkloadMTLS(root, ns *NamespaceFacts, labels map[string]string) MTLS {
	out := MTLS{Default: NamespaceMTLS(root, ns)}
	if ns == nil || root != nil && ns.Name == root.Name {
		return out
	}
	for p := range peerAuthentications(ns) {
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

func peerAuthentications(ns *NamespaceFacts) iter.Seq[*PeerAuthentication] {
	return Policies[*securityv1beta1.PeerAuthentication](ns, KindPeerAuthentication)
}

func namespacePolicy(ns *NamespaceFacts) *securityv1beta1.PeerAuthentication {
	for p := range peerAuthentications(ns) {
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
