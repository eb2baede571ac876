package attacks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// items returns a JSON list. In the format, # is the number of the item.
func items(n int, format string) string {
	list := make([]string, n)
	for i := range list {
		list[i] = strings.ReplaceAll(format, "#", fmt.Sprint(i+1))
	}
	return "[" + strings.Join(list, ",") + "]"
}

// objects returns objects of the tenant. In the spec, @ is the number of the object.
func objects(n int, kind, spec string) []string {
	group := map[string]string{
		"AuthorizationPolicy": "security.istio.io/v1", "EnvoyFilter": "networking.istio.io/v1alpha3",
		"Telemetry": "telemetry.istio.io/v1", "WasmPlugin": "extensions.istio.io/v1alpha1",
	}[kind]
	if group == "" {
		group = "networking.istio.io/v1"
	}
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"o%d","namespace":"tenant"},"spec":{%s}}`, group, kind, i, strings.ReplaceAll(spec, "@", fmt.Sprint(i)))
	}
	return out
}

// entries returns ServiceEntries with some hosts and ports.
func entries(n, hosts, ports int) []string {
	return objects(n, "ServiceEntry", `"resolution":"NONE","hosts":`+items(hosts, `"h#.e@.example"`)+`,"ports":`+items(ports, `{"number":#,"name":"p#","protocol":"HTTP"}`))
}

// tracing is a mesh whose operator traces requests.
const tracing = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"istio","namespace":"istio-system"},"data":{"mesh":"enableTracing: true\ndefaultProviders: {tracing: [t]}\nextensionProviders: [{name: t, opentelemetry: {service: svc-1.others.svc.cluster.local, port: 80}}]\n"}}`

// namespaces are the objects of a tenant that become large only together. Each has at most 1.5 MB.
func namespaces() map[string][]string {
	text := func(n int) string { return strings.Repeat("x", n) }
	body := func(n int) string {
		return `"http":[{"directResponse":{"status":200,"body":{"string":"` + text(n) + `"}}}]`
	}
	subsets := `"subsets":` + items(200, `{"name":"s#x@"}`)
	cluster := `{"applyTo":"CLUSTER","patch":{"operation":"MERGE","value":{"alt_stat_name":"` + text(120<<10) + `"}}}`
	return map[string][]string{
		"ServiceEntries":                                        entries(200, 100, 100),
		"ServiceEntries of one host":                            objects(60, "ServiceEntry", `"resolution":"DNS","hosts":["a.example"],"ports":`+items(400, `{"number":1@#,"name":"p#x@","protocol":"TCP"}`)),
		"ServiceEntries with endpoints":                         objects(30, "ServiceEntry", `"resolution":"STATIC","hosts":`+items(100, `"h#.e@.example"`)+`,"ports":[{"number":80,"name":"h","protocol":"HTTP"}],"endpoints":`+items(1000, `{"address":"10.1.1.1","ports":{"h":#}}`)),
		"a DestinationRule of all hosts":                        append(entries(4, 100, 100), objects(1, "DestinationRule", `"host":"*.example",`+subsets)...),
		"DestinationRules of one host":                          append(entries(1, 1, 500), objects(300, "DestinationRule", `"host":"h1.e0.example",`+subsets)...),
		"a patch of all clusters":                               append(entries(1, 100, 100), objects(1, "EnvoyFilter", `"configPatches":[`+cluster+`]`)...),
		"many patches of all clusters":                          append(entries(1, 100, 100), objects(10, "EnvoyFilter", `"configPatches":`+items(500, `{"applyTo":"CLUSTER","patch":{"operation":"MERGE","value":{"alt_stat_name":"a#x@"}}}`))...),
		"patches that no cluster can have":                      append(entries(1, 100, 100), objects(1, "EnvoyFilter", `"configPatches":`+items(500, `{"applyTo":"CLUSTER","patch":{"operation":"MERGE","value":{"connect_timeout":"-#s"}}}`))...),
		"VirtualServices of many hosts":                         objects(30, "VirtualService", `"hosts":`+items(1000, `"h#.v@.example"`)+`,`+body(30_000)),
		"VirtualServices at many ports":                         append(entries(1, 100, 100), objects(100, "VirtualService", `"hosts":`+items(100, `"h#.e0.example"`)+`,`+body(10_000))...),
		"VirtualServices at many servers":                       append(objects(1, "Gateway", `"selector":{"istio":"gw"},"servers":`+items(400, `{"hosts":["*"],"port":{"name":"h#","number":2#,"protocol":"HTTP"}}`)), objects(30, "VirtualService", `"gateways":["o0"],"hosts":`+items(1000, `"h#.v@.example"`)+`,`+body(20_000))...),
		"a VirtualService of a wildcard":                        append(entries(1, 100, 100), objects(1, "VirtualService", `"hosts":["*.example"],`+body(500_000))...),
		"VirtualServices of many wildcards":                     append(entries(1, 10_000, 1), objects(60, "VirtualService", `"hosts":`+items(1000, `"*.h#.e@.example"`)+`,`+body(10))...),
		"VirtualServices with a delegate":                       append(objects(1, "VirtualService", `"http":`+items(40, `{"match":[{"uri":{"prefix":"/#"}}],"directResponse":{"status":200}}`)), rename("d", objects(150, "VirtualService", `"hosts":["r@.example"],"http":`+items(100, `{"match":[{"port":#}],"delegate":{"name":"o0"}}`)))...),
		"AuthorizationPolicies with forms of a name":            objects(60, "AuthorizationPolicy", `"action":"DENY","rules":[{"when":[{"key":"request.headers[a-b-c-d-e]","values":`+items(3000, `"v#"`)+`}]}]`),
		"EnvoyFilters with one extension":                       objects(3500, "EnvoyFilter", `"configPatches":[{"applyTo":"EXTENSION_CONFIG","patch":{"operation":"ADD","value":{"name":"e","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer","max_request_bytes":1}}}}]`),
		"AuthorizationPolicies of unknown providers":            objects(7000, "AuthorizationPolicy", `"action":"CUSTOM","provider":{"name":"p@"},"rules":[{}]`),
		"a Telemetry of unknown providers":                      objects(1, "Telemetry", `"accessLogging":[{"providers":`+items(60_000, `{"name":"p#"}`)+`}]`),
		"VirtualServices of hosts with many labels":             objects(6, "VirtualService", `"hosts":`+items(1000, `"h#x@.`+strings.Repeat("a.", 110)+`example"`)+`,"tcp":[{"route":[{"destination":{"host":"a.example"}}]}]`),
		"VirtualServices of hosts with many labels that differ": objects(6, "VirtualService", `"hosts":`+items(1000, `"h#x@.`+strings.Repeat("#.", 50)+`example"`)+`,"tcp":[{"route":[{"destination":{"host":"a.example"}}]}]`),
		"VirtualServices of one wildcard":                       append(objects(3500, "VirtualService", `"hosts":["*.v.example"],`+body(1)), rename("h", objects(30, "VirtualService", `"hosts":`+items(1000, `"h#x@.v.example"`)+`,`+body(1)))...),
		"VirtualServices of parts of wildcards":                 append(objects(30, "VirtualService", `"hosts":`+items(1000, `"*-h#x@.v.example"`)+`,`+body(1)), rename("h", objects(30, "VirtualService", `"hosts":`+items(1000, `"h#x@.v.example"`)+`,`+body(1)))...),
		"Gateways with many selectors":                          append(objects(300, "Gateway", `"selector":{"istio":"gw"},"servers":`+items(10, `{"hosts":["h#x@.example"],"port":{"name":"h","number":1000,"protocol":"HTTP"}}`)), rename("s", objects(700, "Gateway", `"selector":{"istio":"gw","x":"@"},"servers":`+items(10, `{"hosts":["h#x@.example"],"port":{"name":"h","number":1000,"protocol":"TCP"}}`)))...),
		"Gateways at many ports":                                gatewaysAtPorts(25, 800),
		"Gateways with many certificates":                       objects(12, "Gateway", `"selector":{"istio":"gw"},"servers":`+items(1000, `{"hosts":["h#x@.example"],"port":{"name":"h","number":443,"protocol":"HTTPS"},"tls":{"mode":"SIMPLE","credentialName":"c"}}`)),
		"a Telemetry for many listeners":                        append(append(entries(1, 25, 400), tracing), objects(1, "Telemetry", `"tracing":[{"customTags":{"a":{"literal":{"value":"`+text(900_000)+`"}}}}]`)...),
		"WasmPlugins for many listeners":                        append(entries(1, 25, 400), objects(5000, "WasmPlugin", `"url":"https://a.example/@.wasm"`)...),
		"Sidecars with many hosts":                              append(entries(2, 100, 100), objects(100, "Sidecar", `"workloadSelector":{"labels":{"a":"@"}},"egress":[{"hosts":`+items(900, `"*/h#.e0.example"`)+`}]`)...),
	}
}

// gatewaysAtPorts returns Gateways with servers that have a port of their own.
func gatewaysAtPorts(n, servers int) []string {
	out := objects(n, "Gateway", "")
	for i := range out {
		list := make([]string, servers)
		for j := range list {
			list[j] = fmt.Sprintf(`{"hosts":["*"],"port":{"name":"h","number":%d,"protocol":"HTTP"}}`, 20_000+i*servers+j)
		}
		out[i] = strings.Replace(out[i], `"spec":{}`, `"spec":{"selector":{"istio":"gw"},"servers":[`+strings.Join(list, ",")+`]}`, 1)
	}
	return out
}

// rename changes the names of objects.
func rename(prefix string, list []string) []string {
	for i, o := range list {
		list[i] = strings.Replace(o, `"metadata":{"name":"o`, `"metadata":{"name":"`+prefix, 1)
	}
	return list
}

// TestManyObjectsOfANamespace: whatever the objects of a tenant become together, the control plane
// serves the others, and the proxies of the tenant do not make it grow.
func TestManyObjectsOfANamespace(t *testing.T) {
	for name, list := range namespaces() {
		t.Run(name, func(t *testing.T) {
			m := startSmallMesh(t)
			m.connect()
			m.reaches("svc-1")
			m.subscribe("sidecar~10.0.1.1~p.tenant~tenant.svc.cluster.local")
			m.subscribe("router~10.0.2.1~gw.gateways~gateways.svc.cluster.local")
			size, docs := 0, 0
			for i := 0; len(list) > 0; i++ {
				n, text := 0, ""
				for n < len(list) && len(text) < 1<<20 {
					text += list[n] + "\n---\n"
					n++
				}
				m.write(fmt.Sprintf("large-%d", i), text)
				size, docs, list = size+len(text), docs+n, list[n:]
			}
			t.Logf("%d objects of %d bytes", docs, size)
			for range 3 {
				m.reaches(m.change())
			}
			m.withstood()
		})
	}
}

// subscribe connects a proxy with all types, and acknowledges what it gets.
func (m *smallMesh) subscribe(node string) {
	m.t.Helper()
	m.stream(node, func([]string) {}, xdswire.ClusterType, xdswire.EndpointType, xdswire.ListenerType, xdswire.RouteType)
}
