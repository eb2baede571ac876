package xdsgen_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// hostileHosts lead a proxy to its own machine or network. hostileAddresses are not only hosts.
var (
	hostileHosts = []string{
		"127.0.0.1", "127.8.9.10", "127.0.0.6", "::1", "::6", "0.0.0.0", "0.1.2.3", "::", "::ffff:127.0.0.1", "::ffff:7f00:1", "64:ff9b::7f00:1", "::127.0.0.1",
		"127.1", "0x7f.1", "0x7f000001", "2130706433", "0177.0.0.1", "0",
		"localhost", "LOCALHOST", "localhost.", "a.localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback", "ip6-loopback.",
		"169.254.169.254", "169.254.1.1", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "metadata.google.internal", "224.0.0.1", "ff02::1",
	}
	hostileAddresses = append([]string{
		"127.0.0.1:15000", "0.0.0.0:15020", "[::1]:15000", "127.0.0.1:15053", "127.0.0.1:15463", "localhost:15000", "127.0.0.0/8", "::1/128", "http://127.0.0.1:15000/", "https://localhost/keys",
		"unix:///etc/istio/proxy/XDS", "unix:///var/run/secrets/workload-spiffe-uds/socket", "unix://@agent", "unix://etc/istio/proxy/XDS",
		"unix:///run/apps/../../etc/istio/proxy/XDS", "unix:/etc/istio/proxy/XDS", "/etc/istio/proxy/XDS", "file:///etc/istio/proxy/XDS",
		"outbound|80||a.ns0.svc.cluster.local", "prometheus_stats", "xds-grpc", "sds-grpc", "agent",
	}, hostileHosts...)
)

// fewAddresses are the values of texts that lead nowhere: one of each sort.
var fewAddresses = []string{"127.0.0.1", "127.0.0.1:15000", "localhost", "ip6-loopback", "unix:///etc/istio/proxy/XDS", "http://127.0.0.1:15000/", "xds-grpc", "/etc/istio/proxy/XDS"}

// textFields classifies each text in the API of Istio. leads tells whether it leads a proxy somewhere,
// and is then a value that a proxy uses; a text that leads nowhere has a reason.
var textFields = []struct{ leads, reason, fields string }{
	{leads: "198.51.100.7", fields: "Server.bind WorkloadEntry.address ServiceEntry.addresses"},
	{leads: "outside.example.net", fields: "ServiceEntry.hosts"},
	{leads: "127.0.0.1:8080", fields: "IstioIngressListener.default_endpoint"},
	{leads: "198.51.100.7", fields: "IstioIngressListener.bind IstioEgressListener.bind"},
	{reason: "it names a service or a listener of the mesh; the proxy has no cluster of another name", fields: `
		Destination.host Destination.subset DestinationRule.host VirtualService.hosts VirtualService.gateways HTTPMatchRequest.gateways L4MatchAttributes.gateways
		TLSMatchAttributes.gateways Delegate.name Delegate.namespace Server.hosts Server.name IstioEgressListener.hosts Port.name ServicePort.name SidecarPort.name
		HTTPRoute.name Subset.name Port.protocol ServicePort.protocol SidecarPort.protocol`},
	{reason: "it has no effect", fields: `
		Server.default_endpoint HTTPFaultInjection.Abort.http2_error WasmConfig.verification_key WasmPlugin.verification_key MetricSelector.custom_metric`},
	{reason: "the server behind the tunnel resolves it, not the proxy", fields: "TunnelSettings.target_host TunnelSettings.protocol"},
	{reason: "the control plane fetches it, behind dial.Guard", fields: "JWTRule.jwks_uri JWTRule.issuer"},
	{reason: "the agents of the namespace fetch it, behind dial.Guard; a file is one of the proxy's machine, which Envoy runs as WebAssembly", fields: "WasmConfig.url WasmPlugin.url"},
	{reason: "it is a file with certificates or keys on the machine of the proxy, which no caller gets", fields: `
		ClientTLSSettings.ca_certificates ClientTLSSettings.ca_crl ClientTLSSettings.client_certificate ClientTLSSettings.private_key ServerTLSSettings.ca_certificates
		ServerTLSSettings.ca_crl ServerTLSSettings.private_key ServerTLSSettings.server_certificate TLSCertificate.ca_certificates TLSCertificate.private_key
		TLSCertificate.server_certificate`},
	{reason: "it names a Secret or ConfigMap", fields: `
		ClientTLSSettings.credential_name ServerTLSSettings.ca_cert_credential_name ServerTLSSettings.credential_name ServerTLSSettings.credential_names
		WasmConfig.image_pull_secret WasmPlugin.image_pull_secret`},
	{reason: "it names a provider in MeshConfig, which the operator writes", fields: "AuthorizationPolicy.ExtensionProvider.name ProviderRef.name"},
	{reason: "it selects workloads, namespaces or endpoints, or describes them", fields: `
		Gateway.selector Subset.labels WorkloadSelector.labels WorkloadSelector.match_labels WorkloadEntry.labels WorkloadEntry.locality WorkloadEntry.network WorkloadEntry.ports
		WorkloadEntry.service_account ObjectMeta.annotations ObjectMeta.labels DestinationRule.export_to ServiceEntry.export_to VirtualService.export_to
		Distribute.from Distribute.to Failover.from Failover.to LocalityLoadBalancerSetting.failover_priority ZoneAwareLoadBalancerSetting.failover_priority
		PolicyTargetReference.group PolicyTargetReference.kind PolicyTargetReference.name PolicyTargetReference.namespace PeerAuthentication.port_level_mtls`},
	{reason: "it is compared with a part of a request, a connection or a certificate", fields: `
		ClientTLSSettings.subject_alt_names ServerTLSSettings.subject_alt_names ServiceEntry.subject_alt_names ServerTLSSettings.verify_certificate_hash
		ServerTLSSettings.verify_certificate_spki ServerTLSSettings.cipher_suites StringMatch.exact StringMatch.prefix StringMatch.regex HTTPMatchRequest.headers
		HTTPMatchRequest.without_headers HTTPMatchRequest.query_params HTTPMatchRequest.source_labels HTTPMatchRequest.source_namespace HTTPMatchRequest.name
		HTTPMatchRequest.stat_prefix L4MatchAttributes.destination_subnets L4MatchAttributes.source_labels L4MatchAttributes.source_namespace
		L4MatchAttributes.source_subnet TLSMatchAttributes.destination_subnets TLSMatchAttributes.sni_hosts TLSMatchAttributes.source_labels
		TLSMatchAttributes.source_namespace CorsPolicy.allow_headers CorsPolicy.allow_methods CorsPolicy.allow_origin CorsPolicy.expose_headers HTTPRetry.retry_on
		RegexRewrite.match HTTPCookie.name HTTPCookie.path Attribute.name Attribute.value ConsistentHashLB.http_header_name ConsistentHashLB.http_query_parameter_name
		Condition.key Condition.not_values Condition.values JWTHeader.name JWTHeader.prefix JWTRule.audiences JWTRule.from_cookies JWTRule.from_params JWTRule.jwks
		JWTRule.space_delimited_claims ClaimToHeader.claim Operation.hosts Operation.methods Operation.not_hosts Operation.not_methods Operation.not_paths
		Operation.not_ports Operation.paths Operation.ports Source.ip_blocks Source.namespaces Source.not_ip_blocks Source.not_namespaces Source.not_principals
		Source.not_remote_ip_blocks Source.not_request_principals Source.not_service_accounts Source.not_trust_domains Source.principals Source.remote_ip_blocks
		Source.request_principals Source.service_accounts Source.trust_domains Filter.expression`},
	{reason: "it is sent to a client or a server, or recorded", fields: `
		ClientTLSSettings.sni HTTPBody.bytes HTTPBody.string HTTPHeader.name HTTPHeader.value HTTPRedirect.authority HTTPRedirect.prefix_rewrite HTTPRedirect.scheme
		HTTPRedirect.uri HTTPRewrite.authority HTTPRewrite.uri RegexRewrite.rewrite HeaderOperations.add HeaderOperations.remove HeaderOperations.set
		Abort.grpc_status ClaimToHeader.header JWTRule.output_payload_to_header TagOverride.value MetricsOverrides.tag_overrides Environment.default_value
		Environment.name Formatter.value Literal.value RequestHeader.default_value RequestHeader.name Tracing.custom_tags`},
	{reason: "it configures proxies of its own namespace only, whose owner can run any program there", fields: `
		EnvVar.name EnvVar.value LuaConfig.inline_code WasmConfig.plugin_name WasmConfig.sha256 WasmPlugin.plugin_name WasmPlugin.sha256
		ProxyConfig.environment_variables ProxyImage.image_type ClusterMatch.name ClusterMatch.service ClusterMatch.subset FilterChainMatch.application_protocols
		FilterChainMatch.name FilterChainMatch.sni FilterChainMatch.transport_protocol FilterMatch.name SubFilterMatch.name ListenerMatch.listener_filter
		ListenerMatch.name ListenerMatch.port_name ProxyMatch.metadata ProxyMatch.proxy_version RouteMatch.name VirtualHostMatch.domain_name VirtualHostMatch.name
		RouteConfigurationMatch.gateway RouteConfigurationMatch.name RouteConfigurationMatch.port_name Struct.fields Value.string_value`},
	{reason: "the agent of a workload reads its probe from its own PROXY_CONFIG, not from the WorkloadGroup", fields: `
		ExecHealthCheckConfig.command GrpcHealthCheckConfig.service HTTPHealthCheckConfig.host HTTPHealthCheckConfig.path HTTPHealthCheckConfig.scheme TCPHealthCheckConfig.host`},
}

// usableSpecs are valid specs with many fields, for each kind that needs some. HOST stands for the
// host of an object.
var usableSpecs = map[string][]string{
	"VirtualService": {
		"{hosts: [HOST], gateways: [mesh, edge/g], http: [{match: [{uri: {prefix: /}}], route: [{destination: {host: a.ns0.svc.cluster.local, port: {number: 80}}}]}]}",
		"{hosts: [HOST], gateways: [mesh, edge/g], http: [{match: [{uri: {prefix: /}}], redirect: {uri: /x}}]}",
		"{hosts: [HOST], gateways: [mesh, edge/g], http: [{match: [{uri: {prefix: /}}], directResponse: {status: 200}}]}",
		"{hosts: [HOST], gateways: [mesh, edge/g], tls: [{match: [{sniHosts: [HOST]}], route: [{destination: {host: a.ns0.svc.cluster.local, port: {number: 82}}}]}], tcp: [{route: [{destination: {host: a.ns0.svc.cluster.local, port: {number: 81}}}]}]}",
	},
	"DestinationRule": {"{host: HOST, exportTo: ['*'], trafficPolicy: {tls: {mode: SIMPLE}}, subsets: [{name: v1}]}"},
	"ServiceEntry": {
		"{hosts: [HOST], resolution: DNS, ports: [{name: http, number: 80, protocol: HTTP, targetPort: 15000}]}",
		"{hosts: [HOST], resolution: DNS, ports: [{name: http, number: 80, protocol: HTTP, targetPort: 15000}], endpoints: [{address: e.example.net}]}",
		"{hosts: [HOST], resolution: DNS_ROUND_ROBIN, ports: [{name: http, number: 80, protocol: HTTP, targetPort: 15000}], endpoints: [{address: e.example.net}]}",
		"{hosts: [HOST], resolution: STATIC, ports: [{name: http, number: 80, protocol: HTTP, targetPort: 15000}], endpoints: [{address: 192.0.2.1}]}",
		"{hosts: [HOST], resolution: NONE, ports: [{name: tcp, number: 4000, protocol: TCP, targetPort: 15000}], addresses: [192.0.2.9]}",
		"{hosts: [HOST], resolution: STATIC, ports: [{name: tcp, number: 4000, protocol: TCP}], addresses: [192.0.2.9], endpoints: [{address: 192.0.2.1}]}",
	},
	"WorkloadEntry": {"{address: 192.0.2.1, labels: {of: tenant}}"},
	"Gateway": {
		"{selector: {istio: gw}, servers: [{hosts: [HOST], port: {name: http, number: 80, protocol: HTTP}}]}",
		"{selector: {istio: gw}, servers: [{hosts: [HOST], port: {name: http, number: 0, protocol: HTTP}}]}",
		"{selector: {istio: gw}, servers: [{hosts: [HOST], port: {name: tls, number: 443, protocol: TLS}, tls: {mode: SIMPLE, serverCertificate: /c, privateKey: /k}}]}",
	},
	"Sidecar": {
		"{ingress: [{port: {number: 9080, protocol: HTTP}}], egress: [{hosts: ['*/*']}]}",
		"{ingress: [{port: {number: 9080, protocol: HTTP}, captureMode: NONE}], egress: [{port: {number: 9000, protocol: HTTP}, captureMode: NONE, hosts: ['*/*']}]}",
		"{egress: [{port: {number: 0, protocol: HTTP}, hosts: ['*/*']}]}",
	},
	"EnvoyFilter":           {"{configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: 3s}}}]}"},
	"AuthorizationPolicy":   {"{rules: [{to: [{operation: {paths: [/a]}}]}]}"},
	"RequestAuthentication": {"{jwtRules: [{issuer: a, jwksUri: 'https://a.example/keys'}]}"},
	"Telemetry":             {"{accessLogging: [{providers: [{name: envoy}]}]}"},
	"WasmPlugin":            {"{url: 'https://a.example/module'}"},
	"TrafficExtension":      {"{wasm: {url: 'https://a.example/module'}}", "{lua: {inlineCode: a}}"},
}

// tenantMesh adds a shared gateway, a service that selects WorkloadEntries, and the addresses of a
// gateway of another network to fuzzedMesh.
const tenantMesh = fuzzedMesh + `
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: edge}
spec:
  selector: {istio: gw}
  servers: [{hosts: ["*"], port: {name: all, number: 80, protocol: HTTP}}]
`

// TestNoTextLeadsProxiesOfOthersHome drives each text of each kind of Istio with hostile values, in
// objects of a tenant in a Kubernetes API. No proxy of another namespace may get an address of its own
// machine or network, nor the name of a cluster that its agent made. No proxy of the tenant may
// get a Unix socket, or an endpoint at a port of its own agent.
func TestNoTextLeadsProxiesOfOthersHome(t *testing.T) {
	t.Parallel()
	classes, missing := classesOfTexts(), map[string]bool{}
	base, known := decodeObjects(t, "c1", "mesh", []byte(tenantMesh)), map[string]map[string]bool{}
	clean := addressesOf(t, build(t, []mesh.ClusterID{"c1"}, base), foreignProxies(), known)
	for _, of := range specs {
		variants := usableSpecs[of.kind]
		if variants == nil {
			variants = []string{"{}"}
		}
		for _, path := range textsIn(of.spec.ProtoReflect().Descriptor(), nil) {
			name := fieldName(path[len(path)-1])
			class, classified := classes[name]
			if !classified {
				t.Errorf("%s.%s is not classified: does it lead a proxy somewhere? add it to textFields", of.kind, name)
				continue
			}
			d := driver{t: t, kind: of.kind, apiVersion: of.apiVersion, spec: of.spec, path: path, base: base, clean: clean, known: known}
			for _, variant := range variants {
				values := append(slices.Clone(hostileAddresses), class.leads)
				if class.leads == "" {
					values = fewAddresses
				}
				if d.drive(variant, values); d.found(class.leads) {
					missing[name] = false
				} else if _, seen := missing[name]; !seen && class.leads != "" {
					missing[name] = true
				}
			}
		}
	}
	for name, is := range missing {
		if is {
			t.Errorf("%s leads nowhere with a usable value: this test does not reach it", name)
		}
	}
}

type textClass struct{ leads, reason string }

func classesOfTexts() map[string]textClass {
	out := map[string]textClass{}
	for _, c := range textFields {
		for field := range strings.FieldsSeq(c.fields) {
			outer := strings.LastIndexByte(field[:strings.LastIndexByte(field, '.')], '.')
			out[field[outer+1:]] = textClass{c.leads, c.reason}
		}
	}
	return out
}

// fieldName returns the name of a field with its message in front.
func fieldName(field protoreflect.FieldDescriptor) string {
	return string(field.Parent().Name()) + "." + string(field.Name())
}

// textsIn returns the paths of all texts below a message, each message at most once on a path.
func textsIn(m protoreflect.MessageDescriptor, path []protoreflect.FieldDescriptor) [][]protoreflect.FieldDescriptor {
	var out [][]protoreflect.FieldDescriptor
	for i := range m.Fields().Len() {
		field := m.Fields().Get(i)
		at := append(slices.Clone(path), field)
		below := field.Message()
		if field.IsMap() {
			out = append(out, at) // its keys are texts
			below = field.MapValue().Message()
		}
		switch {
		case below != nil && below.FullName() == "google.protobuf.Struct", below == nil && (field.IsMap() || field.Kind() != protoreflect.StringKind && field.Kind() != protoreflect.BytesKind):
		case below == nil:
			out = append(out, at)
		case !slices.ContainsFunc(at, func(f protoreflect.FieldDescriptor) bool { return f.Parent() == below }):
			out = append(out, textsIn(below, at)...)
		}
	}
	return out
}

// setText sets the text at a path wherever the message has it, and makes the messages that are
// missing.
func setText(m protoreflect.Message, path []protoreflect.FieldDescriptor, text string) {
	field := path[0]
	value := protoreflect.ValueOfString(text)
	if field.Kind() == protoreflect.BytesKind {
		value = protoreflect.ValueOfBytes([]byte(text))
	}
	switch last := len(path) == 1; {
	case field.IsMap():
		entries := m.Mutable(field).Map()
		key := protoreflect.ValueOfString("x").MapKey()
		if field.MapKey().Kind() != protoreflect.StringKind {
			key = protoreflect.ValueOfUint32(80).MapKey()
		}
		switch field.MapValue().Kind() {
		case protoreflect.MessageKind:
			of := entries.NewValue()
			if !last {
				setText(of.Message(), path[1:], text)
			}
			entries.Set(key, of)
		case protoreflect.StringKind:
			entries.Set(key, value)
		case protoreflect.Uint32Kind:
			entries.Set(protoreflect.ValueOfString(text).MapKey(), protoreflect.ValueOfUint32(15000))
		}
	case field.IsList():
		list := m.Mutable(field).List()
		if last {
			list.Truncate(0)
			list.Append(value)
			return
		}
		if list.Len() == 0 {
			list.Append(list.NewElement())
		}
		for i := range list.Len() {
			setText(list.Get(i).Message(), path[1:], text)
		}
	case last:
		m.Set(field, value)
	default:
		setText(m.Mutable(field).Message(), path[1:], text)
	}
}

// driver makes objects with values of one field.
type driver struct {
	t                *testing.T
	kind, apiVersion string
	spec             proto.Message
	path             []protoreflect.FieldDescriptor
	base             []snapshot.Event
	clean            map[string]bool
	known            map[string]map[string]bool // see addressesOf
	all              map[string]bool            // addresses of all proxies after drive
}

// drive puts an object for each value into the mesh, each in a namespace of its own, and checks what
// proxies get.
func (d *driver) drive(variant string, values []string) {
	d.t.Helper()
	conv := source.Converter{Cluster: "c1", RefuseLocal: true}
	events, owners := slices.Clone(d.base), []proxy.Node{}
	for i, value := range values {
		if value == "" {
			continue
		}
		ns := fmt.Sprintf("tenant%d", i)
		text, err := yaml.YAMLToJSON([]byte(strings.ReplaceAll(variant, "HOST", fmt.Sprintf("h%d.example", i))))
		if err != nil {
			d.t.Fatal(err)
		}
		m := proto.Clone(d.spec)
		if err := protojson.Unmarshal(text, m); err != nil {
			d.t.Fatalf("%s: %v", variant, err)
		}
		setText(m.ProtoReflect(), d.path, value)
		spec, err := protojson.Marshal(m)
		if err != nil {
			continue // the text is not UTF-8 in bytes
		}
		document, err := json.Marshal(map[string]any{
			"apiVersion": d.apiVersion, "kind": d.kind, "spec": json.RawMessage(spec),
			"metadata": map[string]any{"name": "x", "namespace": ns},
		})
		if err != nil {
			d.t.Fatal(err)
		}
		doc, err := yamldoc.Parse(yamldoc.Chunk{Text: document, Line: 1})
		if err != nil {
			continue
		}
		if r, err := conv.Decode(doc, snapshot.Place{}); err == nil && r.Object != nil {
			events = append(events, snapshot.Event{Key: r.Key, Object: r.Object})
			owners = append(owners, proxyOf(mesh.Sidecar, ns, i%2 == 0), proxyOf(mesh.Sidecar, ns, i%2 == 1))
		}
	}
	if d.kind == "WorkloadEntry" || d.kind == "WorkloadGroup" {
		for i := range values {
			events = append(events, decodeObjects(d.t, "c1", "mesh", fmt.Appendf(nil, "{apiVersion: v1, kind: Service, metadata: {name: vms%d, namespace: tenant%d}, spec: {selector: {of: tenant}, ports: [{port: 80}]}}", i, i))...)
		}
	}
	s := build(d.t, []mesh.ClusterID{"c1"}, events)
	d.all = addressesOf(d.t, s, foreignProxies(), d.known)
	at := d.kind + "." + fieldName(d.path[len(d.path)-1])
	for address := range d.all {
		if !d.clean[address] && isHostile(address) {
			d.t.Errorf("%s: a proxy of another namespace gets %s\nin %s", at, address, variant)
		}
	}
	if d.kind != "Sidecar" {
		return
	}
	for address := range addressesOf(d.t, s, owners, d.known) {
		if d.all[address] = true; isOwnPort(address) {
			d.t.Errorf("%s: a proxy of the tenant gets %s\nin %s", at, address, variant)
		}
	}
}

// found reports whether a proxy got a host.
func (d *driver) found(host string) bool {
	for address := range d.all {
		if host != "" && strings.Contains(address, " "+strings.Replace(host, ":", " ", 1)) {
			return true
		}
	}
	return false
}

// ownCluster matches the names of the clusters that a control plane makes.
var ownCluster = regexp.MustCompile(`^(outbound\||outbound_\.|inbound\|[0-9]+\|\||PassthroughCluster$|BlackHoleCluster$|InboundPassthroughCluster$)`)

// isHostile judges an address as addressesOf returns it.
func isHostile(address string) bool {
	what, value, _ := strings.Cut(address, " ")
	host, _, _ := strings.Cut(value, " ")
	switch what {
	case "cluster":
		return !ownCluster.MatchString(value)
	case "listener":
		_, err := netip.ParseAddr(host) // a proxy that listens at an address leads nobody there
		return err != nil
	case "endpoint":
		return mesh.HostKindOf(host) != mesh.AddressOrdinary
	}
	return true
}

// isOwnPort reports whether an address is a Unix socket, or an endpoint of the proxy itself.
func isOwnPort(address string) bool {
	what, value, _ := strings.Cut(address, " ")
	host, port, _ := strings.Cut(value, " ")
	number := uint32(0)
	_, _ = fmt.Sscan(port, &number)
	return what == "pipe" || what == "endpoint" && mesh.HostKindOf(host) != mesh.AddressOrdinary && mesh.IsProxyPort(number)
}

func proxyOf(typ mesh.NodeType, ns string, captured bool) proxy.Node {
	ip := netip.MustParseAddr("10.0.0.200")
	return proxy.Node{
		ID:      mesh.NodeID{Type: typ, IP: ip, Name: "p", Namespace: ns, Domain: "x"},
		Cluster: "c1", Namespace: ns, Labels: map[string]string{"istio": "gw"}, IPs: []netip.Addr{ip}, Captured: captured,
	}
}

// foreignProxies are the proxies that a tenant must not lead anywhere.
func foreignProxies() []proxy.Node {
	return []proxy.Node{proxyOf(mesh.Router, "edge", true), proxyOf(mesh.Sidecar, "ns0", true), proxyOf(mesh.Sidecar, "ns1", false)}
}

// addressesOf returns the addresses and names of clusters in the resources of proxies: "listener IP
// PORT", "endpoint HOST PORT", "pipe PATH", "url URL" and "cluster NAME". known holds them for each
// encoded resource that was seen before.
func addressesOf(t *testing.T, s *snapshot.Snapshot, nodes []proxy.Node, known map[string]map[string]bool) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for _, node := range nodes {
		for _, resources := range generate(t, s, node) {
			for _, r := range resources {
				a, err := r.Any()
				if err != nil {
					t.Fatal(err)
				}
				if known[string(a.GetValue())] == nil {
					m, err := anypb.UnmarshalNew(a, proto.UnmarshalOptions{Resolver: resolver(t)})
					if err != nil {
						t.Fatal(err)
					}
					found := map[string]bool{}
					_, isListener := m.(*listenerv3.Listener)
					collect(t, m.ProtoReflect(), isListener, found)
					known[string(a.GetValue())] = found
				}
				maps.Copy(out, known[string(a.GetValue())])
			}
		}
	}
	return out
}

func collect(t *testing.T, m protoreflect.Message, listener bool, out map[string]bool) {
	t.Helper()
	switch m := m.Interface().(type) {
	case *anypb.Any:
		if inner, err := anypb.UnmarshalNew(m, proto.UnmarshalOptions{Resolver: resolver(t)}); err == nil {
			collect(t, inner.ProtoReflect(), false, out)
		}
		return
	case *corev3.SocketAddress:
		what := "endpoint"
		if listener {
			what = "listener"
		}
		out[fmt.Sprintf("%s %s %d", what, m.GetAddress(), m.GetPortValue())] = true
	case *corev3.Pipe:
		out["pipe "+m.GetPath()] = true
	case *corev3.HttpUri:
		out["url "+m.GetUri()] = true
	case *corev3.CidrRange:
		return
	}
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsMap():
			if field.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool {
					collect(t, v.Message(), listener, out)
					return true
				})
			}
		case field.IsList() && field.Message() != nil:
			for i := range v.List().Len() {
				collect(t, v.List().Get(i).Message(), listener, out)
			}
		case field.Message() != nil:
			collect(t, v.Message(), listener, out)
		case field.Name() == "cluster" && field.Kind() == protoreflect.StringKind, field.Name() == "cluster_header":
			out["cluster "+v.String()] = true
		}
		return true
	})
}

// TestNoAddressLeadsProxiesOfOthersHome is TestNoTextLeadsProxiesOfOthersHome for the kinds of
// Kubernetes and of its Gateway API.
func TestNoAddressLeadsProxiesOfOthersHome(t *testing.T) {
	t.Parallel()
	base, known := decodeObjects(t, "c1", "mesh", []byte(tenantMesh)), map[string]map[string]bool{}
	clean := addressesOf(t, build(t, []mesh.ClusterID{"c1"}, base), foreignProxies(), known)
	const slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, namespace: NS, labels: {kubernetes.io/service-name: s}}\naddressType: IPv4\n"
	for name, documents := range map[string]string{
		"EndpointSlice": "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: NS}\nspec: {clusterIP: 10.96.7.1, ports: [{name: http, port: 80, targetPort: 15000}]}\n---\n" +
			slice + "ports: [{name: http, port: 15000}]\nendpoints: [{addresses: ['ADDRESS']}]",
		"clusterIP":    "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: NS}\nspec: {clusterIP: 'ADDRESS', ports: [{name: tcp, port: 4000, targetPort: 15000}]}",
		"externalName": "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: NS}\nspec: {type: ExternalName, externalName: 'ADDRESS', ports: [{name: http, port: 80, targetPort: 15000}]}",
		"externalIPs":  "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: NS, labels: {topology.istio.io/network: far}}\nspec: {externalIPs: ['ADDRESS'], ports: [{name: tls, port: 15443}]}\n---\n" + farService,
		"status.loadBalancer": "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: NS, labels: {topology.istio.io/network: far}}\nspec: {ports: [{name: tls, port: 15443}]}\n" +
			"status: {loadBalancer: {ingress: [{ip: 'ADDRESS'}]}}\n---\n" + farService,
		"kube Gateway": "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: s, namespace: NS, labels: {topology.istio.io/network: far}}\n" +
			"spec: {addresses: [{value: 'ADDRESS'}], listeners: [{name: a, port: 15443, protocol: TLS, tls: {mode: Passthrough}}]}\n---\n" + farService,
		"podIP": "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: NS, labels: {app: s}}\nspec: {containers: [{name: a}]}\nstatus: {podIP: 'ADDRESS', phase: Running}\n---\n" +
			"apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: s, namespace: NS}\nspec: {hosts: [s.NS.example], resolution: STATIC, ports: [{name: http, number: 80, protocol: HTTP, targetPort: 15000}], workloadSelector: {labels: {app: s}}}",
	} {
		reached := name == "externalName" // which is only another name of a service
		for i, address := range append([]string{"198.51.100.7"}, hostileHosts...) {
			events := slices.Clone(base)
			text := strings.NewReplacer("NS", fmt.Sprintf("tenant%d", i), "ADDRESS", address).Replace(documents)
			for chunk := range yamldoc.Split([]byte(text)) {
				doc, err := yamldoc.Parse(chunk)
				if err != nil {
					t.Fatal(name, err)
				}
				if r, err := (&source.Converter{Cluster: "c1", RefuseLocal: true}).Decode(doc, snapshot.Place{}); err == nil && r.Object != nil {
					events = append(events, snapshot.Event{Key: r.Key, Object: r.Object})
				}
			}
			for got := range addressesOf(t, build(t, []mesh.ClusterID{"c1"}, events), foreignProxies(), known) {
				reached = reached || i == 0 && strings.Contains(got, " 198.51.100.7")
				if !clean[got] && isHostile(got) {
					t.Errorf("%s %s: a proxy of another namespace gets %s", name, address, got)
				}
			}
		}
		if !reached {
			t.Errorf("%s leads nowhere with a usable address: this test does not reach it", name)
		}
	}
}

// farService is a service whose endpoint is in the network far.
const farService = `apiVersion: v1
kind: Service
metadata: {name: far, namespace: NS}
spec: {clusterIP: 10.96.8.1, selector: {app: far}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: far, namespace: NS, labels: {app: far, topology.istio.io/network: far, security.istio.io/tlsMode: istio}}
spec: {containers: [{name: a}]}
status: {podIP: 10.77.0.1, phase: Running}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: far, namespace: NS, labels: {kubernetes.io/service-name: far}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints: [{addresses: [10.77.0.1], targetRef: {kind: Pod, name: far, namespace: NS}}]
`

// TestEnvoyFiltersOfATenant: an EnvoyFilter, which may contain any address, changes nothing in
// proxies of another namespace, whatever it selects.
func TestEnvoyFiltersOfATenant(t *testing.T) {
	t.Parallel()
	base, known := decodeObjects(t, "c1", "mesh", []byte(tenantMesh)), map[string]map[string]bool{}
	clean := addressesOf(t, build(t, []mesh.ClusterID{"c1"}, base), foreignProxies(), known)
	for name, selection := range map[string]string{
		"all":              "",
		"workloadSelector": "workloadSelector: {labels: {istio: gw}}, ",
		"targetRefs":       "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: g}], ",
		"other namespace":  "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: g, namespace: edge}], ",
		"service":          "targetRefs: [{group: '', kind: Service, name: a, namespace: ns0}], ",
	} {
		filter := "{apiVersion: networking.istio.io/v1alpha3, kind: EnvoyFilter, metadata: {name: x, namespace: tenant}, spec: {" + selection + `configPatches: [
			{applyTo: CLUSTER, patch: {operation: ADD, value: {name: own, type: STATIC, load_assignment: {cluster_name: own, endpoints: [{lb_endpoints: [{endpoint: {address: {pipe: {path: /etc/istio/proxy/SDS}}}}]}]}}}},
			{applyTo: LISTENER, patch: {operation: ADD, value: {name: own, address: {pipe: {path: /etc/istio/proxy/XDS}}, filter_chains: [{filters: [{name: envoy.filters.network.tcp_proxy, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: own, cluster: own}}]}]}}},
			{applyTo: CLUSTER, match: {context: ANY}, patch: {operation: MERGE, value: {type: STATIC, load_assignment: {cluster_name: own, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 15000}}}}]}]}}}}]}}`
		s := build(t, []mesh.ClusterID{"c1"}, append(slices.Clone(base), decodeObjects(t, "c1", "filter", []byte(filter))...))
		for address := range addressesOf(t, s, foreignProxies(), known) {
			if !clean[address] {
				t.Errorf("%s: a proxy of another namespace gets %s", name, address)
			}
		}
		gateway := proxyOf(mesh.Router, "tenant", true)
		gateway.Labels[mesh.LabelGatewayName] = "g"
		if name != "service" && name != "other namespace" && !addressesOf(t, s, []proxy.Node{gateway}, known)["pipe /etc/istio/proxy/XDS"] {
			t.Errorf("%s: the filter does not apply to the gateway of its own namespace, so this test shows nothing", name)
		}
	}
}
