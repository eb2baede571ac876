package source

import (
	"net/netip"
	"strings"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

var sidecarKind = istioKind(kind{
	group: groupNetworking, name: "Sidecar", plural: "sidecars", versions: istioVersions,
	support: Partly, meaning: "see [its fields](#sidecar)", fields: sidecarFields,
}, func(c *conversion, spec *networkingv1alpha3.Sidecar) *FieldError {
	c.object = &snapshot.Sidecar{Meta: c.meta, Kind: snapshot.KindSidecar, Spec: spec}
	return checkSidecar(spec)
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
	return each("egress", s.Egress, checkEgress)
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
	if in.DefaultEndpoint == "" {
		return nil
	}
	return defaultEndpointFault(field+".defaultEndpoint", in.DefaultEndpoint)
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
	{Path: "ingress", Support: Partly, Meaning: "`port`, `bind`, `defaultEndpoint` and `connectionPool`"},
	{Path: "ingress.captureMode", Support: NoEffect, Meaning: "the proxy's own settings determine which connections are captured"},
	{Path: "ingress.tls", Support: NoEffect, Meaning: "PeerAuthentication determines the TLS of the port"},
	{Path: "egress", Support: Partly, Meaning: "`hosts`, `bind`, `captureMode` and ports of HTTP"},
	{Path: "egress.port", Support: Partly, Meaning: "only a port of HTTP gets a listener", lacks: func(value proto.Message) bool {
		port, _ := value.(*networkingv1alpha3.SidecarPort)
		p, known := mesh.ParseProtocol(port.GetProtocol())
		return !known || !p.IsHTTP()
	}},
	{Path: "inboundConnectionPool", Support: Works, Meaning: "as `connectionPool` of a DestinationRule for the service; `h2UpgradePolicy` does not matter"},
	{Path: "outboundTrafficPolicy", Support: Partly, Meaning: "`mode`"},
	{Path: "outboundTrafficPolicy.egressProxy", Support: NoEffect, Meaning: "traffic to unknown hosts goes to them directly"},
}
