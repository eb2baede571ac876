package source

import (
	"net/netip"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

var sidecarKind = istioKind(kind{
	group: groupNetworking, name: "Sidecar", plural: "sidecars", versions: istioVersions,
	support: fields.Works, meaning: "see [its fields](#sidecar)", fields: sidecarFields,
}, func(c *conversion, spec *networkingv1alpha3.Sidecar) *fields.Error {
	c.object = &snapshot.Sidecar{Meta: c.meta, Kind: snapshot.KindSidecar, Spec: spec}
	if fault := fields.AllFaults(checkSidecar(spec), c.sidecarSockets(spec)); fault != nil {
		return fault
	}
	for i, in := range spec.Ingress {
		if mesh.IsProxyPort(in.Port.Number) {
			c.warn(fields.Faultf(fields.At("spec.ingress", i)+".port.number", "%d is a port of the proxy: sidecars do not route connections to it", in.Port.Number))
		}
	}
	if proxy := spec.GetOutboundTrafficPolicy().GetEgressProxy(); proxy != nil {
		proxy.Host = c.fullHost(proxy.Host)
	}
	return nil
})

// sidecarSockets checks the Unix sockets of a Sidecar.
func (c *conversion) sidecarSockets(s *networkingv1alpha3.Sidecar) *fields.Error {
	var faults *fields.Error
	for i, in := range s.Ingress {
		faults = faults.And(c.socketFault(fields.At("ingress", i)+".defaultEndpoint", in.GetDefaultEndpoint()))
	}
	for i, e := range s.Egress {
		faults = faults.And(c.socketFault(fields.At("egress", i)+".bind", e.GetBind()))
	}
	return faults
}

func checkSidecar(s *networkingv1alpha3.Sidecar) *fields.Error {
	return fields.AllFaults(
		fields.LabelsFault("workloadSelector.labels", s.GetWorkloadSelector().GetLabels()),
		checkIngresses(s.Ingress),
		checkEgresses(s.Egress),
		fields.ConnectionPoolFault("inboundConnectionPool", s.InboundConnectionPool),
		checkEgressProxy(s.OutboundTrafficPolicy),
	)
}

// checkIngresses requires that each port number has one listener.
func checkIngresses(ingress []*networkingv1alpha3.IstioIngressListener) *fields.Error {
	var faults *fields.Error
	seen := map[uint32]int{}
	for i, in := range ingress {
		field := fields.At("ingress", i)
		if in == nil || in.Port == nil {
			faults = faults.And(fields.Faultf(field+".port", "is missing"))
			continue
		}
		faults = faults.And(checkIngress(field, in))
		if first, twice := seen[in.Port.Number]; twice {
			faults = faults.And(fields.Faultf(field+".port.number", "%d is the port of %s, too", in.Port.Number, fields.At("ingress", first)))
			continue
		}
		seen[in.Port.Number] = i
	}
	return faults
}

// checkEgresses requires that each port number or Unix socket has one listener: it names the
// route configuration, too.
func checkEgresses(egress []*networkingv1alpha3.IstioEgressListener) *fields.Error {
	if faults := fields.Each("egress", egress, checkEgress); faults != nil {
		return faults
	}
	var faults *fields.Error
	ports, sockets, all := map[uint32]int{}, map[string]int{}, -1
	for i, e := range egress {
		field := fields.At("egress", i)
		switch isUnix := snapshot.IsUnixSocket(e.Bind); {
		case isUnix:
			if first, twice := sockets[e.Bind]; twice {
				faults = faults.And(fields.Faultf(field+".bind", "%q is the socket of %s, too", e.Bind, fields.At("egress", first)))
				continue
			}
			sockets[e.Bind] = i
		case e.Port.GetNumber() != 0:
			if first, twice := ports[e.Port.Number]; twice {
				faults = faults.And(fields.Faultf(field+".port.number", "%d is the port of %s, too", e.Port.Number, fields.At("egress", first)))
				continue
			}
			ports[e.Port.Number] = i
		case all >= 0:
			faults = faults.And(fields.Faultf(field, "has no port, like %s: only one listener may have none", fields.At("egress", all)))
		default:
			all = i
		}
	}
	return faults
}

func checkEgressProxy(p *networkingv1alpha3.OutboundTrafficPolicy) *fields.Error {
	const field = "outboundTrafficPolicy.egressProxy"
	proxy := p.GetEgressProxy()
	if proxy == nil {
		return nil
	}
	var faults *fields.Error
	if p.Mode != networkingv1alpha3.OutboundTrafficPolicy_ALLOW_ANY {
		faults = fields.Faultf(field, "needs mode ALLOW_ANY")
	}
	if proxy.Host == "" || strings.HasPrefix(proxy.Host, "*") {
		faults = faults.And(fields.Faultf(field+".host", "%q is not the host of a service", proxy.Host))
	} else {
		faults = faults.And(fields.HostFault(field+".host", proxy.Host))
	}
	if !fields.IsPort(proxy.GetPort().GetNumber()) {
		faults = faults.And(fields.Faultf(field+".port.number", "%d is not a port: want 1 to 65535", proxy.GetPort().GetNumber()))
	}
	return faults
}

func checkIngress(field string, in *networkingv1alpha3.IstioIngressListener) *fields.Error {
	return fields.AllFaults(
		fields.PortFault(field+".port", in.Port.Number, in.Port.Protocol, mesh.UDP, mesh.HTTPProxy),
		fields.BindFault(field+".bind", in.Bind),
		defaultEndpointFault(field+".defaultEndpoint", in.DefaultEndpoint),
		checkIngressTLS(field, in),
		fields.ConnectionPoolFault(field+".connectionPool", in.ConnectionPool),
	)
}

// checkIngressTLS allows what Istio allows: sidecars get no Secrets.
func checkIngressTLS(field string, in *networkingv1alpha3.IstioIngressListener) *fields.Error {
	t := in.Tls
	field += ".tls"
	switch {
	case t == nil:
		return nil
	case t.Mode != networkingv1alpha3.ServerTLSSettings_SIMPLE && t.Mode != networkingv1alpha3.ServerTLSSettings_MUTUAL:
		return fields.Faultf(field+".mode", "%s is not a mode of sidecars: use SIMPLE or MUTUAL", t.Mode)
	case t.HttpsRedirect:
		return fields.Faultf(field+".httpsRedirect", "is only for gateways")
	case t.CredentialName != "" || len(t.CredentialNames) > 0 || t.CaCertCredentialName != "":
		return fields.Faultf(field, "names Secrets, which sidecars do not get: use serverCertificate, privateKey and caCertificates")
	case in.Port.Protocol == "":
		return fields.Faultf(field, "needs a protocol of the port: HTTPS if the application gets HTTP, TLS if it gets TCP")
	}
	return serverTLSFault(field, t)
}

// defaultEndpointFault allows only endpoints on the proxy's own machine: a Sidecar
// must not make proxies forward to other addresses. It refuses the ports of the proxy itself, which
// trusts its machine.
func defaultEndpointFault(field, endpoint string) *fields.Error {
	if endpoint == "" || snapshot.IsUnixSocket(endpoint) { // sidecarSockets checks the path
		return nil
	}
	ap, err := netip.ParseAddrPort(endpoint)
	if err == nil && mesh.IsProxyPort(uint32(ap.Port())) {
		return fields.Faultf(field, "%d is a port of the proxy, which clients must not reach: use the port of the application", ap.Port())
	}
	if err == nil && ap.Port() > 0 {
		switch ap.Addr().String() {
		case "127.0.0.1", "0.0.0.0", "::1", "::":
			return nil
		}
	}
	return fields.Faultf(field, "%q is none of 127.0.0.1:PORT, 0.0.0.0:PORT, [::1]:PORT, [::]:PORT and unix://PATH", endpoint)
}

func checkEgress(field string, e *networkingv1alpha3.IstioEgressListener) *fields.Error {
	isUnix := snapshot.IsUnixSocket(e.Bind) // sidecarSockets checks the path
	var faults *fields.Error
	if e.Port != nil && (!isUnix || e.Port.Number != 0) {
		faults = fields.PortFault(field+".port", e.Port.Number, e.Port.Protocol, mesh.UDP)
	}
	switch {
	case isUnix && e.Port == nil:
		faults = faults.And(fields.Faultf(field+".bind", "needs a port with the protocol of the socket"))
	case !isUnix:
		faults = faults.And(fields.BindFault(field+".bind", e.Bind))
	}
	if len(e.Hosts) == 0 {
		return faults.And(fields.Faultf(field+".hosts", "is empty: use \"*/*\" for every host"))
	}
	return faults.And(fields.EachText(field+".hosts", e.Hosts, func(field, host string) *fields.Error {
		if strings.Count(host, "/") != 1 {
			return fields.Faultf(field, "%q is not of the form namespace/host", host)
		}
		if entry, excluded := strings.CutPrefix(host, "~"); excluded && !strings.HasPrefix(entry, "/") {
			return fields.ScopedHostFault(field, entry, "* .")
		}
		return fields.ScopedHostFault(field, host, "* . ~")
	}))
}

const (
	noUpgrade    = "all fields except `h2UpgradePolicy`"
	keepsVersion = "the port of the application decides; use `useClientProtocol`"
)

var sidecarFields = []fields.Field{
	{Path: "workloadSelector", Support: fields.Works},
	{Path: "ingress", Support: fields.Partly, Meaning: "`defaultEndpoint` cannot be a port of the proxy itself, and its Unix sockets, like those of `bind`, must be below `--socket-dir`; objects in a Kubernetes API cannot use Unix sockets; `tls` works only where PeerAuthentication disables mTLS at the port, as with Istio, and only with certificates in files; a listener whose traffic is not captured listens on the address of the pod, unless `bind` sets another address"},
	{Path: "ingress.port", Support: fields.Partly, Meaning: "`number` and `protocol`"},
	{Path: "ingress.port.name", Support: fields.Works, Meaning: "for people"},
	{Path: "ingress.port.targetPort", Support: fields.NoEffect, Meaning: "use `defaultEndpoint`"},
	{Path: "ingress.tls", Support: fields.Partly, Meaning: "modes `SIMPLE` and `MUTUAL` with files"},
	{Path: "ingress.tls.tlsCertificates", Support: fields.Partly, Meaning: "`serverCertificate` and `privateKey`"},
	{Path: "ingress.tls.tlsCertificates.caCertificates", Support: fields.NoEffect, Meaning: commonClientCAs},
	{Path: "ingress.connectionPool", Support: fields.Partly, Meaning: "as `inboundConnectionPool`"},
	{Path: "ingress.connectionPool.http", Support: fields.Partly, Meaning: noUpgrade},
	{Path: "ingress.connectionPool.http.h2UpgradePolicy", Support: fields.NoEffect, Meaning: keepsVersion},
	{Path: "egress", Support: fields.Partly, Meaning: "a port with a protocol other than HTTP forwards connections to the services with this port number; a listener whose traffic is not captured listens on the loopback address, unless `bind` sets another address; the listener without a port may have a `bind`, too, and then listens there at each port of its services; `~NAMESPACE/HOST` excludes hosts, and the namespace `~` is `~*`"},
	{Path: "egress.port", Support: fields.Partly, Meaning: "`number` and `protocol`"},
	{Path: "egress.port.name", Support: fields.Works, Meaning: "for people"},
	{Path: "egress.port.targetPort", Support: fields.NoEffect, Meaning: "proxies call the services at their own ports"},
	{Path: "inboundConnectionPool", Support: fields.Partly, Meaning: "as `connectionPool` of a DestinationRule for the service"},
	{Path: "inboundConnectionPool.http", Support: fields.Partly, Meaning: noUpgrade},
	{Path: "inboundConnectionPool.http.h2UpgradePolicy", Support: fields.NoEffect, Meaning: keepsVersion},
	{Path: "outboundTrafficPolicy", Support: fields.Works, Meaning: "`egressProxy` must be a service that the egress hosts include"},
}
