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
	if fault := allFaults(checkSidecar(spec), c.sidecarSockets(spec)); fault != nil {
		return fault
	}
	for i, in := range spec.Ingress {
		if mesh.IsProxyPort(in.Port.Number) {
			c.warn(faultf(at("spec.ingress", i)+".port.number", "%d is a port of the proxy: sidecars do not route connections to it", in.Port.Number))
		}
	}
	if proxy := spec.GetOutboundTrafficPolicy().GetEgressProxy(); proxy != nil {
		proxy.Host = c.fullHost(proxy.Host)
	}
	return nil
})

// sidecarSockets checks the Unix sockets of a Sidecar.
func (c *conversion) sidecarSockets(s *networkingv1alpha3.Sidecar) *FieldError {
	var faults *FieldError
	for i, in := range s.Ingress {
		faults = faults.and(c.socketFault(at("ingress", i)+".defaultEndpoint", in.GetDefaultEndpoint()))
	}
	for i, e := range s.Egress {
		faults = faults.and(c.socketFault(at("egress", i)+".bind", e.GetBind()))
	}
	return faults
}

func checkSidecar(s *networkingv1alpha3.Sidecar) *FieldError {
	return allFaults(
		labelsFault("workloadSelector.labels", s.GetWorkloadSelector().GetLabels()),
		checkIngresses(s.Ingress),
		checkEgresses(s.Egress),
		checkConnectionPool("inboundConnectionPool", s.InboundConnectionPool),
		checkEgressProxy(s.OutboundTrafficPolicy),
	)
}

// checkIngresses requires that each port number has one listener.
func checkIngresses(ingress []*networkingv1alpha3.IstioIngressListener) *FieldError {
	var faults *FieldError
	seen := map[uint32]int{}
	for i, in := range ingress {
		field := at("ingress", i)
		if in == nil || in.Port == nil {
			faults = faults.and(faultf(field+".port", "is missing"))
			continue
		}
		faults = faults.and(checkIngress(field, in))
		if first, twice := seen[in.Port.Number]; twice {
			faults = faults.and(faultf(field+".port.number", "%d is the port of %s, too", in.Port.Number, at("ingress", first)))
			continue
		}
		seen[in.Port.Number] = i
	}
	return faults
}

// checkEgresses requires that each port number or Unix socket has one listener: it names the
// route configuration, too.
func checkEgresses(egress []*networkingv1alpha3.IstioEgressListener) *FieldError {
	if faults := each("egress", egress, checkEgress); faults != nil {
		return faults
	}
	var faults *FieldError
	ports, sockets, all := map[uint32]int{}, map[string]int{}, -1
	for i, e := range egress {
		field := at("egress", i)
		switch isUnix := snapshot.IsUnixSocket(e.Bind); {
		case isUnix:
			if first, twice := sockets[e.Bind]; twice {
				faults = faults.and(faultf(field+".bind", "%q is the socket of %s, too", e.Bind, at("egress", first)))
				continue
			}
			sockets[e.Bind] = i
		case e.Port.GetNumber() != 0:
			if first, twice := ports[e.Port.Number]; twice {
				faults = faults.and(faultf(field+".port.number", "%d is the port of %s, too", e.Port.Number, at("egress", first)))
				continue
			}
			ports[e.Port.Number] = i
		case all >= 0:
			faults = faults.and(faultf(field, "has no port, like %s: only one listener may have none", at("egress", all)))
		default:
			all = i
		}
	}
	return faults
}

func checkEgressProxy(p *networkingv1alpha3.OutboundTrafficPolicy) *FieldError {
	const field = "outboundTrafficPolicy.egressProxy"
	proxy := p.GetEgressProxy()
	if proxy == nil {
		return nil
	}
	var faults *FieldError
	if p.Mode != networkingv1alpha3.OutboundTrafficPolicy_ALLOW_ANY {
		faults = faultf(field, "needs mode ALLOW_ANY")
	}
	if proxy.Host == "" || strings.HasPrefix(proxy.Host, "*") {
		faults = faults.and(faultf(field+".host", "%q is not the host of a service", proxy.Host))
	} else {
		faults = faults.and(hostFault(field+".host", proxy.Host))
	}
	if !isPort(proxy.GetPort().GetNumber()) {
		faults = faults.and(faultf(field+".port.number", "%d is not a port: want 1 to 65535", proxy.GetPort().GetNumber()))
	}
	return faults
}

func checkIngress(field string, in *networkingv1alpha3.IstioIngressListener) *FieldError {
	return allFaults(
		portFault(field+".port", in.Port.Number, in.Port.Protocol, mesh.UDP, mesh.HTTPProxy),
		bindFault(field+".bind", in.Bind),
		defaultEndpointFault(field+".defaultEndpoint", in.DefaultEndpoint),
		checkIngressTLS(field, in),
		checkConnectionPool(field+".connectionPool", in.ConnectionPool),
	)
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
// must not make proxies forward to other addresses. It refuses the ports of the proxy itself, which
// trusts its machine.
func defaultEndpointFault(field, endpoint string) *FieldError {
	if endpoint == "" || snapshot.IsUnixSocket(endpoint) { // sidecarSockets checks the path
		return nil
	}
	ap, err := netip.ParseAddrPort(endpoint)
	if err == nil && mesh.IsProxyPort(uint32(ap.Port())) {
		return faultf(field, "%d is a port of the proxy, which clients must not reach: use the port of the application", ap.Port())
	}
	if err == nil && ap.Port() > 0 {
		switch ap.Addr().String() {
		case "127.0.0.1", "0.0.0.0", "::1", "::":
			return nil
		}
	}
	return faultf(field, "%q is none of 127.0.0.1:PORT, 0.0.0.0:PORT, [::1]:PORT, [::]:PORT and unix://PATH", endpoint)
}

func checkEgress(field string, e *networkingv1alpha3.IstioEgressListener) *FieldError {
	isUnix := snapshot.IsUnixSocket(e.Bind) // sidecarSockets checks the path
	var faults *FieldError
	if e.Port != nil && (!isUnix || e.Port.Number != 0) {
		faults = portFault(field+".port", e.Port.Number, e.Port.Protocol, mesh.UDP)
	}
	switch {
	case isUnix && e.Port == nil:
		faults = faults.and(faultf(field+".bind", "needs a port with the protocol of the socket"))
	case !isUnix:
		faults = faults.and(bindFault(field+".bind", e.Bind))
	}
	if len(e.Hosts) == 0 {
		return faults.and(faultf(field+".hosts", "is empty: use \"*/*\" for every host"))
	}
	return faults.and(eachText(field+".hosts", e.Hosts, func(field, host string) *FieldError {
		if strings.Count(host, "/") != 1 {
			return faultf(field, "%q is not of the form namespace/host", host)
		}
		if entry, excluded := strings.CutPrefix(host, "~"); excluded && !strings.HasPrefix(entry, "/") {
			return scopedHostFault(field, entry, "* .")
		}
		return scopedHostFault(field, host, "* . ~")
	}))
}

const (
	noUpgrade    = "all fields except `h2UpgradePolicy`"
	keepsVersion = "the port of the application decides; use `useClientProtocol`"
)

var sidecarFields = []apiField{
	{Path: "workloadSelector", Support: Works},
	{Path: "ingress", Support: Partly, Meaning: "`defaultEndpoint` cannot be a port of the proxy itself, and its Unix sockets, like those of `bind`, must be below `--socket-dir`; objects in a Kubernetes API cannot use Unix sockets; `tls` works only where PeerAuthentication disables mTLS at the port, as with Istio, and only with certificates in files; a listener whose traffic is not captured listens on the address of the pod, unless `bind` sets another address"},
	{Path: "ingress.port", Support: Partly, Meaning: "`number` and `protocol`"},
	{Path: "ingress.port.name", Support: Works, Meaning: "for people"},
	{Path: "ingress.port.targetPort", Support: NoEffect, Meaning: "use `defaultEndpoint`"},
	{Path: "ingress.tls", Support: Partly, Meaning: "modes `SIMPLE` and `MUTUAL` with files"},
	{Path: "ingress.tls.tlsCertificates", Support: Partly, Meaning: "`serverCertificate` and `privateKey`"},
	{Path: "ingress.tls.tlsCertificates.caCertificates", Support: NoEffect, Meaning: commonClientCAs},
	{Path: "ingress.connectionPool", Support: Partly, Meaning: "as `inboundConnectionPool`"},
	{Path: "ingress.connectionPool.http", Support: Partly, Meaning: noUpgrade},
	{Path: "ingress.connectionPool.http.h2UpgradePolicy", Support: NoEffect, Meaning: keepsVersion},
	{Path: "egress", Support: Partly, Meaning: "a port with a protocol other than HTTP forwards connections to the services with this port number; a listener whose traffic is not captured listens on the loopback address, unless `bind` sets another address; the listener without a port may have a `bind`, too, and then listens there at each port of its services; `~NAMESPACE/HOST` excludes hosts, and the namespace `~` is `~*`"},
	{Path: "egress.port", Support: Partly, Meaning: "`number` and `protocol`"},
	{Path: "egress.port.name", Support: Works, Meaning: "for people"},
	{Path: "egress.port.targetPort", Support: NoEffect, Meaning: "proxies call the services at their own ports"},
	{Path: "inboundConnectionPool", Support: Partly, Meaning: "as `connectionPool` of a DestinationRule for the service"},
	{Path: "inboundConnectionPool.http", Support: Partly, Meaning: noUpgrade},
	{Path: "inboundConnectionPool.http.h2UpgradePolicy", Support: NoEffect, Meaning: keepsVersion},
	{Path: "outboundTrafficPolicy", Support: Works, Meaning: "`egressProxy` must be a service that the egress hosts include"},
}
