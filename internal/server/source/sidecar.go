package source

import (
	"net/netip"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

var sidecarKind = istioKind(kind{
	group: groupNetworking, name: "Sidecar", plural: "sidecars", versions: istioVersions,
	support: Works, meaning: "see [its fields](#sidecar)", fields: sidecarFields,
}, func(c *conversion, spec *networkingv1alpha3.Sidecar) *FieldError {
	c.object = &snapshot.Sidecar{Meta: c.meta, Kind: snapshot.KindSidecar, Spec: spec}
	if fault := checkSidecar(spec); fault != nil {
		return fault
	}
	for i, in := range spec.Ingress {
		c.checkProxyPort(at("spec.ingress", i)+".port.number", in.Port.Number)
	}
	if proxy := spec.GetOutboundTrafficPolicy().GetEgressProxy(); proxy != nil {
		proxy.Host = c.fullHost(proxy.Host)
	}
	return nil
})

func checkSidecar(s *networkingv1alpha3.Sidecar) *FieldError {
	if s.WorkloadSelector != nil {
		if fault := labelsFault("workloadSelector.labels", s.WorkloadSelector.Labels); fault != nil {
			return fault
		}
	}
	if fault := checkConnectionPool("inboundConnectionPool", s.InboundConnectionPool); fault != nil {
		return fault
	}
	seen := map[uint32]int{}
	for i, in := range s.Ingress {
		field := at("ingress", i)
		if in == nil || in.Port == nil {
			return faultf(field+".port", "is missing")
		}
		if fault := checkIngress(field, in); fault != nil {
			return fault
		}
		if first, twice := seen[in.Port.Number]; twice {
			return faultf(field+".port.number", "%d is the port of %s, too", in.Port.Number, at("ingress", first))
		}
		seen[in.Port.Number] = i
	}
	if fault := checkEgressProxy(s.OutboundTrafficPolicy); fault != nil {
		return fault
	}
	return checkEgresses(s.Egress)
}

// checkEgresses requires that each port number or Unix socket has one listener: it names the
// route configuration, too.
func checkEgresses(egress []*networkingv1alpha3.IstioEgressListener) *FieldError {
	if fault := each("egress", egress, checkEgress); fault != nil {
		return fault
	}
	ports, sockets, all := map[uint32]int{}, map[string]int{}, -1
	for i, e := range egress {
		field := at("egress", i)
		switch isUnix := strings.HasPrefix(e.Bind, snapshot.UnixScheme); {
		case isUnix:
			if first, twice := sockets[e.Bind]; twice {
				return faultf(field+".bind", "%q is the socket of %s, too", e.Bind, at("egress", first))
			}
			sockets[e.Bind] = i
		case e.Port.GetNumber() != 0:
			if first, twice := ports[e.Port.Number]; twice {
				return faultf(field+".port.number", "%d is the port of %s, too", e.Port.Number, at("egress", first))
			}
			ports[e.Port.Number] = i
		case all >= 0:
			return faultf(field, "has no port, like %s: only one listener may have none", at("egress", all))
		default:
			all = i
		}
	}
	return nil
}

func checkEgressProxy(p *networkingv1alpha3.OutboundTrafficPolicy) *FieldError {
	const field = "outboundTrafficPolicy.egressProxy"
	proxy := p.GetEgressProxy()
	switch {
	case proxy == nil:
		return nil
	case p.Mode != networkingv1alpha3.OutboundTrafficPolicy_ALLOW_ANY:
		return faultf(field, "needs mode ALLOW_ANY")
	case proxy.Host == "" || strings.HasPrefix(proxy.Host, "*"):
		return faultf(field+".host", "%q is not the host of a service", proxy.Host)
	case !isPort(proxy.GetPort().GetNumber()):
		return faultf(field+".port.number", "%d is not a port: want 1 to 65535", proxy.GetPort().GetNumber())
	}
	return hostFault(field+".host", proxy.Host)
}

func checkIngress(field string, in *networkingv1alpha3.IstioIngressListener) *FieldError {
	if fault := portFault(field+".port", in.Port.Number, in.Port.Protocol, mesh.UDP, mesh.HTTPProxy); fault != nil {
		return fault
	}
	if fault := bindFault(field+".bind", in.Bind); fault != nil {
		return fault
	}
	if fault := checkConnectionPool(field+".connectionPool", in.ConnectionPool); fault != nil {
		return fault
	}
	if fault := checkIngressTLS(field, in); fault != nil {
		return fault
	}
	if in.DefaultEndpoint == "" {
		return nil
	}
	return defaultEndpointFault(field+".defaultEndpoint", in.DefaultEndpoint)
}

// checkIngressTLS allows what Istio allows: sidecars get no Secrets.
func checkIngressTLS(field string, in *networkingv1alpha3.IstioIngressListener) *FieldError {
	t := in.Tls
	field += ".tls"
	switch {
	case t == nil:
		return nil
	case t.Mode != networkingv1alpha3.ServerTLSSettings_SIMPLE && t.Mode != networkingv1alpha3.ServerTLSSettings_MUTUAL:
		return faultf(field+".mode", "%s is not a mode of sidecars: use SIMPLE or MUTUAL", t.Mode)
	case t.HttpsRedirect:
		return faultf(field+".httpsRedirect", "is only for gateways")
	case t.CredentialName != "" || len(t.CredentialNames) > 0 || t.CaCertCredentialName != "":
		return faultf(field, "names Secrets, which sidecars do not get: use serverCertificate, privateKey and caCertificates")
	case in.Port.Protocol == "":
		return faultf(field, "needs a protocol of the port: HTTPS if the application gets HTTP, TLS if it gets TCP")
	}
	return serverTLSFault(field, t)
}

// defaultEndpointFault allows only endpoints on the proxy's own machine: a Sidecar
// must not make proxies forward to other addresses.
func defaultEndpointFault(field, endpoint string) *FieldError {
	if path, ok := strings.CutPrefix(endpoint, "unix://"); ok {
		if path == "" {
			return faultf(field, "%q has no path", endpoint)
		}
		return nil
	}
	ap, err := netip.ParseAddrPort(endpoint)
	if err == nil && ap.Port() > 0 {
		switch ap.Addr().String() {
		case "127.0.0.1", "0.0.0.0", "::1", "::":
			return nil
		}
	}
	return faultf(field, "%q is none of 127.0.0.1:PORT, 0.0.0.0:PORT, [::1]:PORT, [::]:PORT and unix://PATH", endpoint)
}

func checkEgress(field string, e *networkingv1alpha3.IstioEgressListener) *FieldError {
	path, isUnix := strings.CutPrefix(e.Bind, "unix://")
	switch {
	case isUnix && path == "":
		return faultf(field+".bind", "%q has no path", e.Bind)
	case e.Bind != "" && e.Port == nil:
		return faultf(field+".bind", "needs a port")
	case !isUnix:
		if fault := bindFault(field+".bind", e.Bind); fault != nil {
			return fault
		}
	}
	if e.Port != nil && (!isUnix || e.Port.Number != 0) {
		if fault := portFault(field+".port", e.Port.Number, e.Port.Protocol, mesh.UDP); fault != nil {
			return fault
		}
	}
	if len(e.Hosts) == 0 {
		return faultf(field+".hosts", "is empty: use \"*/*\" for every host")
	}
	for i, host := range e.Hosts {
		if strings.Count(host, "/") != 1 {
			return faultf(at(field+".hosts", i), "%q is not of the form namespace/host", host)
		}
		if fault := scopedHostFault(at(field+".hosts", i), host, "* . ~"); fault != nil {
			return fault
		}
	}
	return nil
}

var sidecarFields = []apiField{
	{Path: "workloadSelector", Support: Works},
	{Path: "ingress", Support: Works, Meaning: "`tls` works where PeerAuthentication disables mTLS at the port, as with Istio, and with certificates in files; a listener whose traffic is not captured listens on the address of the pod, unless `bind` sets another address"},
	{Path: "egress", Support: Works, Meaning: "a port with a protocol other than HTTP forwards connections to the services with this port number"},
	{Path: "inboundConnectionPool", Support: Works, Meaning: "as `connectionPool` of a DestinationRule for the service; `h2UpgradePolicy` has no effect"},
	{Path: "outboundTrafficPolicy", Support: Works, Meaning: "`egressProxy` must be a service that the egress hosts include"},
}
