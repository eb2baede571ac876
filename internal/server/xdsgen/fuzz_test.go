package xdsgen_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	securityv1beta1 "istio.io/api/security/v1beta1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// fuzzedMesh has services of every protocol, a sidecar and a gateway.
const fuzzedMesh = `
apiVersion: v1
kind: Service
metadata: {name: a, namespace: ns0}
spec:
  clusterIP: 10.96.0.1
  selector: {app: a}
  ports: [{name: http, port: 80}, {name: tcp, port: 81}, {name: tls, port: 82}, {name: auto, port: 83}, {name: grpc, port: 84}]
---
apiVersion: v1
kind: Service
metadata: {name: headless, namespace: ns0}
spec: {clusterIP: None, ports: [{name: tcp, port: 85}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a, namespace: ns0, labels: {kubernetes.io/service-name: a}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.0.0.1], targetRef: {kind: Pod, name: p0, namespace: ns0}}]
---
apiVersion: v1
kind: Pod
metadata: {name: p0, namespace: ns0, labels: {app: a, version: v1}}
spec: {containers: [{name: a, ports: [{containerPort: 8080}]}]}
status: {podIP: 10.0.0.1}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: e, namespace: ns0}
spec: {hosts: [e.example], resolution: DNS, ports: [{name: http, number: 80, protocol: HTTP}, {name: tls, number: 443, protocol: TLS}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: ns0}
spec:
  selector: {istio: gw}
  servers:
  - {hosts: ["*"], port: {name: http, number: 80, protocol: HTTP}}
  - {hosts: ["*.example"], port: {name: tls, number: 443, protocol: TLS}, tls: {mode: PASSTHROUGH}}
  - {hosts: ["*"], port: {name: tcp, number: 90, protocol: TCP}}
  - {hosts: ["*"], port: {name: sni, number: 15443, protocol: TLS}, tls: {mode: AUTO_PASSTHROUGH}}
`

// FuzzConfiguration: an object that the source accepts gives every proxy resources that
// obey the rules of Envoy's API, and not too many bytes of them.
func FuzzConfiguration(f *testing.F) {
	files, err := filepath.Glob("testdata/*/*/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		if strings.Contains(file, "/golden/") {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for chunk := range yamldoc.Split(data) {
			f.Add(string(chunk.Text))
		}
	}
	for _, spec := range []string{
		"hosts: [a], http: [{route: [{destination: {host: a}}]}]",
		"hosts: ['*.a.b', c], gateways: [mesh, g], exportTo: ['.'], http: [{match: [{uri: {regex: 'a+'}, headers: {x: {}, y: {regex: '*'}}, withoutHeaders: {z: {prefix: a}}, queryParams: {q: {exact: ''}}}], redirect: {uri: /}}]",
		"hosts: [a], http: [{match: [{uri: {prefix: /}}], rewrite: {uriRegexRewrite: {match: '(a)(b)', rewrite: '\\2'}}, retries: {attempts: 1, retryOn: '5xx,409', perTryTimeout: 1s}, timeout: 0s, fault: {delay: {percentage: {value: 0.1}, fixedDelay: 1s}, abort: {grpcStatus: INTERNAL}}, mirrors: [{destination: {host: b}, percentage: {value: 1}}], route: [{destination: {host: a, subset: s}, weight: 1}, {destination: {host: b, port: {number: 1}}, weight: 2, headers: {request: {set: {host: x, b: '%PROTOCOL%'}}}}]}]",
		"hosts: [a], http: [{corsPolicy: {allowOrigins: [{exact: '*'}], allowMethods: ['*'], maxAge: 1s}, directResponse: {status: 200, body: {bytes: AAAA}}}]",
		"hosts: [a, '*.d'], tls: [{match: [{sniHosts: ['*.d'], destinationSubnets: [10.0.0.0/8, '::1']}], route: [{destination: {host: a}}]}], tcp: [{match: [{destinationSubnets: [10.0.0.1], sourceLabels: {a: b}}], route: [{destination: {host: a}, weight: 1}, {destination: {host: b}, weight: 1}]}]",
	} {
		f.Add("{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: v, namespace: ns0}, spec: {" + spec + "}}")
	}
	f.Fuzz(func(t *testing.T, document string) {
		const maxDocument = 1 << 12
		if len(document) > maxDocument {
			t.Skip()
		}
		if !generateFor(t, document) {
			t.Skip()
		}
	})
}

// generateFor generates the resources of all kinds of proxies in the fuzzed mesh with one
// more object, and checks their rules and size. It reports whether the object is accepted.
func generateFor(t *testing.T, document string) bool {
	t.Helper()
	const maxResources = 1 << 23
	doc, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte(document), Line: 1})
	if err != nil {
		return false
	}
	r, err := (&source.Converter{Cluster: "c1", SocketDir: "/tmp"}).Decode(doc, snapshot.Place{})
	if err != nil || r.Object == nil {
		return false
	}
	s := build(t, []mesh.ClusterID{"c1"}, append(decodeObjects(t, "c1", "mesh", []byte(fuzzedMesh)), snapshot.Event{Key: r.Key, Object: r.Object}))
	for _, node := range testNodes() {
		size := 0
		for _, resources := range generate(t, s, node) {
			checkRules(t, resources)
			for _, r := range resources {
				size += r.Size()
			}
		}
		if size > maxResources {
			t.Errorf("%d bytes of resources for a document of %d bytes", size, len(document))
		}
	}
	return true
}

// specs holds an empty spec of each kind.
var specs = []struct {
	apiVersion, kind string
	spec             proto.Message
}{
	{"networking.istio.io/v1", "VirtualService", &networkingv1alpha3.VirtualService{}},
	{"networking.istio.io/v1", "DestinationRule", &networkingv1alpha3.DestinationRule{}},
	{"networking.istio.io/v1", "ServiceEntry", &networkingv1alpha3.ServiceEntry{}},
	{"networking.istio.io/v1", "WorkloadEntry", &networkingv1alpha3.WorkloadEntry{}},
	{"networking.istio.io/v1", "Gateway", &networkingv1alpha3.Gateway{}},
	{"networking.istio.io/v1", "Sidecar", &networkingv1alpha3.Sidecar{}},
	{"networking.istio.io/v1alpha3", "EnvoyFilter", &networkingv1alpha3.EnvoyFilter{}},
	{"security.istio.io/v1", "PeerAuthentication", &securityv1beta1.PeerAuthentication{}},
	{"security.istio.io/v1", "AuthorizationPolicy", &securityv1beta1.AuthorizationPolicy{}},
	{"security.istio.io/v1", "RequestAuthentication", &securityv1beta1.RequestAuthentication{}},
	{"telemetry.istio.io/v1", "Telemetry", &telemetryv1alpha1.Telemetry{}},
	{"extensions.istio.io/v1alpha1", "WasmPlugin", &extensionsv1alpha1.WasmPlugin{}},
	{"extensions.istio.io/v1alpha1", "TrafficExtension", &extensionsv1alpha1.TrafficExtension{}},
	{"networking.istio.io/v1beta1", "ProxyConfig", &networkingv1beta1.ProxyConfig{}},
	{"networking.istio.io/v1", "WorkloadGroup", &networkingv1alpha3.WorkloadGroup{}},
}

// FuzzSpec: a spec with any fields, if the source accepts it, gives every proxy resources
// that obey the rules of Envoy's API. The bytes of choices choose the kind, the fields that
// are set, and their values.
func FuzzSpec(f *testing.F) {
	const seeds, size = 100, 600
	r := rand.New(rand.NewPCG(1, 2))
	for range seeds {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c := choices(data)
		of := specs[c.next(len(specs))]
		m := proto.Clone(of.spec).ProtoReflect()
		c.fill(m, 0)
		spec, err := protojson.Marshal(m.Interface())
		if err != nil {
			t.Skip()
		}
		generateFor(t, fmt.Sprintf(`{"apiVersion": %q, "kind": %q, "metadata": {"name": "x", "namespace": "ns0"}, "spec": %s}`, of.apiVersion, of.kind, spec))
	})
}

// choices is a source of choices, which ends with zeros.
type choices []byte

// next returns a number below n.
func (c *choices) next(n int) int {
	if len(*c) == 0 {
		return 0
	}
	b := (*c)[0]
	*c = (*c)[1:]
	return int(b) % n
}

// texts, numbers and fractions hold plausible values; anyText, anyNumber and anyFraction hold
// other ones. The keys of texts are names of fields, some with the name of the message in
// front.
var (
	texts = map[string][]string{
		"host":                      {"a", "e.example", "a.ns0.svc.cluster.local", "a.ns0", "headless", "*.example"},
		"hosts":                     {"a", "e.example", "a", "*.example", "f.example"},
		"IstioEgressListener.hosts": {"./*", "*/*", "ns0/*", "~/*"},
		"sni_hosts":                 {"e.example", "*.example", "a.example"},
		"gateways":                  {"mesh", "g", "ns0/g"},
		"export_to":                 {".", "*", "ns1"},
		"subset":                    {"v1", "v2"},
		"name":                      {"http", "tcp", "v1", "v2"},
		"protocol":                  {"HTTP", "TCP", "TLS", "HTTPS", "GRPC", "HTTP2", "MONGO"},
		"address":                   {"10.1.0.1", "2001:db8::1", "f.example", "unix:///tmp/s"},
		"addresses":                 {"240.0.0.9", "10.1.0.0/24", "2001:db8::1"},
		"bind":                      {"10.1.0.1", "127.0.0.1", "0.0.0.0", "unix:///tmp/s"},
		"uri":                       {"/", "/x", "x"},
		"regex":                     {"a+", ".*", "("},
		"prefix":                    {"/", "/x", "x", ""},
		"exact":                     {"/", "x", "*", ""},
		"retry_on":                  {"5xx,reset", "503", "connect-failure"},
		"grpc_status":               {"UNAVAILABLE", "14"},
		"key":                       {"app", "x-header", "version"},
	}
	anyText = []string{
		"", "a", "*", "/", "x-header", ":method", "%PROTOCOL%", "%", "\x01", "envoy", "10.0.0.0/8", "https://a.example", "a+", "(",
		"topology.kubernetes.io/zone", "region/zone/*", "127.0.0.1:8080", strings.Repeat("x", 300),
	}
	numbers     = []int64{1, 80, 2, 100, 443, 8080, 81}
	anyNumber   = []int64{0, 15443, 65535, 65536, 1 << 31, -1}
	fractions   = []float64{1, 50, 0.001, 0.5, 100}
	anyFraction = []float64{0, 100.5, -1, math.Inf(1)}
)

// share returns the number of messages with a field, of 32: most specs need some fields, and some
// fields exclude others.
func share(field protoreflect.FieldDescriptor) int {
	if field.ContainingOneof() != nil {
		return 8
	}
	switch field.Name() {
	case "hosts", "host", "servers", "ports", "port", "number", "name", "protocol", "destination", "route", "weight", "http", "mode", "value", "address", "sni_hosts", "attempts", "delay", "abort", "fixed_delay":
		return 31
	case "tls":
		if field.Parent().Name() == "Server" {
			return 31
		}
	case "match", "uri":
		return 20
	case "redirect", "direct_response", "delegate", "mirror", "mirrors", "mirror_percent", "uri_regex_rewrite":
		return 1
	}
	return 8
}

// text chooses a text, mostly a plausible one.
func (c *choices) text(field protoreflect.FieldDescriptor) string {
	name := string(field.Name())
	plausible := texts[string(field.Parent().Name())+"."+name]
	if plausible == nil {
		plausible = texts[name]
	}
	if plausible != nil {
		return mostly(c, plausible, anyText)
	}
	return pick(c, anyText)
}

// fill sets some fields of a message.
func (c *choices) fill(m protoreflect.Message, depth int) {
	const maxDepth = 9
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if c.next(32) >= share(field) || depth > maxDepth && field.Message() != nil {
			continue
		}
		switch {
		case field.IsMap():
			entries := m.Mutable(field).Map()
			key := c.value(field.MapKey(), nil, depth)
			entries.Set(key.MapKey(), c.value(field.MapValue(), entries.NewValue, depth))
		case field.IsList():
			list := m.Mutable(field).List()
			for range 1 + c.next(2) {
				list.Append(c.value(field, list.NewElement, depth))
			}
		default:
			m.Set(field, c.value(field, func() protoreflect.Value { return m.NewField(field) }, depth))
		}
	}
}

// value chooses a value of a field.
func (c *choices) value(field protoreflect.FieldDescriptor, newMessage func() protoreflect.Value, depth int) protoreflect.Value {
	switch field.Kind() {
	case protoreflect.EnumKind:
		values := field.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(c.next(values.Len())).Number())
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(c.next(2) == 1)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(c.text(field))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(pick(c, anyText)))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(mostly(c, fractions, anyFraction))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(float32(mostly(c, fractions, anyFraction)))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(mostly(c, numbers, anyNumber)))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(mostly(c, numbers, anyNumber)))
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(mostly(c, numbers, anyNumber))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(mostly(c, numbers, anyNumber)))
	default:
		v := newMessage()
		switch m := v.Message().Interface().(type) {
		case *durationpb.Duration:
			m.Seconds, m.Nanos = int64(c.next(4)), int32(c.next(2)*1e6)
		case *structpb.Struct:
			m.Fields = map[string]*structpb.Value{"name": structpb.NewStringValue("envoy.filters.http.router")}
		default:
			c.fill(v.Message(), depth+1)
		}
		return v
	}
}

// mostly picks a plausible value, and sometimes another one.
func mostly[T any](c *choices, plausible, other []T) T {
	if c.next(32) > 0 {
		return pick(c, plausible)
	}
	return pick(c, other)
}

func pick[T any](c *choices, from []T) T { return from[c.next(len(from))] }
