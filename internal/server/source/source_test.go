package source_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	// The messages of the patches: the whole API would take seconds to link.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestConvert: the objects of testdata/convert/*.yaml, as kubectl prints them, are
// converted to the golden file beside it for a directory, and to *.refuse.golden for a
// Kubernetes API.
func TestConvert(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/convert/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no test data", err)
	}
	for _, file := range files {
		for suffix, c := range map[string]*source.Converter{
			".golden":        {Cluster: "cluster1", SocketDir: "/run"},
			".refuse.golden": {Cluster: "cluster1", RefuseLocal: true},
		} {
			t.Run(filepath.Base(file)+suffix, func(t *testing.T) {
				t.Parallel()
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				compareGolden(t, strings.TrimSuffix(file, ".yaml")+suffix, render(t, c, string(text)))
			})
		}
	}
}

func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got), -update rewrites it:\n%s", file, diff)
	}
}

// render converts the documents and renders each result.
func render(t *testing.T, c *source.Converter, text string) string {
	t.Helper()
	var b strings.Builder
	for _, v := range objects(t, text) {
		r, err := c.Decode(v, snapshot.Place{File: "in.yaml", Line: v.Line()})
		switch {
		case err != nil:
			t.Errorf("line %d: %v", v.Line(), err)
		case r.Skipped:
			fmt.Fprintf(&b, "# %s: skipped\n", r.Key.Kind)
		case r.Object == nil:
			fmt.Fprintf(&b, "# %s: nothing to deliver\n", r.Key)
		default:
			if r.Object.Key() != r.Key {
				t.Errorf("object is %s, its result says %s", r.Object.Key(), r.Key)
			}
			fmt.Fprintf(&b, "# %s\n%s\n", r.Key, show(t, r.Object))
		}
		for _, w := range r.Warnings {
			fmt.Fprintf(&b, "# warning, line %d: %s\n", w.Line, w)
		}
	}
	return b.String()
}

// show renders an object as JSON, protos as protojson.
func show(t *testing.T, o snapshot.Object) string {
	t.Helper()
	out := map[string]any{}
	v := reflect.ValueOf(o).Elem()
	for i := range v.NumField() {
		name, field := v.Type().Field(i).Name, v.Field(i)
		m, ok := reflect.TypeAssert[proto.Message](field)
		switch {
		case ok:
			data, err := protojson.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			out[name] = json.RawMessage(data)
		case !field.IsZero():
			out[name] = readable(t, field.Interface())
		}
	}
	data, err := json.MarshalIndent(out, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// readable decodes the encoded messages of an EnvoyFilter.
func readable(t *testing.T, field any) any {
	t.Helper()
	text := func(m proto.Message) json.RawMessage {
		data, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	decoded := func(name protoreflect.FullName, body []byte) json.RawMessage {
		typ, err := protoregistry.GlobalTypes.FindMessageByName(name)
		if err != nil {
			t.Fatal(err)
		}
		m := typ.New().Interface()
		if err := proto.Unmarshal(body, m); err != nil {
			t.Fatal(err)
		}
		return text(m)
	}
	var out []map[string]any
	switch field := field.(type) {
	case []snapshot.Extension:
		for _, e := range field {
			out = append(out, map[string]any{"Name": e.Name, "Body": decoded("envoy.config.core.v3.TypedExtensionConfig", []byte(e.Body))})
		}
	case []*snapshot.Patch:
		for _, p := range field {
			shown := map[string]any{"Index": p.Index, "Spec": text(p.Spec)}
			if p.Value != nil {
				shown["Value"] = text(p.Value)
			}
			out = append(out, shown)
		}
	default:
		return field
	}
	return out
}

func objects(t testing.TB, text string) []yamldoc.Value {
	t.Helper()
	var out []yamldoc.Value
	for c := range yamldoc.Split([]byte(text)) {
		v, err := yamldoc.Parse(c)
		if err != nil {
			t.Fatal(err)
		}
		if items, ok := v.Get("items").Items(); ok {
			out = append(out, items...)
		} else if !v.IsNull() {
			out = append(out, v)
		}
	}
	return out
}

const (
	gatewayHead  = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: g, namespace: 'n'}\nspec:\n"
	sidecarHead  = "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: s, namespace: 'n'}\nspec:\n"
	proxyConfig  = "apiVersion: networking.istio.io/v1beta1\nkind: ProxyConfig\nmetadata: {name: p, namespace: 'n'}\nspec:\n"
	extension    = "apiVersion: extensions.istio.io/v1alpha1\nkind: TrafficExtension\nmetadata: {name: w, namespace: 'n'}\nspec:\n"
	wasmPlugin   = "apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\nmetadata: {name: w, namespace: 'n'}\nspec:\n"
	telemetry    = "apiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: t, namespace: 'n'}\nspec:\n"
	peerHead     = "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: p, namespace: 'n'}\nspec:\n"
	tokenHead    = "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: r, namespace: 'n'}\nspec:\n"
	policyHead   = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: 'n'}\nspec:\n"
	ruleHead     = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: d, namespace: 'n'}\nspec:\n"
	routeHead    = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v, namespace: 'n'}\nspec:\n"
	entryHead    = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: e, namespace: 'n'}\nspec:\n"
	workloadHead = "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: w, namespace: 'n'}\nspec:\n"
	filterHead   = "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nmetadata: {name: f, namespace: 'n'}\nspec:\n"
	filterPatch  = filterHead + "  configPatches:\n  - applyTo: HTTP_FILTER\n"
	filterAdd    = "    patch:\n      operation: ADD\n      value:\n"
	serviceHead  = "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: 'n'}\nspec:\n"
	sliceHead    = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, namespace: 'n', labels: {kubernetes.io/service-name: s}}\naddressType: IPv4\n"
	podHead      = "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: 'n'}\n"
	kubeGateway  = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: g, namespace: 'n', labels: {topology.istio.io/network: n2}}\nspec:\n"
	meshHead     = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n"
)

// gatewayTLS returns a Gateway with a server of HTTPS, and further fields of its TLS settings.
func gatewayTLS(mode, fields string) string {
	return gatewayHead + "  servers:\n  - port: {number: 1, protocol: HTTPS}\n    hosts: [a]\n    tls:\n      mode: " + mode + "\n      " + fields
}

// TestRefusals: invalid objects are refused with the line of the faulty field. Heads
// have four lines, the head of pods has three.
func TestRefusals(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		in   string
		line int
		want string
	}{
		"kubernetes gateway port":    {strings.Replace(kubeGateway, "n2}", "n2, networking.istio.io/gatewayPort: http}", 1) + "  listeners: []", 3, `metadata.labels[networking.istio.io/gatewayPort]: "http" is not a port`},
		"kubernetes gateway address": {kubeGateway + "  addresses:\n  - {value: gw.example.com}", 6, `spec.addresses[0].value: "gw.example.com" is not an IP address`},
		"kubernetes gateway list":    {kubeGateway + "  addresses: {}", 5, "spec.addresses: is a mapping, want a list"},
		"a scalar":                   {"x", 1, "is not an object: want apiVersion, kind and metadata"},
		"no kind":                    {"apiVersion: v1", 1, "kind: is missing: not a Kubernetes object"},
		"no apiVersion":              {"a: 1\nkind: Service", 1, "apiVersion: is missing: not a Kubernetes object"},
		"old version":                {"kind: EndpointSlice\napiVersion: discovery.k8s.io/v1beta1", 2, `apiVersion: EndpointSlice of version "v1beta1" is not read: use v1`},
		"no name":                    {"kind: Service\napiVersion: v1\nmetadata:\n  namespace: x", 3, "metadata.name: is missing"},
		"name of a service":          {"kind: Service\napiVersion: v1\nmetadata:\n  namespace: x\n  name: A.b", 5, `metadata.name: "A.b" is not a DNS label`},
		"name":                       {"kind: Secret\napiVersion: v1\nmetadata:\n  namespace: x\n  name: a|b", 5, `metadata.name: "a|b" is not a DNS name`},
		"namespace":                  {"kind: Secret\napiVersion: v1\nmetadata:\n  namespace: x/y\n  name: a", 4, `metadata.namespace: "x/y" is not a DNS label`},
		"number as label":            {"kind: Namespace\napiVersion: v1\nmetadata:\n  name: x\n  labels:\n    a.b/c: 1", 6, "metadata.labels[a.b/c]: is a number, want a string"},
		"number as Istio label":      {"kind: Gateway\napiVersion: networking.istio.io/v1\nmetadata:\n  name: x\n  labels:\n    a: 1", 6, "metadata.labels.a: is a number, want a string"},
		"time":                       {"kind: Namespace\napiVersion: v1\nmetadata:\n  name: x\n  creationTimestamp: today", 5, `metadata.creationTimestamp: parsing time "today" as "2006-01-02T15:04:05Z07:00": cannot parse "today" as "2006"`},
		"port is text":               {serviceHead + "  ports:\n  - port: 80\n  - name: a\n    port: http", 8, "spec.ports[1].port: is a string, want a number"},
		"ports is a mapping":         {serviceHead + "  ports:\n    port: 80", 5, "spec.ports: is a mapping, want a list"},
		"target port is a list":      {serviceHead + "  ports:\n  - port: 80\n    targetPort: [a]", 7, "spec.ports[0].targetPort: is a list, want a number or a name"},
		"half a port":                {serviceHead + "  ports:\n  - port: 80.5", 6, "spec.ports[0].port: is not a whole number, or too large a one"},
		"specs":                      {"apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: s}\nspecs: {}", 4, "specs: is not a field of Sidecar, did you mean spec?"},
		"top-level key":              {"apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: s}\na.b/c: {}", 4, "[a.b/c]: is not a field of Sidecar"},
		"port range":                 {serviceHead + "  ports:\n  - port: 70000", 6, "spec.ports[0].port: 70000 is not a port: want 1 to 65535"},
		"target port range":          {serviceHead + "  ports:\n  - port: 1\n    targetPort: -1", 7, "spec.ports[0].targetPort: -1 is not a port: want 1 to 65535"},
		"node port range":            {serviceHead + "  ports:\n  - port: 1\n    nodePort: -1", 7, "spec.ports[0].nodePort: -1 is not a port: want 1 to 65535"},
		"port without a name":        {serviceHead + "  ports:\n  - port: 1\n    name: a\n  - port: 2", 8, "spec.ports[1].name: is missing: a service of several ports names each"},
		"port name twice":            {serviceHead + "  ports:\n  - port: 1\n    name: a\n  - port: 2\n    name: a", 9, `spec.ports[1].name: "a" is given twice`},
		"cluster IP":                 {serviceHead + "  clusterIP: 10.0.0", 5, `spec.clusterIP: "10.0.0" is not an IP address`},
		"external name":              {serviceHead + "  type: ExternalName\n  externalName: a b", 6, `spec.externalName: "a b" is not a host name`},
		"external IP":                {serviceHead + "  externalIPs:\n  - 10.0.0.1\n  - a_b", 7, `spec.externalIPs[1]: "a_b" is not a host name`},
		"exportTo":                   {"kind: Service\napiVersion: v1\nmetadata:\n  name: x\n  annotations:\n    networking.istio.io/exportTo: a,B", 6, `metadata.annotations[networking.istio.io/exportTo]: "B" is neither a namespace nor one of * . ~`},
		"nodeSelector":               {"kind: Service\napiVersion: v1\nmetadata:\n  name: x\n  annotations:\n    traffic.istio.io/nodeSelector: a=b\nspec: {type: NodePort}", 6, `metadata.annotations[traffic.istio.io/nodeSelector]: "a=b" is no JSON object of labels, such as {"kubernetes.io/hostname": "node-1"}`},
		"node address":               {"kind: Node\napiVersion: v1\nmetadata:\n  name: x\nstatus:\n  addresses:\n  - type: ExternalIP\n    address: x", 8, `status.addresses[0].address: "x" is not an IP address`},
		"imported address":           {"kind: ServiceImport\napiVersion: multicluster.x-k8s.io/v1alpha1\nmetadata:\n  name: x\nspec:\n  ips: [10.0.0.1, x]", 6, `spec.ips[1]: "x" is not an IP address`},
		"slice port":                 {sliceHead + "ports:\n- port: 0", 6, "ports[0].port: 0 is not a port: want 1 to 65535"},
		"slice address":              {sliceHead + "endpoints:\n- addresses:\n  - 10.0.0.1\n  - 10.0.0.300", 8, `endpoints[0].addresses[1]: "10.0.0.300" is not an IP address`},
		"slice address and zone":     {sliceHead + "endpoints:\n- addresses: ['fe80::1%eth0']", 6, `endpoints[0].addresses[0]: "fe80::1%eth0" is not an IP address`},
		"pod address":                {podHead + "status:\n  podIPs:\n  - ip: x", 6, `status.podIPs[0]: "x" is not an IP address`},
		"pod account":                {podHead + "spec:\n  serviceAccountName: a/b\nstatus:\n  podIP: 10.0.0.1", 5, `spec.serviceAccountName: "a/b" is not a DNS name`},
		"pod resources":              {podHead + "spec:\n  containers:\n  - name: a\n    resources:\n      limits:\n        cpu: many", 9, "spec.containers[0].resources.limits.cpu: quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"},

		"unknown field":                 {gatewayHead + "  servers:\n  - port: {number: 1, protocol: TLS}\n    host: ['*']", 7, `spec.servers[0].host: unknown field "host" (did you mean hosts?)`},
		"unknown enum":                  {gatewayHead + "  servers:\n  - tls:\n      mode: AUTO", 7, `spec.servers[0].tls.mode: "AUTO" is none of PASSTHROUGH, SIMPLE, MUTUAL, AUTO_PASSTHROUGH, ISTIO_MUTUAL, OPTIONAL_MUTUAL`},
		"port number is text":           {gatewayHead + "  servers:\n  - port:\n      number: x", 7, `spec.servers[0].port.number: invalid value for uint32 field number: "x"`},
		"no servers":                    {gatewayHead + "  selector: {a: b}", 4, "spec.servers: is empty: a gateway needs at least one"},
		"no spec":                       {"apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: g}", 1, "spec.servers: is empty: a gateway needs at least one"},
		"selector":                      {gatewayHead + "  selector:\n    a: '*'\n  servers: [{}]", 6, "spec.selector[a]: wildcards and empty names are not allowed"},
		"server without port":           {gatewayHead + "  servers:\n  - hosts: ['*']", 6, "spec.servers[0].port: is missing"},
		"server port number":            {gatewayHead + "  servers:\n  - port:\n      protocol: TLS\n      number: 65536", 8, "spec.servers[0].port.number: 65536 is not a port: want 1 to 65535"},
		"server protocol missing":       {gatewayHead + "  servers:\n  - port:\n      number: 1", 6, "spec.servers[0].port.protocol: is missing"},
		"server protocol":               {gatewayHead + "  servers:\n  - port:\n      number: 1\n      protocol: UDP", 8, `spec.servers[0].port.protocol: "UDP" is not a protocol that this port can have`},
		"server bind":                   {gatewayHead + "  servers:\n  - port: {number: 1, protocol: HTTP}\n    bind: x", 7, `spec.servers[0].bind: "x" is not an IP address`},
		"server hosts":                  {gatewayHead + "  servers:\n  - port: {number: 1, protocol: HTTP}", 6, `spec.servers[0].hosts: is empty: use "*" for every host`},
		"server host":                   {gatewayHead + "  servers:\n  - port: {number: 1, protocol: HTTP}\n    hosts:\n    - a\n    - a b", 9, `spec.servers[0].hosts[1]: "a b" is not a host name`},
		"server name":                   {strings.ReplaceAll(gatewayTLS("SIMPLE", "credentialName: a"), "[a]", "['*-eu.b']"), 7, `spec.servers[0].hosts[0]: "*-eu.b": the wildcard of a server name stands for whole labels`},
		"server host namespace":         {gatewayHead + "  servers:\n  - port: {number: 1, protocol: HTTP}\n    hosts: ['~/a']", 7, `spec.servers[0].hosts[0]: "~/a": "~" is neither a namespace nor one of * .`},
		"server without tls":            {gatewayHead + "  servers:\n  - port: {number: 1, protocol: TLS}\n    hosts: [a]", 6, "spec.servers[0].tls: is missing: protocol TLS needs it"},
		"tls on HTTP":                   {gatewayHead + "  servers:\n  - port: {number: 1, protocol: HTTP}\n    hosts: [a]\n    tls: {mode: SIMPLE}", 8, "spec.servers[0].tls: does not go with protocol HTTP: use HTTPS or TLS"},
		"pass-through on TCP":           {gatewayHead + "  servers:\n  - port: {number: 1, protocol: TCP}\n    hosts: [a]\n    tls:\n      mode: AUTO_PASSTHROUGH", 8, "spec.servers[0].tls: does not go with protocol TCP: use HTTPS or TLS"},
		"no certificate":                {gatewayTLS("SIMPLE", "caCertificates: /ca"), 8, `spec.servers[0].tls: has no certificate: mode SIMPLE needs credentialName, or serverCertificate and privateKey`},
		"two kinds of certificates":     {gatewayTLS("SIMPLE", "credentialName: a\n      credentialNames: [a]"), 11, `spec.servers[0].tls.credentialNames: does not go with credentialName: use one of them`},
		"three certificates":            {gatewayTLS("SIMPLE", "credentialNames: [a, b, c]"), 10, `spec.servers[0].tls.credentialNames: has more than 2 certificates`},
		"certificate without key":       {gatewayTLS("SIMPLE", "serverCertificate: /a"), 8, `spec.servers[0].tls: needs both serverCertificate and privateKey`},
		"listed file without key":       {gatewayTLS("SIMPLE", "tlsCertificates:\n      - serverCertificate: /a"), 11, `spec.servers[0].tls.tlsCertificates[0]: needs both serverCertificate and privateKey`},
		"mutual without roots":          {gatewayTLS("MUTUAL", "serverCertificate: /a\n      privateKey: /b"), 8, `spec.servers[0].tls.caCertificates: is missing: mode MUTUAL needs it to verify clients`},
		"list without roots":            {gatewayTLS("SIMPLE", "credentialName: a\n      caCrl: /crl"), 11, `spec.servers[0].tls.caCrl: is for caCertificates: a Secret has its list in the key ca.crl`},
		"mesh certificate and a Secret": {gatewayTLS("ISTIO_MUTUAL", "credentialName: a"), 10, `spec.servers[0].tls.credentialName: does not go with mode ISTIO_MUTUAL, which uses the certificate of the workload`},
		"name of a Secret":              {gatewayTLS("SIMPLE", "credentialName: a_b"), 10, `spec.servers[0].tls.credentialName: "a_b" is not the name of a Secret`},
		"scheme of a Secret":            {gatewayTLS("SIMPLE", "credentialNames: [a, 'sds://a']"), 10, `spec.servers[0].tls.credentialNames[1]: "sds://a" is not the name of a Secret`},
		"name of roots":                 {gatewayTLS("MUTUAL", "credentialName: a\n      caCertCredentialName: configmap://a_b/c"), 11, `spec.servers[0].tls.caCertCredentialName: "configmap://a_b/c" is not the name of a Secret or ConfigMap`},
		"hash of a key":                 {gatewayTLS("MUTUAL", "credentialName: a\n      verifyCertificateSpki: [AAAA]"), 11, `spec.servers[0].tls.verifyCertificateSpki[0]: "AAAA" is not a SHA-256 hash in base64`},
		"hash of a certificate":         {gatewayTLS("MUTUAL", "credentialName: a\n      verifyCertificateHash: ['ab:cd']"), 11, `spec.servers[0].tls.verifyCertificateHash[0]: "ab:cd" is not a SHA-256 hash in hexadecimal`},
		"versions of TLS":               {gatewayTLS("SIMPLE", "credentialName: a\n      minProtocolVersion: TLSV1_3\n      maxProtocolVersion: TLSV1_2"), 8, `spec.servers[0].tls: minProtocolVersion TLSV1_3 is above maxProtocolVersion TLSV1_2: no client could connect`},
		"default version of TLS":        {gatewayTLS("SIMPLE", "credentialName: a\n      maxProtocolVersion: TLSV1_1"), 8, `spec.servers[0].tls: the default minProtocolVersion TLSV1_2 is above maxProtocolVersion TLSV1_1: no client could connect`},
		"server on a socket":            {gatewayHead + "  servers:\n  - port: {number: 1, protocol: HTTP}\n    bind: unix:///run/x", 6, "spec.servers[0].port.number: 1: a Unix socket has no port, use 0"},
		"path of a socket":              {gatewayHead + "  servers:\n  - port: {number: 0, protocol: HTTP}\n    bind: unix://x\n    hosts: [a]", 7, `spec.servers[0].bind: "unix://x" is not a Unix socket below /run (--socket-dir)`},
		"socket of the agent":           {gatewayHead + "  servers:\n  - port: {number: 0, protocol: HTTP}\n    bind: unix:///etc/istio/proxy/XDS\n    hosts: [a]", 7, `spec.servers[0].bind: "unix:///etc/istio/proxy/XDS" is not a Unix socket below /run (--socket-dir)`},
		"null server":                   {gatewayHead + "  servers:\n  -\n", 6, "spec.servers[0]: "},

		"ingress without port":  {sidecarHead + "  ingress:\n  - defaultEndpoint: 127.0.0.1:1", 6, "spec.ingress[0].port: is missing"},
		"ingress port":          {sidecarHead + "  ingress:\n  - port: {number: 0}", 6, "spec.ingress[0].port.number: 0 is not a port: want 1 to 65535"},
		"ingress port twice":    {sidecarHead + "  ingress:\n  - port: {number: 1}\n  - port: {number: 1}", 7, "spec.ingress[1].port.number: 1 is the port of ingress[0], too"},
		"ingress bind":          {sidecarHead + "  ingress:\n  - port: {number: 1}\n    bind: unix:///x", 7, `spec.ingress[0].bind: "unix:///x" is not an IP address`},
		"ingress TLS mode":      {sidecarHead + "  ingress:\n  - port: {number: 1, protocol: TLS}\n    tls: {mode: ISTIO_MUTUAL}", 7, "spec.ingress[0].tls.mode: ISTIO_MUTUAL is not a mode of sidecars: use SIMPLE or MUTUAL"},
		"ingress TLS redirect":  {sidecarHead + "  ingress:\n  - port: {number: 1, protocol: TLS}\n    tls: {mode: SIMPLE, httpsRedirect: true}", 7, "spec.ingress[0].tls.httpsRedirect: is only for gateways"},
		"ingress TLS secret":    {sidecarHead + "  ingress:\n  - port: {number: 1, protocol: TLS}\n    tls: {mode: SIMPLE, credentialName: a}", 7, "spec.ingress[0].tls: names Secrets, which sidecars do not get: use serverCertificate, privateKey and caCertificates"},
		"ingress TLS protocol":  {sidecarHead + "  ingress:\n  - port: {number: 1}\n    tls: {mode: SIMPLE, serverCertificate: a, privateKey: b}", 7, "spec.ingress[0].tls: needs a protocol of the port: HTTPS if the application gets HTTP, TLS if it gets TCP"},
		"ingress TLS CA":        {sidecarHead + "  ingress:\n  - port: {number: 1, protocol: TLS}\n    tls: {mode: MUTUAL, serverCertificate: a, privateKey: b}", 7, "spec.ingress[0].tls.caCertificates: is missing: mode MUTUAL needs it to verify clients"},
		"egress proxy mode":     {sidecarHead + "  outboundTrafficPolicy:\n    egressProxy: {host: a, port: {number: 1}}", 6, "spec.outboundTrafficPolicy.egressProxy: needs mode ALLOW_ANY"},
		"egress proxy host":     {sidecarHead + "  outboundTrafficPolicy:\n    mode: ALLOW_ANY\n    egressProxy: {host: '*.a', port: {number: 1}}", 7, `spec.outboundTrafficPolicy.egressProxy.host: "*.a" is not the host of a service`},
		"egress proxy port":     {sidecarHead + "  outboundTrafficPolicy:\n    mode: ALLOW_ANY\n    egressProxy: {host: a}", 7, "spec.outboundTrafficPolicy.egressProxy.port.number: 0 is not a port: want 1 to 65535"},
		"default endpoint":      {sidecarHead + "  ingress:\n  - port: {number: 1}\n    defaultEndpoint: 10.0.0.1:80", 7, `spec.ingress[0].defaultEndpoint: "10.0.0.1:80" is none of 127.0.0.1:PORT, 0.0.0.0:PORT, [::1]:PORT, [::]:PORT and unix://PATH`},
		"default endpoint port": {sidecarHead + "  ingress:\n  - port: {number: 1}\n    defaultEndpoint: 127.0.0.1:0", 7, `spec.ingress[0].defaultEndpoint: "127.0.0.1:0" is none of 127.0.0.1:PORT, 0.0.0.0:PORT, [::1]:PORT, [::]:PORT and unix://PATH`},
		"default endpoint path": {sidecarHead + "  ingress:\n  - port: {number: 1}\n    defaultEndpoint: unix://", 7, `spec.ingress[0].defaultEndpoint: "unix://" is not a Unix socket below /run (--socket-dir)`},
		"default endpoint SDS":  {sidecarHead + "  ingress:\n  - port: {number: 1}\n    defaultEndpoint: unix:///var/run/secrets/workload-spiffe-uds/socket", 7, `spec.ingress[0].defaultEndpoint: "unix:///var/run/secrets/workload-spiffe-uds/socket" is not a Unix socket below /run (--socket-dir)`},
		"endpoint at admin":     {sidecarHead + "  ingress:\n  - port: {number: 1}\n    defaultEndpoint: 127.0.0.1:15000", 7, `spec.ingress[0].defaultEndpoint: 15000 is a port of the proxy, which clients must not reach: use the port of the application`},
		"endpoint at agent":     {sidecarHead + "  ingress:\n  - port: {number: 1}\n    defaultEndpoint: 0.0.0.0:15020", 7, `spec.ingress[0].defaultEndpoint: 15020 is a port of the proxy, which clients must not reach: use the port of the application`},
		"endpoint at DNS":       {sidecarHead + "  ingress:\n  - port: {number: 1}\n    defaultEndpoint: '[::1]:15053'", 7, `spec.ingress[0].defaultEndpoint: 15053 is a port of the proxy, which clients must not reach: use the port of the application`},
		"endpoint at tokens":    {sidecarHead + "  ingress:\n  - port: {number: 1}\n    defaultEndpoint: '[::]:15463'", 7, `spec.ingress[0].defaultEndpoint: 15463 is a port of the proxy, which clients must not reach: use the port of the application`},
		"egress socket":         {sidecarHead + "  egress:\n  - {port: {protocol: HTTP}, hosts: ['*/*'], bind: 'unix:///run/../etc/x'}", 6, `spec.egress[0].bind: "unix:///run/../etc/x" is not a Unix socket below /run (--socket-dir)`},
		"capture mode":          {sidecarHead + "  egress:\n  - captureMode: ALL", 6, `spec.egress[0].captureMode: "ALL" is none of DEFAULT, IPTABLES, NONE`},
		"egress without hosts":  {sidecarHead + "  egress:\n  - port: {number: 1, protocol: HTTP}", 6, `spec.egress[0].hosts: is empty: use "*/*" for every host`},
		"egress host":           {sidecarHead + "  egress:\n  - hosts:\n    - a.b", 7, `spec.egress[0].hosts[0]: "a.b" is not of the form namespace/host`},
		"egress namespace":      {sidecarHead + "  egress:\n  - hosts:\n    - A/*", 7, `spec.egress[0].hosts[0]: "A/*": "A" is neither a namespace nor one of * . ~`},
		"egress port twice":     {sidecarHead + "  egress:\n  - {port: {number: 1, protocol: TCP}, hosts: ['*/*']}\n  - {port: {number: 1, protocol: HTTP}, bind: 127.0.0.1, hosts: ['*/*']}", 7, "spec.egress[1].port.number: 1 is the port of egress[0], too"},
		"egress socket twice":   {sidecarHead + "  egress:\n  - {port: {protocol: HTTP}, bind: 'unix:///run/a', hosts: ['*/*']}\n  - {port: {protocol: HTTP}, bind: 'unix:///run/a', hosts: ['*/*']}", 7, `spec.egress[1].bind: "unix:///run/a" is the socket of egress[0], too`},
		"two without port":      {sidecarHead + "  egress:\n  - {hosts: ['a/*']}\n  - {hosts: ['b/*']}", 7, "spec.egress[1]: has no port, like egress[0]: only one listener may have none"},
		"egress protocol":       {sidecarHead + "  egress:\n  - port: {number: 1, protocol: FTP}\n    hosts: ['*/*']", 6, `spec.egress[0].port.protocol: "FTP" is not a protocol that this port can have`},

		"mTLS mode":               {peerHead + "  mtls:\n    mode: FULL", 6, `spec.mtls.mode: "FULL" is none of UNSET, DISABLE, PERMISSIVE, STRICT`},
		"mTLS of a port":          {peerHead + "  portLevelMtls:\n    8080: {mode: STRICT}", 5, "spec.portLevelMtls: needs a selector"},
		"mTLS mode of a port":     {peerHead + "  selector: {matchLabels: {a: b}}\n  portLevelMtls:\n    8080: {mode: STRCIT}", 7, `spec.portLevelMtls.8080.mode: "STRCIT" is none of UNSET, DISABLE, PERMISSIVE, STRICT`},
		"mTLS of a wrong port":    {peerHead + "  selector: {matchLabels: {a: b}}\n  portLevelMtls:\n    80: {}\n    80800: {mode: STRICT}", 8, "spec.portLevelMtls[80800]: 80800 is not a port: want 1 to 65535"},
		"rule without host":       {ruleHead + "  subsets: []", 4, `spec.host: "" is not a host name`},
		"subset twice":            {ruleHead + "  host: a\n  subsets:\n  - name: v1\n  - name: v1", 8, `spec.subsets[1].name: "v1" is given twice`},
		"subset name":             {ruleHead + "  host: a\n  subsets:\n  - name: a|b", 7, `spec.subsets[0].name: "a|b" is not a DNS name`},
		"no routes":               {routeHead + "  hosts: [a]", 4, "spec: has no routes: want http, tls or tcp"},
		"no hosts":                {routeHead + "  gateways: [g]\n  http: [{}]", 4, "spec.hosts: is empty"},
		"null route":              {routeHead + "  hosts: [a]\n  http:\n  - route:\n    -\n", 8, "spec.http[0].route[0]: "},
		"null http":               {routeHead + "  hosts: [a]\n  http:\n  -\n", 7, "spec.http[0]: "},
		"empty route":             {routeHead + "  hosts: [a]\n  http:\n  - {}", 7, "spec.http[0]: has none of route, redirect, directResponse and delegate"},
		"route without host":      {routeHead + "  hosts: [a]\n  http:\n  - route:\n    - weight: 1", 8, "spec.http[0].route[0].destination.host: is missing"},
		"negative weight":         {routeHead + "  hosts: [a]\n  http:\n  - route:\n    - destination: {host: a}\n      weight: -1", 9, "spec.http[0].route[0].weight: -1 is negative"},
		"TLS route":               {routeHead + "  hosts: [a]\n  tls:\n  - match: [{sniHosts: [a]}]", 7, "spec.tls[0].route: is empty"},
		"TLS route without SNI":   {routeHead + "  hosts: [a]\n  tls:\n  - match:\n    - port: 1", 8, "spec.tls[0].match[0].sniHosts: is empty"},
		"TCP route":               {routeHead + "  hosts: [a]\n  tcp:\n  - {}", 7, "spec.tcp[0].route: is empty"},
		"entry without hosts":     {entryHead + "  ports: []", 4, "spec.hosts: is empty"},
		"entry of every host":     {entryHead + "  hosts: ['*']", 5, `spec.hosts[0]: "*" would take every host: name a domain`},
		"entry port name":         {entryHead + "  hosts: [a]\n  ports:\n  - number: 1", 7, "spec.ports[0].name: is missing"},
		"entry port twice":        {entryHead + "  hosts: [a]\n  ports:\n  - {number: 1, name: a}\n  - {number: 1, name: b}", 8, "spec.ports[1].number: 1 is given twice"},
		"entry resolution":        {entryHead + "  hosts: [a]\n  resolution: NONE\n  endpoints:\n  - address: 10.0.0.1", 7, "spec.endpoints: needs a resolution other than NONE"},
		"entry address":           {entryHead + "  hosts: [a]\n  resolution: STATIC\n  endpoints:\n  - address: a.b", 8, `spec.endpoints[0].address: "a.b" is not an IP address, which resolution STATIC needs`},
		"entry host":              {entryHead + "  hosts: [a b]", 5, `spec.hosts[0]: "a b" is not a host name`},
		"entry exportTo":          {entryHead + "  hosts: [a]\n  exportTo: [A]", 6, `spec.exportTo[0]: "A" is neither a namespace nor one of * . ~`},
		"entry null port":         {entryHead + "  hosts: [a]\n  ports:\n  -\n", 7, "spec.ports[0]: "},
		"entry port number":       {entryHead + "  hosts: [a]\n  ports:\n  - {number: 0, name: a}", 7, "spec.ports[0].number: 0 is not a port: want 1 to 65535"},
		"entry protocol":          {entryHead + "  hosts: [a]\n  ports:\n  - {number: 1, name: a, protocol: FTP}", 7, `spec.ports[0].protocol: "FTP" is not a protocol that this port can have`},
		"entry name twice":        {entryHead + "  hosts: [a]\n  ports:\n  - {number: 1, name: a}\n  - {number: 2, name: a}", 8, `spec.ports[1].name: "a" is given twice`},
		"entry target port":       {entryHead + "  hosts: [a]\n  ports:\n  - {number: 1, name: a, targetPort: 70000}", 7, "spec.ports[0].targetPort: 70000 is not a port: want 1 to 65535"},
		"entry own address":       {entryHead + "  hosts: [a]\n  addresses:\n  - a.b", 7, `spec.addresses[0]: "a.b" is not an IP address`},
		"entry range":             {entryHead + "  hosts: [a]\n  addresses:\n  - 10.0.0.0/33", 7, `spec.addresses[0]: "10.0.0.0/33" is neither an IP address nor an address range`},
		"entry range by DNS":      {entryHead + "  hosts: [a]\n  resolution: DNS\n  addresses:\n  - 10.0.0.0/8", 8, `spec.addresses[0]: "10.0.0.0/8" is an address range, which resolution DNS does not allow`},
		"entry selects and lists": {entryHead + "  hosts: [a]\n  resolution: STATIC\n  endpoints: [{address: 10.0.0.1}]\n  workloadSelector: {labels: {a: b}}", 8, "spec.workloadSelector: does not go with endpoints: use one of them"},
		"entry selector":          {entryHead + "  hosts: [a]\n  resolution: STATIC\n  workloadSelector:\n    labels:\n      a: '*'", 9, "spec.workloadSelector.labels[a]: wildcards and empty names are not allowed"},
		"entry of one endpoint":   {entryHead + "  hosts: [a]\n  resolution: DNS_ROUND_ROBIN\n  endpoints: [{address: a}, {address: b}]", 7, "spec.endpoints: has more than one entry, which resolution DNS_ROUND_ROBIN does not allow"},
		"entry wildcard":          {entryHead + "  hosts:\n  - '*.a'\n  resolution: DNS", 6, `spec.hosts[0]: "*.a" stands for many names, which resolution DNS does not allow without endpoints`},
		"entry target":            {entryHead + "  hosts: [a]\n  resolution: DNS\n  endpoints:\n  - address: '*.a'", 8, `spec.endpoints[0].address: "*.a" is neither a host name nor an IP address`},
		"entry without target":    {entryHead + "  hosts: [a]\n  resolution: DNS\n  endpoints:\n  - network: 'n'", 8, "spec.endpoints[0].address: is missing, which resolution DNS needs"},
		"entry path by DNS":       {entryHead + "  hosts: [a]\n  resolution: DNS\n  endpoints:\n  - address: unix:///a", 8, `spec.endpoints[0].address: "unix:///a" is neither a host name nor an IP address`},
		"entry path and port":     {entryHead + "  hosts: [a]\n  ports: [{number: 1, name: a}]\n  resolution: STATIC\n  endpoints:\n  - address: unix:///a\n    ports: {a: 1}", 10, "spec.endpoints[0].ports: does not go with a path"},
		"entry other port":        {entryHead + "  hosts: [a]\n  ports: [{number: 1, name: a}]\n  resolution: STATIC\n  endpoints:\n  - address: 10.0.0.1\n    ports: {b: 1}", 10, "spec.endpoints[0].ports[b]: is not the name of a port of the ServiceEntry"},
		"entry account":           {entryHead + "  hosts: [a]\n  resolution: STATIC\n  endpoints:\n  - address: 10.0.0.1\n    serviceAccount: a/b", 9, `spec.endpoints[0].serviceAccount: "a/b" is not a DNS name`},
		"entry null endpoint":     {entryHead + "  hosts: [a]\n  resolution: STATIC\n  endpoints:\n  -\n", 8, "spec.endpoints[0]: "},
		"telemetry selector":      {telemetry + "  selector: {matchLabels: {app: '*'}}", 5, "spec.selector.matchLabels[app]: wildcards and empty names are not allowed"},
		"telemetry provider":      {telemetry + "  accessLogging:\n  - providers: [{}]", 6, "spec.accessLogging[0].providers[0].name: is missing"},
		"token targets":           {tokenHead + "  selector: {}\n  targetRefs: [{kind: Gateway, name: g}]", 5, "spec.selector: cannot be used with targetRefs: use one of both"},
		"token other namespace":   {tokenHead + "  targetRefs:\n  - {kind: Gateway, group: gateway.networking.k8s.io, name: g, namespace: o}", 6, `spec.targetRefs[0].namespace: "o" is not the namespace of the policy, "n": leave it empty, and put the policy where the Gateway is`},
		"policy other namespace":  {policyHead + "  targetRef: {kind: Gateway, group: gateway.networking.k8s.io, name: g, namespace: o}", 5, `spec.targetRef.namespace: "o" is not the namespace of the policy, "n": leave it empty, and put the policy where the Gateway is`},
		"token selector":          {tokenHead + "  selector: {matchLabels: {app: '*'}}", 5, "spec.selector.matchLabels[app]: wildcards and empty names are not allowed"},
		"token rule":              {tokenHead + "  jwtRules: [null]", 5, "spec.jwtRules[0]: "},
		"token issuer":            {tokenHead + "  jwtRules:\n  - jwksUri: https://a", 6, "spec.jwtRules[0].issuer: is missing"},
		"token discovery":         {tokenHead + "  jwtRules:\n  - issuer: a@example.com", 6, `spec.jwtRules[0].issuer: "a@example.com" is not a URL from which its keys could be discovered: give jwksUri or jwks`},
		"token audience":          {tokenHead + "  jwtRules:\n  - issuer: https://a\n    audiences: ['']", 7, "spec.jwtRules[0].audiences[0]: is empty"},
		"token keys twice":        {tokenHead + "  jwtRules:\n  - issuer: a\n    jwks: '{}'\n    jwksUri: https://a", 8, "spec.jwtRules[0].jwksUri: cannot be used with jwks: use one of both"},
		"principal slashes":       {policyHead + "  rules:\n  - from:\n    - source: {requestPrincipals: ['" + strings.Repeat("/", 33) + "']}", 7, "spec.rules[0].from[0].source.requestPrincipals[0]: has 33 slashes: want at most 32"},
		"principal condition":     {policyHead + "  rules:\n  - when:\n    - {key: request.auth.principal, values: ['" + strings.Repeat("/", 33) + "']}", 7, "spec.rules[0].when[0].values[0]: has 33 slashes: want at most 32"},
		"token key URL":           {tokenHead + "  jwtRules:\n  - issuer: a\n    jwksUri: file:///etc/passwd", 7, "spec.jwtRules[0].jwksUri: is not a URL of http or https, of at most 2048 bytes and without user"},
		"token key user":          {tokenHead + "  jwtRules:\n  - issuer: a\n    jwksUri: https://a:b@c", 7, "spec.jwtRules[0].jwksUri: is not a URL of http or https, of at most 2048 bytes and without user"},
		"token keys":              {tokenHead + "  jwtRules:\n  - issuer: a\n    jwks: a", 7, "spec.jwtRules[0].jwks: is not a JSON Web Key Set"},
		"token no keys":           {tokenHead + "  jwtRules:\n  - issuer: a\n    jwks: '{\"keys\":[]}'", 7, "spec.jwtRules[0].jwks: has 0 keys: want 1 to 100"},
		"token weak key":          {tokenHead + "  jwtRules:\n  - issuer: a\n    jwks: '{\"keys\":[{\"kty\":\"RSA\",\"n\":\"AQ\",\"e\":\"AQAB\"}]}'", 7, "spec.jwtRules[0].jwks: has no usable key: key 0: RSA key of 1 bits: want 2048 to 8192"},
		"token header":            {tokenHead + "  jwtRules:\n  - issuer: https://a\n    fromHeaders: [{name: 'a b'}]", 7, `spec.jwtRules[0].fromHeaders[0].name: "a b" is not the name of a header`},
		"token parameter":         {tokenHead + "  jwtRules:\n  - issuer: https://a\n    fromParams: ['']", 7, "spec.jwtRules[0].fromParams[0]: is empty"},
		"token cookie":            {tokenHead + "  jwtRules:\n  - issuer: https://a\n    fromCookies: ['a;b']", 7, `spec.jwtRules[0].fromCookies[0]: "a;b" is not the name of a cookie`},
		"token payload":           {tokenHead + "  jwtRules:\n  - issuer: https://a\n    outputPayloadToHeader: ':path'", 7, `spec.jwtRules[0].outputPayloadToHeader: ":path" is not the name of a header that can be set`},
		"token claim header":      {tokenHead + "  jwtRules:\n  - issuer: https://a\n    outputClaimToHeaders: [{header: Host, claim: a}]", 7, `spec.jwtRules[0].outputClaimToHeaders[0].header: "Host" is not the name of a header that can be set`},
		"token claim twice":       {tokenHead + "  jwtRules:\n  - issuer: https://a\n    outputClaimToHeaders: [{header: a, claim: a}, {header: A, claim: b}]", 7, `spec.jwtRules[0].outputClaimToHeaders[1].header: "A" is given twice`},
		"token claim":             {tokenHead + "  jwtRules:\n  - issuer: https://a\n    outputClaimToHeaders: [{header: a}]", 7, "spec.jwtRules[0].outputClaimToHeaders[0].claim: is missing"},
		"token timeout":           {tokenHead + "  jwtRules:\n  - issuer: https://a\n    timeout: 1m", 7, "spec.jwtRules[0].timeout: 1m0s: want more than 0 and at most 30s"},
		"token claims":            {tokenHead + "  jwtRules:\n  - issuer: https://a\n    spaceDelimitedClaims: ['']", 7, "spec.jwtRules[0].spaceDelimitedClaims[0]: is empty"},
		"proxy config selector":   {proxyConfig + "  selector: {matchLabels: {app: '*'}}", 5, "spec.selector.matchLabels[app]: wildcards and empty names are not allowed"},
		"proxy config threads":    {proxyConfig + "  concurrency: -1", 5, "spec.concurrency: is -1: want 0 (one thread a core) to 1024"},
		"proxy config variable":   {proxyConfig + "  environmentVariables:\n    a=b: c", 6, `spec.environmentVariables[a=b]: "a=b" is not the name of a variable: want letters, digits, '_', '-' and '.', no digit first`},
		"proxy config text":       {proxyConfig + "  environmentVariables:\n    A: " + strings.Repeat("x", 2049), 6, "spec.environmentVariables[A]: has 2049 bytes: want at most 2048"},
		"plugin selector":         {wasmPlugin + "  url: file:///a\n  selector: {matchLabels: {app: '*'}}", 6, "spec.selector.matchLabels[app]: wildcards and empty names are not allowed"},
		"plugin targets":          {wasmPlugin + "  url: file:///a\n  selector: {}\n  targetRefs: [{kind: Gateway, name: g}]", 6, "spec.selector: cannot be used with targetRefs: use one of both"},
		"plugin target":           {wasmPlugin + "  url: file:///a\n  selector: {}\n  targetRef: {kind: Gateway, name: g}", 6, "spec.selector: cannot be used with targetRefs: use one of both"},
		"plugin URL":              {wasmPlugin + "  phase: AUTHN", 4, "spec.url: is missing"},
		"plugin URL syntax":       {wasmPlugin + "  url: 'file://%zz'", 5, `spec.url: "file://%zz" is not a URL`},
		"plugin file":             {wasmPlugin + "  url: file://a.wasm", 5, `spec.url: "file://a.wasm" does not name a file: use file:///, followed by its path`},
		"plugin port of a scheme": {wasmPlugin + "  url: file:5000/a", 5, `spec.url: "file:5000/a" does not name a file: use file:///, followed by its path`},
		"plugin scheme":           {wasmPlugin + "  url: ftp://a/b", 5, `spec.url: scheme "ftp" is not supported: use file, http, https or oci`},
		"plugin pull secret":      {wasmPlugin + "  url: oci://a.example/b\n  imagePullSecret: kubernetes://other/pull", 6, `spec.imagePullSecret: "kubernetes://other/pull" is not the name of a Secret in the plugin's namespace, n`},
		"plugin checksum":         {wasmPlugin + "  url: file:///a\n  sha256: abc", 6, "spec.sha256: is not a SHA-256 checksum: want 64 hexadecimal digits"},
		"plugin variable":         {wasmPlugin + "  url: file:///a\n  vmConfig: {env: [{value: a}]}", 6, "spec.vmConfig.env[0].name: is missing"},
		"plugin variables":        {wasmPlugin + "  url: file:///a\n  vmConfig: {env: [{name: A}, {name: A}]}", 6, `spec.vmConfig.env[1].name: "A" is given twice`},
		"plugin host value":       {wasmPlugin + "  url: file:///a\n  vmConfig: {env: [{name: A, value: a, valueFrom: HOST}]}", 6, "spec.vmConfig.env[0].value: cannot be used with valueFrom: HOST"},
		"extension":               {extension + "  phase: AUTHN", 4, "spec.wasm: is missing: an extension needs wasm or lua"},
		"extension URL":           {extension + "  wasm: {pluginName: a}", 5, "spec.wasm.url: is missing"},
		"extension scheme":        {extension + "  wasm: {url: 'ftp://a/b'}", 5, `spec.wasm.url: scheme "ftp" is not supported: use file, http, https or oci`},
		"extension pull secret":   {extension + "  wasm:\n    url: oci://a.example/b\n    imagePullSecret: kubernetes://other/pull", 7, `spec.wasm.imagePullSecret: "kubernetes://other/pull" is not the name of a Secret in the plugin's namespace, n`},
		"extension variable":      {extension + "  wasm: {url: 'file:///a', vmConfig: {env: [{value: a}]}}", 5, "spec.wasm.vmConfig.env[0].name: is missing"},
		"extension selector":      {extension + "  lua: {inlineCode: a}\n  selector: {matchLabels: {app: '*'}}", 6, "spec.selector.matchLabels[app]: wildcards and empty names are not allowed"},
		"extension port":          {extension + "  wasm: {url: 'file:///a'}\n  match: [{ports: [{number: 70000}]}]", 6, "spec.match[0].ports[0].number: 70000 is not a port: want 1 to 65535"},
		"extension code":          {extension + "  lua: {inlineCode: ' '}", 5, "spec.lua.inlineCode: is missing"},
		"extension long code":     {extension + "  lua: {inlineCode: " + strings.Repeat("x", 65537) + "}", 5, "spec.lua.inlineCode: has 65537 bytes, at most 65536 are possible"},
		"plugin port":             {wasmPlugin + "  url: file:///a\n  match: [{ports: [{number: 70000}]}]", 6, "spec.match[0].ports[0].number: 70000 is not a port: want 1 to 65535"},
		"metrics provider":        {telemetry + "  metrics:\n  - providers: [{}]", 6, "spec.metrics[0].providers[0].name: is missing"},
		"no expression":           {telemetry + "  accessLogging:\n  - filter: {}", 6, "spec.accessLogging[0].filter.expression: "},
		"expression syntax":       {telemetry + "  accessLogging:\n  - filter: {expression: 'response.code >='}", 6, "spec.accessLogging[0].filter.expression: "},
		"expression function":     {telemetry + "  accessLogging:\n  - filter: {expression: 'request.path.lowerAscii() == \"a\"'}", 6, "spec.accessLogging[0].filter.expression: calls lowerAscii(): Envoy has no such function with 0 arguments"},
		"expression macro":        {telemetry + "  accessLogging:\n  - filter: {expression: '[1].all(x, x == 1)'}", 6, "spec.accessLogging[0].filter.expression: calls all(): Envoy has no such function with 2 arguments"},
		"expression structure":    {telemetry + "  accessLogging:\n  - filter: {expression: 'google.rpc.Status{code: 1} == 1'}", 6, "spec.accessLogging[0].filter.expression: makes a structure, which Envoy does not support"},
		"expression pattern":      {telemetry + "  accessLogging:\n  - filter: {expression: 'request.path.matches(\"(\")'}", 6, `spec.accessLogging[0].filter.expression: "(" is not a regular expression`},
		"expression depth":        {telemetry + "  accessLogging:\n  - filter: {expression: '" + strings.Repeat("(", 33) + "true" + strings.Repeat(")", 33) + "'}", 6, "spec.accessLogging[0].filter.expression: "},
		"expression length":       {telemetry + "  accessLogging:\n  - filter: {expression: '" + strings.Repeat("a", 5000) + "'}", 6, "spec.accessLogging[0].filter.expression: has 5000 bytes, at most 4096 are accepted"},

		"workload host":      {workloadHead + "  address: a_b", 5, `spec.address: "a_b" is neither a host name nor an IP address`},
		"workload address":   {workloadHead + "  labels: {}", 4, "spec.address: is missing"},
		"workload port":      {workloadHead + "  address: 10.0.0.1\n  ports:\n    http: 0", 7, "spec.ports[http]: 0 is not a port: want 1 to 65535"},
		"workload port name": {workloadHead + "  address: 10.0.0.1\n  ports:\n    '': 1", 6, "spec.ports: has a port without a name"},
		"workload account":   {workloadHead + "  address: 10.0.0.1\n  serviceAccount: a/b", 6, `spec.serviceAccount: "a/b" is not a DNS name`},
		"workload locality":  {workloadHead + "  address: 10.0.0.1\n  locality: a/b/c/d", 6, `spec.locality: "a/b/c/d" has more than region/zone/subzone`},
		"workload label":     {workloadHead + "  address: 10.0.0.1\n  labels: {a: '*'}", 6, "spec.labels[a]: wildcards and empty names are not allowed"},
		"workload status":    {workloadHead + "  address: 10.0.0.1\nstatus:\n  conditions:\n  - type: 1", 8, "status.conditions[0].type: is a number, want a string"},

		"filter version":    {strings.Replace(filterHead, "v1alpha3", "v1", 1) + "  configPatches: []", 1, `apiVersion: EnvoyFilter of version "v1" is not read: use v1alpha3`},
		"filter selector":   {filterHead + "  workloadSelector:\n    labels:\n      a: '*'", 7, "spec.workloadSelector.labels[a]: wildcards and empty names are not allowed"},
		"filter operation":  {filterHead + "  configPatches:\n  - applyTo: HTTP_FILTER\n    patch:\n      operation: PUT", 8, `spec.configPatches[0].patch.operation: "PUT" is none of INVALID, MERGE, ADD, REMOVE, INSERT_BEFORE, INSERT_AFTER, INSERT_FIRST, REPLACE, MERGE_AND_REPLACE_LIST`},
		"filter null patch": {filterHead + "  configPatches:\n  -\n", 6, "spec.configPatches[0]: "},

		"mesh syntax":              {meshHead + "  mesh: |\n    a: 1\n    b: [\n    c: 1\n", 8, "data.mesh: "},
		"mesh key twice":           {meshHead + "  mesh: |\n    accessLogFile: a\n    rootNamespace: b\n    accessLogFile: c\n", 8, `data.mesh: key "accessLogFile" is given twice, first in line 6`},
		"mesh type":                {meshHead + "  mesh: |\n    accessLogFile: a\n    connectTimeout: soon\n", 7, "data.mesh: connectTimeout: \"soon\" is not a duration, such as 5s, 100ms or 1m"},
		"mesh trust domain":        {meshHead + "  mesh: |\n    # comment\n    trustDomain: A/b\n", 7, `data.mesh: trustDomain: "A/b" is not a SPIFFE trust domain`},
		"mesh folded":              {meshHead + "  mesh: \"trustDomain: A/b\"\n", 5, `data.mesh: trustDomain: "A/b" is not a SPIFFE trust domain`},
		"proxy port":               {meshHead + "  mesh: |\n    proxyListenPort: 70000\n", 6, "data.mesh: proxyListenPort: 70000 is not a port: want 1 to 65535"},
		"proxy ports":              {meshHead + "  mesh: |\n    proxyInboundListenPort: 15001\n", 6, "data.mesh: proxyInboundListenPort: is the same as proxyListenPort"},
		"http proxy port":          {meshHead + "  mesh: |\n    proxyHttpPort: 70000\n", 6, "data.mesh: proxyHttpPort: 70000 is not a port: want 1 to 65535, or 0 for none"},
		"http proxy port taken":    {meshHead + "  mesh: |\n    proxyHttpPort: 15001\n", 6, "data.mesh: proxyHttpPort: is the same as proxyListenPort"},
		"http proxy port inbound":  {meshHead + "  mesh: |\n    proxyHttpPort: 15006\n", 6, "data.mesh: proxyHttpPort: is the same as proxyInboundListenPort"},
		"http proxy port of agent": {meshHead + "  mesh: |\n    proxyHttpPort: 15020\n", 6, "data.mesh: proxyHttpPort: 15020 is a port of the proxy or of its agent"},
		"selector operator":        {meshHead + "  mesh: |\n    discoverySelectors:\n    - matchExpressions:\n      - {key: a, operator: Is}\n", 8, `data.mesh: discoverySelectors[0].matchExpressions[0].operator: "Is" is none of In, NotIn, Exists, DoesNotExist`},
		"selector values":          {meshHead + "  mesh: |\n    discoverySelectors: [{matchExpressions: [{key: a, operator: In}]}]\n", 6, "data.mesh: discoverySelectors[0].matchExpressions[0].values: is missing"},
		"selector no values":       {meshHead + "  mesh: |\n    discoverySelectors: [{matchExpressions: [{key: a, operator: Exists, values: [b]}]}]\n", 6, "data.mesh: discoverySelectors[0].matchExpressions[0].values: operator Exists has no values"},
		"selector key":             {meshHead + "  mesh: |\n    discoverySelectors: [{matchExpressions: [{operator: Exists}]}]\n", 6, "data.mesh: discoverySelectors[0].matchExpressions[0].key: is missing"},
		"mesh timeout":             {meshHead + "  mesh: |\n    connectTimeout: 0s\n", 6, "data.mesh: connectTimeout: must be more than 0 and at most 1h"},
		"mesh curve":               {meshHead + "  mesh: |\n    meshMTLS:\n      ecdhCurves:\n      - P-256\n      - P-512\n", 9, `data.mesh: meshMTLS.ecdhCurves[1]: "P-512" is none of X25519MLKEM768, X25519, P-256, P-384, P-521`},
		"default policy":           {meshHead + "  mesh: |\n    defaultTrafficPolicy: {outlierDetection: {maxEjectionPercent: 101}}\n", 6, "data.mesh: defaultTrafficPolicy.outlierDetection.maxEjectionPercent: 101 is not a percentage"},
		"cipher suite":             {meshHead + "  mesh: |\n    tlsDefaults:\n      cipherSuites: [AES128-SHA, RC4]\n", 7, `data.mesh: tlsDefaults.cipherSuites[1]: "RC4" is no cipher suite of Envoy`},
		"mesh curve twice":         {meshHead + "  mesh: |\n    meshMTLS: {ecdhCurves: [P-256, P-256]}\n", 6, `data.mesh: meshMTLS.ecdhCurves[1]: "P-256" is there twice`},
		"mesh is a list":           {meshHead + "  mesh: |\n    - a\n", 6, "data.mesh: "},
		"mesh networks range":      {meshHead + "  meshNetworks: |\n    networks:\n      n1:\n        endpoints:\n        - fromCidr: 10.0.0.0\n", 9, `data.meshNetworks: networks[n1].endpoints[0].fromCidr: "10.0.0.0" is not an address range such as 10.0.0.0/8`},
		"mesh networks port":       {meshHead + "  meshNetworks: |\n    networks:\n      n1:\n        gateways:\n        - address: 10.0.0.1\n", 9, "data.meshNetworks: networks[n1].gateways[0].port: 0 is not a port: want 1 to 65535"},
		"mesh networks source":     {meshHead + "  meshNetworks: |\n    networks:\n      n1:\n        endpoints:\n        - {}\n", 9, "data.meshNetworks: networks[n1].endpoints[0]: has neither fromRegistry nor fromCidr"},
	}
	c := &source.Converter{Cluster: "c", SocketDir: "/run"}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := objects(t, tt.in)[0]
			_, err := c.Decode(v, snapshot.Place{})
			var fault *fields.Error
			if !errors.As(err, &fault) {
				t.Fatalf("got %v, want a fault", err)
			}
			if fault.Line != tt.line || !strings.HasPrefix(fault.Error(), tt.want) || !strings.HasSuffix(tt.want, ": ") && fault.Error() != tt.want {
				t.Errorf("got  line %d: %s\nwant line %d: %s", fault.Line, fault, tt.line, tt.want)
			}
		})
	}
}

// TestFaults: all faults of the objects of testdata/faults/*.yaml are reported, each with its line. A
// Kubernetes API reports the same faults. The golden files beside the objects list them.
func TestFaults(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/faults/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no test data", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			for _, v := range objects(t, string(text)) {
				c := &source.Converter{Cluster: "c"}
				r, err := c.Decode(v, snapshot.Place{})
				fmt.Fprintf(&b, "# %s\n", fields.ObjectName(r.Key))
				fromFile, fromAPI := fields.FaultsOf(err), faultsOfJSON(t, c, v)
				for i, fault := range fromFile {
					fmt.Fprintf(&b, "line %d: %s\n", fault.Line, fault)
					if i < len(fromAPI) && (fromAPI[i].Field != fault.Field || fromAPI[i].Err.Error() != fault.Err.Error()) {
						t.Errorf("from a Kubernetes API: %s, from a file: %s", fromAPI[i], fault)
					}
				}
				if len(fromAPI) != len(fromFile) {
					t.Errorf("from a Kubernetes API: %d faults, from a file: %d", len(fromAPI), len(fromFile))
				}
			}
			compareGolden(t, strings.TrimSuffix(file, ".yaml")+".golden", b.String())
		})
	}
}

func faultsOfJSON(t *testing.T, c *source.Converter, v yamldoc.Value) []*fields.Error {
	t.Helper()
	text, err := v.JSON()
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.DecodeJSON(text)
	return fields.FaultsOf(err)
}

// TestUnreadKinds: kinds that are not read get a warning if they were likely meant to
// have an effect.
func TestUnreadKinds(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ apiVersion, kind, want string }{
		"misspelt policy":    {"security.istio.io/v1", "PeerAuthentification", "refuses: PeerAuthentification is not read, did you mean PeerAuthentication?"},
		"backend policy":     {"gateway.networking.k8s.io/v1", "BackendTLSPolicy", "shared: has no effect: no proxy uses it to check the backend's certificate"},
		"route":              {"gateway.networking.k8s.io/v1", "HTTPRoute", "shared: has no effect: no route is made of it"},
		"class":              {"gateway.networking.k8s.io/v1", "GatewayClass", ""},
		"misspelt":           {"networking.istio.io/v1", "Sidecarr", "Sidecarr is not read, did you mean Sidecar?"},
		"misspelt group":     {"telemetry.istio.io/v1", "DestinationRule", "DestinationRule is not read, did you mean apiVersion networking.istio.io/v1?"},
		"kind of another":    {"networking.istio.io/v1", "PeerAuthentication", "refuses: PeerAuthentication is not read, did you mean apiVersion security.istio.io/v1?"},
		"lower case":         {"v1", "service", "service is not read, did you mean Service?"},
		"unknown in core":    {"v1", "Job", "Job is not read"},
		"other core kind":    {"v1", "PersistentVolumeClaim", ""},
		"endpoints":          {"v1", "Endpoints", ""},
		"deployment":         {"apps/v1", "Deployment", ""},
		"gateway of another": {"networking.x-k8s.io/v1", "Gateway", ""},
		"misspelt slice":     {"discovery.k8s.io/v1", "Endpointslice", "Endpointslice is not read, did you mean EndpointSlice?"},
	}
	c := &source.Converter{Cluster: "c"}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := objects(t, "apiVersion: "+tt.apiVersion+"\nkind: "+tt.kind+"\nmetadata: {name: x, namespace: 'n'}\n")[0]
			r, err := c.Decode(v, snapshot.Place{})
			if want := (snapshot.Key{Kind: snapshot.Kind(tt.kind), Cluster: "c", Namespace: "n", Name: "x"}); err != nil || !r.Skipped || r.Key != want {
				t.Fatalf("got %+v, %v; want %s skipped", r, err, want)
			}
			var got string
			for _, w := range r.Warnings {
				got += w.Err.Error()
				if want := map[string]int{"": 1, "kind": 2}[w.Field]; w.Line != want {
					t.Errorf("line %d, want %d", w.Line, want)
				}
			}
			if r.Closed != nil {
				got = "refuses: " + got
			}
			if r.Shared {
				got = "shared: " + got
			}
			if got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

// FuzzDocument: no document makes the converter panic. An accepted object has the key of
// the result, and rendered as JSON it gives the same object.
func FuzzDocument(f *testing.F) {
	files, err := filepath.Glob("testdata/convert/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for c := range yamldoc.Split(text) {
			f.Add(c.Text)
		}
	}
	f.Add([]byte(routeHead + "  hosts: [a]\n  http: [null]"))
	f.Add([]byte(meshHead + "  mesh: |\n    trustDomain: a\n    defaultConfig: null\n"))
	c := &source.Converter{Cluster: "c", RefuseLocal: true}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := yamldoc.Parse(yamldoc.Chunk{Text: text, Line: 1})
		if err != nil {
			return
		}
		r, err := c.Decode(v, snapshot.Place{})
		if err != nil {
			var fault *fields.Error
			if !errors.As(err, &fault) || fault.Line < 0 {
				t.Fatalf("fault without a place: %v", err)
			}
			return
		}
		if r.Object == nil {
			return
		}
		if r.Object.Key() != r.Key {
			t.Fatalf("object is %s, its result says %s", r.Object.Key(), r.Key)
		}
		again, err := v.JSON()
		if err != nil {
			t.Fatal(err)
		}
		if v, err = yamldoc.Parse(yamldoc.Chunk{Text: again, Line: 1}); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		second, err := c.Decode(v, snapshot.Place{})
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if diff := cmp.Diff(r.Object, second.Object, protocmp.Transform(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" {
			t.Fatalf("%s became another object:\n%s", again, diff)
		}
	})
}
