package snapshot

import meshv1alpha1 "istio.io/api/mesh/v1alpha1"

// Topology describes the proxies in front of a gateway. It is comparable. The zero value
// means that clients connect directly.
type Topology struct {
	// TrustedProxies is the number of proxies in front whose entries in x-forwarded-for count.
	TrustedProxies uint32
	// ClientCert sets what happens to x-forwarded-client-cert. Zero means the default.
	ClientCert meshv1alpha1.ForwardClientCertDetails
	// ProxyProtocol reports whether connections begin with a header of the PROXY protocol.
	ProxyProtocol bool
}

// TopologyOf returns the topology in a ProxyConfig.
func TopologyOf(t *meshv1alpha1.Topology) Topology {
	out := Topology{TrustedProxies: t.GetNumTrustedProxies(), ProxyProtocol: t.GetProxyProtocol() != nil}
	if _, known := meshv1alpha1.ForwardClientCertDetails_name[int32(t.GetForwardClientCertDetails())]; known {
		out.ClientCert = t.GetForwardClientCertDetails()
	}
	return out
}
