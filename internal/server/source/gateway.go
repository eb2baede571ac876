package source

import (
	"strings"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

var gatewayKind = istioKind(kind{
	group: groupNetworking, name: "Gateway", plural: "gateways", versions: istioVersions,
	support: Partly, meaning: "only east-west gateways: see [its fields](#gateway)", fields: gatewayFields,
}, func(c *conversion, spec *networkingv1alpha3.Gateway) *FieldError {
	c.object = &snapshot.Gateway{Meta: c.meta, Kind: snapshot.KindGateway, Spec: spec}
	return checkGateway(spec)
})

func checkGateway(g *networkingv1alpha3.Gateway) *FieldError {
	if len(g.Servers) == 0 {
		return faultf("servers", "is empty: a gateway needs at least one")
	}
	if fault := labelsFault("selector", g.Selector); fault != nil {
		return fault
	}
	return each("servers", g.Servers, checkServer)
}

func checkServer(field string, s *networkingv1alpha3.Server) *FieldError {
	switch {
	case s.Port == nil:
		return faultf(field+".port", "is missing")
	case s.Port.Protocol == "":
		return faultf(field+".port.protocol", "is missing")
	}
	if fault := portFault(field+".port", s.Port.Number, s.Port.Protocol, mesh.UDP, mesh.HTTPProxy); fault != nil {
		return fault
	}
	if fault := bindFault(field+".bind", s.Bind); fault != nil {
		return fault
	}
	if len(s.Hosts) == 0 {
		return faultf(field+".hosts", "is empty: use \"*\" for every host")
	}
	for i, host := range s.Hosts {
		check := hostFault
		if strings.Contains(host, "/") {
			check = func(field, host string) *FieldError { return scopedHostFault(field, host, "* .") }
		}
		if fault := check(at(field+".hosts", i), host); fault != nil {
			return fault
		}
	}
	p, _ := mesh.ParseProtocol(s.Port.Protocol)
	isTLS := p == mesh.TLS || p == mesh.HTTPS
	switch {
	case isTLS && s.Tls == nil:
		return faultf(field+".tls", "is missing: protocol %s needs it", s.Port.Protocol)
	case !isTLS && s.Tls != nil && !s.Tls.HttpsRedirect && p.IsHTTP():
		return faultf(field+".tls", "does not go with protocol %s: use HTTPS or TLS", s.Port.Protocol)
	case !isTLS && s.Tls != nil && s.Tls.Mode == networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH:
		return faultf(field+".tls.mode", "AUTO_PASSTHROUGH needs protocol TLS, not %s", s.Port.Protocol)
	}
	return nil
}

var gatewayFields = []apiField{
	{Path: "selector", Support: Works},
	{Path: "servers", Support: Partly, Meaning: "only servers with `tls.mode: AUTO_PASSTHROUGH` are opened, on `port` and `bind`, for `hosts`", lacks: func(value proto.Message) bool {
		server, _ := value.(*networkingv1alpha3.Server)
		return server.GetTls().GetMode() != networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH
	}},
	{Path: "servers.defaultEndpoint", Support: NoEffect, Meaning: "the server name of a connection selects its destination"},
}
