// Package meshconfig reads MeshConfig and MeshNetworks from the ConfigMap of the mesh, and checks
// them.
package meshconfig

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// The name and the keys of the ConfigMap with the settings of the whole mesh.
const (
	keyMesh         = "mesh"
	keyMeshNetworks = "meshNetworks"
)

// Default returns Istio's default MeshConfig. Each call returns a new
// message.
func Default() *meshv1alpha1.MeshConfig {
	return &meshv1alpha1.MeshConfig{
		TrustDomain:            mesh.DefaultTrustDomain,
		EnableAutoMtls:         wrapperspb.Bool(true),
		RootNamespace:          mesh.DefaultSystemNamespace,
		OutboundTrafficPolicy:  &meshv1alpha1.MeshConfig_OutboundTrafficPolicy{Mode: meshv1alpha1.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY},
		LocalityLbSetting:      &networkingv1alpha3.LocalityLoadBalancerSetting{Enabled: wrapperspb.Bool(true)},
		ProxyListenPort:        mesh.PortOutbound,
		ProxyInboundListenPort: mesh.PortInbound,
		ConnectTimeout:         durationpb.New(10 * time.Second),
		DnsRefreshRate:         durationpb.New(time.Minute),

		EnableTracing:                  true,
		ProtocolDetectionTimeout:       durationpb.New(0),
		EnablePrometheusMerge:          wrapperspb.Bool(true),
		DefaultServiceExportTo:         []string{"*"},
		DefaultVirtualServiceExportTo:  []string{"*"},
		DefaultDestinationRuleExportTo: []string{"*"},
		DefaultConfig: &meshv1alpha1.ProxyConfig{
			ConfigPath:               "./etc/istio/proxy",
			BinaryPath:               "/usr/local/bin/envoy",
			ClusterName:              &meshv1alpha1.ProxyConfig_ServiceCluster{ServiceCluster: "istio-proxy"},
			DrainDuration:            durationpb.New(45 * time.Second),
			TerminationDrainDuration: durationpb.New(5 * time.Second),
			ProxyAdminPort:           mesh.PortEnvoyAdmin,
			ControlPlaneAuthPolicy:   meshv1alpha1.AuthenticationPolicy_MUTUAL_TLS,
			DiscoveryAddress:         fmt.Sprintf("istiod.%s.svc:%d", mesh.DefaultSystemNamespace, mesh.PortSecureXDS),
			StatNameLength:           189,
			StatusPort:               mesh.PortAgentStatus,
		},
	}
}

// Reader reads the settings of the whole mesh. Read may be called once.
type Reader struct {
	// Remote is set if the settings have no effect, so parts without effect are not reported.
	Remote bool
	// RefusedGateway returns why the address of a gateway is not used, or "".
	RefusedGateway func(host string) string
	// Warnings holds the parts of the settings that are not used.
	Warnings []*fields.Error
}

func (c *Reader) warn(w *fields.Error) { c.Warnings = append(c.Warnings, w.Each()...) }

// Read returns MeshConfig, with Istio's defaults, and MeshNetworks from the keys of the ConfigMap.
func (c *Reader) Read(data map[string]string) (*meshv1alpha1.MeshConfig, *meshv1alpha1.MeshNetworks, *fields.Error) {
	m, networks := Default(), &meshv1alpha1.MeshNetworks{}
	given := &meshv1alpha1.MeshConfig{}
	doc, fault := c.embedded(keyMesh, data[keyMesh], given)
	if fault != nil {
		return nil, nil, fault
	}
	overlay(m.ProtoReflect(), given.ProtoReflect(), doc)
	if fault = inText(keyMesh, doc, checkMeshConfig(m)); fault != nil {
		return nil, nil, fault
	}
	if fault = inText(keyMesh, doc, c.checkCACertificates(m, doc)); fault != nil {
		return nil, nil, fault
	}
	c.checkAccessLog(m, doc)
	c.checkTracing(m, doc)
	c.checkProxySettings(m, doc)
	if !c.Remote {
		for _, w := range append(meshWithoutEffect(given, doc), valuesWithoutEffect(m)...) {
			c.warn(inText(keyMesh, doc, w))
		}
	}
	if doc, fault = c.embedded(keyMeshNetworks, data[keyMeshNetworks], networks); fault != nil {
		return nil, nil, fault
	}
	if fault = inText(keyMeshNetworks, doc, c.checkMeshNetworks(networks, doc)); fault != nil {
		return nil, nil, fault
	}
	return m, networks, nil
}

// embedded decodes the YAML text in a key of the ConfigMap. An unknown field is only a
// warning: it may belong to a later version of Istio, and refusing the whole text would
// do more harm.
func (c *Reader) embedded(key, text string, into proto.Message) (yamldoc.Value, *fields.Error) {
	doc, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte(text), Line: 1})
	if err != nil {
		var at *yamldoc.Error
		errors.As(err, &at)
		return doc, &fields.Error{Field: "data." + key, TextLine: at.Line, TextFirst: at.First, Err: errors.New(at.Reason)}
	}
	if doc.IsNull() {
		return doc, nil
	}
	if fault := fields.YamlSizeFault(doc); fault != nil {
		return doc, inText(key, doc, fault)
	}
	fault := fields.DecodeProto(doc, into, fields.Strict)
	if fault == nil {
		return doc, nil
	}
	if fields.DecodeProto(doc, into, fields.Lenient) != nil {
		return doc, inText(key, doc, fault)
	}
	c.warn(inText(key, doc, fault))
	return doc, nil
}

// inText converts a fault in an embedded document to a fault of the key that holds the
// document.
func inText(key string, doc yamldoc.Value, fault *fields.Error) *fields.Error {
	if fault == nil {
		return nil
	}
	out := &fields.Error{Field: "data." + key, TextLine: doc.LineOf(fault.Field), Err: &fields.Error{Field: fault.Field, Err: fault.Err}, Left: fault.Left}
	for _, f := range fault.Further {
		out.Further = append(out.Further, inText(key, doc, f))
	}
	return out
}

// overlay merges the given values into the defaults: scalars and lists replace,
// messages and maps merge. A field counts as given if the document has it, even with
// the zero value.
func overlay(base, given protoreflect.Message, doc yamldoc.Value) {
	descriptors := given.Descriptor().Fields()
	for i := range descriptors.Len() {
		fd := descriptors.Get(i)
		value := doc.Get(fd.JSONName())
		if value.IsNull() {
			value = doc.Get(string(fd.Name()))
		}
		if value.IsNull() {
			continue
		}
		switch {
		case fd.IsMap():
			m := base.Mutable(fd).Map()
			given.Get(fd).Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				m.Set(k, v)
				return true
			})
		case fd.IsList() || fd.Message() == nil || fields.IsWellKnown(fd.Message()):
			base.Set(fd, given.Get(fd))
		default:
			overlay(base.Mutable(fd).Message(), given.Get(fd).Message(), value)
		}
	}
}

func checkMeshConfig(m *meshv1alpha1.MeshConfig) *fields.Error {
	var faults *fields.Error
	// Istio accepts the form of an account name, which SPIFFE forbids.
	m.TrustDomain = strings.ReplaceAll(m.TrustDomain, "@", ".")
	for i, alias := range m.TrustDomainAliases {
		m.TrustDomainAliases[i] = strings.ReplaceAll(alias, "@", ".")
	}
	if !mesh.IsTrustDomain(m.TrustDomain) {
		faults = faults.And(fields.Faultf("trustDomain", "%q is not a SPIFFE trust domain", m.TrustDomain))
	}
	for i, alias := range m.TrustDomainAliases {
		if !mesh.IsTrustDomain(alias) {
			faults = faults.And(fields.Faultf(fmt.Sprintf("trustDomainAliases[%d]", i), "%q is not a SPIFFE trust domain", alias))
		}
	}
	if !mesh.IsDNSLabel(m.RootNamespace) {
		faults = faults.And(fields.Faultf("rootNamespace", "%q is not a DNS label", m.RootNamespace))
	}
	if d := m.ConnectTimeout; d.CheckValid() != nil || d.AsDuration() <= 0 || d.AsDuration() > time.Hour {
		faults = faults.And(fields.Faultf("connectTimeout", "must be more than 0 and at most 1h"))
	}
	for _, p := range []struct {
		field string
		port  int32
	}{{"proxyListenPort", m.ProxyListenPort}, {"proxyInboundListenPort", m.ProxyInboundListenPort}} {
		if !fields.IsPort(p.port) {
			faults = faults.And(fields.Faultf(p.field, "%d is not a port: want 1 to 65535", p.port))
		}
	}
	if m.ProxyListenPort == m.ProxyInboundListenPort {
		faults = faults.And(fields.Faultf("proxyInboundListenPort", "is the same as proxyListenPort"))
	}
	faults = faults.And(httpProxyPortFault(m))
	if d := m.ProtocolDetectionTimeout; d.CheckValid() != nil || d.AsDuration() < 0 || d.AsDuration() > time.Hour {
		faults = faults.And(fields.Faultf("protocolDetectionTimeout", "must be 0, for no timeout, or at most 1h"))
	}
	if r := m.DefaultHttpRetryPolicy; r.GetAttempts() < 0 {
		faults = faults.And(fields.Faultf("defaultHttpRetryPolicy.attempts", "is negative"))
	} else if d := r.GetBackoff(); d != nil && (d.CheckValid() != nil || d.AsDuration() < time.Millisecond || d.AsDuration() > time.Hour) {
		faults = faults.And(fields.Faultf("defaultHttpRetryPolicy.backoff", "must be from 1ms to 1h"))
	}
	if k := m.TcpKeepalive; k != nil {
		faults = fields.AllFaults(faults, fields.DurationFault("tcpKeepalive.time", k.Time, time.Second), fields.DurationFault("tcpKeepalive.interval", k.Interval, time.Second))
	}
	faults = faults.And(fields.LocalitiesFault("localityLbSetting", m.LocalityLbSetting))
	faults = faults.And(fields.EachText("defaultServiceExportTo", m.DefaultServiceExportTo, fields.ExportToFault))
	for i, s := range m.DiscoverySelectors {
		faults = faults.And(selectorFault(fmt.Sprintf("discoverySelectors[%d]", i), s))
	}
	for i, p := range m.GetServiceEntryVisibility().GetPolicies() {
		for j, rule := range p.GetMatchingRules() {
			field := fmt.Sprintf("serviceEntryVisibility.policies[%d].matchingRules[%d].namespaceSelector", i, j)
			if rule.GetNamespaceSelector() == nil {
				faults = faults.And(fields.Faultf(field, "is missing"))
				continue
			}
			faults = faults.And(selectorFault(field, rule.GetNamespaceSelector()))
		}
	}
	policy := m.GetDefaultTrafficPolicy()
	return fields.AllFaults(
		faults,
		fields.ConnectionPoolFault("defaultTrafficPolicy.connectionPool", policy.GetConnectionPool()),
		fields.OutlierDetectionFault("defaultTrafficPolicy.outlierDetection", policy.GetOutlierDetection()),
		tlsFault("meshMTLS", m.MeshMTLS), tlsFault("tlsDefaults", m.TlsDefaults),
	)
}

// httpProxyPortFault refuses ports of the loopback address that proxies or their agents have.
func httpProxyPortFault(m *meshv1alpha1.MeshConfig) *fields.Error {
	const field = "proxyHttpPort"
	switch port := m.ProxyHttpPort; {
	case port == 0:
		return nil
	case !fields.IsPort(port):
		return fields.Faultf(field, "%d is not a port: want 1 to 65535, or 0 for none", port)
	case port == m.ProxyListenPort:
		return fields.Faultf(field, "is the same as proxyListenPort")
	case port == m.ProxyInboundListenPort:
		return fields.Faultf(field, "is the same as proxyInboundListenPort")
	case slices.Contains([]int32{
		m.DefaultConfig.GetProxyAdminPort(), cmp.Or(m.DefaultConfig.GetStatusPort(), mesh.PortAgentStatus),
		mesh.PortEnvoyReadiness, mesh.PortAgentDNS, mesh.PortEnvoyPrometheus,
	}, port):
		return fields.Faultf(field, "%d is a port of the proxy or of its agent", port)
	}
	return nil
}

// selectorFault refuses an unknown operator: with it, a namespace could be in the mesh
// against the will of the user.
func selectorFault(field string, s *meshv1alpha1.LabelSelector) *fields.Error {
	for i, e := range s.GetMatchExpressions() {
		field := fmt.Sprintf("%s.matchExpressions[%d]", field, i)
		switch e.GetOperator() {
		case "In", "NotIn":
			if len(e.GetValues()) == 0 {
				return fields.Faultf(field+".values", "is missing")
			}
		case "Exists", "DoesNotExist":
			if len(e.GetValues()) > 0 {
				return fields.Faultf(field+".values", "operator %s has no values", e.GetOperator())
			}
		default:
			return fields.Faultf(field+".operator", "%q is none of In, NotIn, Exists, DoesNotExist", e.GetOperator())
		}
		if e.GetKey() == "" {
			return fields.Faultf(field+".key", "is missing")
		}
	}
	return nil
}

// tlsFault refuses unknown names. Envoy would refuse all clusters and listeners because of
// one, and ignoring a name could weaken the protection.
func tlsFault(field string, c *meshv1alpha1.MeshConfig_TLSConfig) *fields.Error {
	for i, name := range c.GetEcdhCurves() {
		field := fmt.Sprintf("%s.ecdhCurves[%d]", field, i)
		switch {
		case !slices.Contains(mesh.KeyExchangeNames(), name):
			return fields.Faultf(field, "%q is none of %s", name, strings.Join(mesh.KeyExchangeNames(), ", "))
		case slices.Contains(c.EcdhCurves[:i], name):
			return fields.Faultf(field, "%q is there twice", name)
		}
	}
	for i, name := range c.GetCipherSuites() {
		if !mesh.IsCipherSuite(name) {
			return fields.Faultf(fmt.Sprintf("%s.cipherSuites[%d]", field, i), "%q is no cipher suite of Envoy", name)
		}
	}
	return nil
}

func (c *Reader) checkMeshNetworks(n *meshv1alpha1.MeshNetworks, doc yamldoc.Value) *fields.Error {
	for _, name := range slices.Sorted(maps.Keys(n.Networks)) {
		field, network := "networks["+name+"]", n.Networks[name]
		if network == nil {
			return fields.Faultf(field, "is empty")
		}
		for i, e := range network.Endpoints {
			field := fmt.Sprintf("%s.endpoints[%d]", field, i)
			if cidr := e.GetFromCidr(); cidr != "" {
				if _, err := netip.ParsePrefix(cidr); err != nil {
					return fields.Faultf(field+".fromCidr", "%q is not an address range such as 10.0.0.0/8", cidr)
				}
			} else if e.GetFromRegistry() == "" {
				return fields.Faultf(field, "has neither fromRegistry nor fromCidr")
			}
		}
		for i, g := range network.Gateways {
			if fault := checkNetworkGateway(fmt.Sprintf("%s.gateways[%d]", field, i), g); fault != nil {
				return fault
			}
		}
		kept := network.Gateways[:0]
		for i, g := range network.Gateways {
			if why := c.RefusedGateway(g.GetAddress()); why != "" {
				at := fmt.Sprintf("%s.gateways[%d].address", field, i)
				c.warn(inText(keyMeshNetworks, doc, fields.Faultf(at, "%s %s: it is not used", g.GetAddress(), why)))
				continue
			}
			kept = append(kept, g)
		}
		network.Gateways = slices.Clip(kept)
	}
	return nil
}

func checkNetworkGateway(field string, g *meshv1alpha1.Network_IstioNetworkGateway) *fields.Error {
	address := g.GetAddress()
	switch {
	case address == "" && g.GetRegistryServiceName() == "":
		return fields.Faultf(field, "has neither address nor registryServiceName")
	case !fields.IsPort(g.GetPort()):
		return fields.Faultf(field+".port", "%d is not a port: want 1 to 65535", g.GetPort())
	case address != "":
		if _, err := fields.ParseAddr(address); err != nil {
			return fields.HostFault(field+".address", address)
		}
	}
	return nil
}
