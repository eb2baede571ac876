package xdsgen_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

var scale = flag.Float64("scale", 1, "TestGrownNamespaces: times the objects")

func items(n int, format string) string {
	list := make([]string, n)
	for i := range list {
		list[i] = strings.ReplaceAll(format, "#", fmt.Sprint(i+1))
	}
	return "[" + strings.Join(list, ",") + "]"
}

// tenantObject returns the text of an object.
func tenantObject(kind, name, spec string) string {
	api := "networking.istio.io/v1"
	switch kind {
	case "EnvoyFilter":
		api = "networking.istio.io/v1alpha3"
	case "AuthorizationPolicy", "RequestAuthentication", "PeerAuthentication":
		api = "security.istio.io/v1"
	case "Telemetry":
		api = "telemetry.istio.io/v1"
	case "WasmPlugin", "TrafficExtension":
		api = "extensions.istio.io/v1alpha1"
	}
	return `{"apiVersion":"` + api + `","kind":"` + kind + `","metadata":{"name":"` + name + `","namespace":"ns0"},"spec":{` + spec + `}}`
}

func repeatObjects(n int, kind, spec string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = tenantObject(kind, fmt.Sprintf("%s%d", strings.ToLower(kind[:1]), i), strings.ReplaceAll(spec, "@", fmt.Sprint(i)))
	}
	return out
}

func namespaceAttacks(scale float64) map[string][]string {
	n := func(n int) int { return int(float64(n) * scale) }
	ports := func(n int, proto string) string {
		return `"ports":` + items(n, `{"number":#,"name":"p#","protocol":"`+proto+`"}`)
	}
	entries := func(k, hosts, p int) []string {
		return repeatObjects(k, "ServiceEntry", `"resolution":"NONE","hosts":`+items(hosts, `"h#.e@.example"`)+`,`+ports(p, "HTTP"))
	}
	tcpEntry := repeatObjects(1, "ServiceEntry", `"resolution":"STATIC","endpoints":[{"address":"10.1.1.1"}],"hosts":`+items(1, `"h#.example"`)+`,`+ports(400, "TCP"))
	val := strings.Repeat("a/", 30) + strings.Repeat("a", 4000)
	out := map[string][]string{
		"SE clusters":                entries(n(200), 100, 100),
		"SE one host, many ports":    repeatObjects(n(30), "ServiceEntry", `"resolution":"DNS","hosts":["a.example"],"ports":`+items(500, `{"number":1@#,"name":"p@x#","protocol":"TCP"}`)),
		"SE one host, vips":          repeatObjects(n(60), "ServiceEntry", `"resolution":"STATIC","hosts":["a.example"],"addresses":`+items(250, `"240.1.@.#"`)+`,"ports":[{"number":80,"name":"h","protocol":"TCP"}]`),
		"SE same hosts":              repeatObjects(n(100), "ServiceEntry", `"resolution":"NONE","hosts":`+items(1000, `"h#.example"`)+`,"ports":[{"number":1@,"name":"p","protocol":"HTTP"}]`),
		"SE endpoints":               repeatObjects(n(40), "ServiceEntry", `"resolution":"STATIC","hosts":`+items(100, `"h#.e@.example"`)+`,"ports":[{"number":80,"name":"h","protocol":"HTTP"}],"endpoints":`+items(1000, `{"address":"10.1.1.1","ports":{"h":#}}`)),
		"DR wildcard x SE":           append(entries(n(10), 100, 100), tenantObject("DestinationRule", "d", `"host":"*.example","subsets":`+items(200, `{"name":"s#"}`))),
		"DR merged x service":        append(repeatObjects(n(100), "DestinationRule", `"host":"h1.e0.example","subsets":`+items(200, `{"name":"s#x@"}`)), entries(1, 1, 500)...),
		"EF x SE clusters":           append(entries(n(1), 100, 100), tenantObject("EnvoyFilter", "f", `"configPatches":[{"applyTo":"CLUSTER","patch":{"operation":"MERGE","value":{"alt_stat_name":"`+strings.Repeat("x", 120<<10)+`"}}}]`)),
		"EF many x SE listeners":     append(repeatObjects(n(10), "EnvoyFilter", `"configPatches":[{"applyTo":"LISTENER","patch":{"operation":"MERGE","value":{"metadata":{"filter_metadata":{"m@":{"a":"`+strings.Repeat("x", 120<<10)+`"}}}}}}]`), tcpEntry...),
		"EF same extension":          repeatObjects(n(500), "EnvoyFilter", `"configPatches":`+items(10, `{"applyTo":"EXTENSION_CONFIG","patch":{"operation":"ADD","value":{"name":"x#","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}}}`)),
		"AP slashes":                 repeatObjects(n(300), "AuthorizationPolicy", `"rules":[{"from":[{"source":{"requestPrincipals":["`+val+`"]}}]}]`),
		"AP headers":                 repeatObjects(n(20), "AuthorizationPolicy", `"action":"DENY","rules":[{"when":[{"key":"request.headers[a-b-c-d-e]","values":`+items(3000, `"v#"`)+`}]}]`),
		"AP many":                    repeatObjects(n(1000), "AuthorizationPolicy", `"action":"DENY","rules":`+items(20, `{"to":[{"operation":{"paths":["/a#@"]}}]}`)),
		"RA many":                    repeatObjects(n(1000), "RequestAuthentication", `"jwtRules":`+items(10, `{"issuer":"i#x@","jwksUri":"https://a.example/k"}`)),
		"Telemetry expr x listeners": append(repeatObjects(1, "Telemetry", `"accessLogging":`+items(1, `{"filter":{"expression":"response.code == 200`+strings.Repeat(" || response.code == 200", 150)+`"}}`)), tcpEntry...),
		"Telemetry tags x listeners": append(repeatObjects(1, "Telemetry", `"metrics":[{"providers":[{"name":"prometheus"}],"overrides":[{"tagOverrides":{`+strings.Trim(items(n(2000), `"t#":{"value":"request.method"}`), "[]")+`}}]}]`), tcpEntry...),
		"Wasm many":                  repeatObjects(n(1000), "WasmPlugin", `"url":"oci://a.example/b:@","sha256":"`+strings.Repeat("a", 64)+`","pluginConfig":{"a":"`+strings.Repeat("x", 1000)+`"}`),
		"VS one host":                repeatObjects(n(1000), "VirtualService", `"hosts":["a.example"],"http":[{"match":[{"uri":{"prefix":"/@"}}],"directResponse":{"status":200,"body":{"string":"`+strings.Repeat("x", 1000)+`"}}}]`),
		"VS hosts x routes":          repeatObjects(n(20), "VirtualService", `"hosts":`+items(1000, `"h#.v@.example"`)+`,"http":[{"directResponse":{"status":200,"body":{"string":"`+strings.Repeat("x", 30_000)+`"}}}]`),
		"VS gateway hosts x servers": append(repeatObjects(n(2), "VirtualService", `"gateways":["ns0/gw0"],"hosts":`+items(1000, `"h#.v@.example"`)+`,"http":[{"directResponse":{"status":200,"body":{"string":"`+strings.Repeat("x", 3000)+`"}}}]`), repeatObjects(1, "Gateway", `"selector":{"istio":"gw"},"servers":`+items(400, `{"hosts":["*"],"port":{"name":"h#","number":2#,"protocol":"HTTP"}}`))...),
		"VS mesh x ports":            append(repeatObjects(n(4), "VirtualService", `"hosts":`+items(100, `"h#.e0.example"`)+`,"http":[{"directResponse":{"status":200,"body":{"string":"`+strings.Repeat("x", 10_000)+`"}}}]`), entries(1, 100, 100)...),
		"Gateways":                   repeatObjects(n(1000), "Gateway", `"selector":{"istio":"gw"},"servers":`+items(20, `{"hosts":["h#x@.example"],"port":{"name":"h@","number":1@,"protocol":"HTTP"}}`)),
		"Gateways TLS":               repeatObjects(n(500), "Gateway", `"selector":{"istio":"gw"},"servers":`+items(20, `{"hosts":["h#x@.example"],"port":{"name":"h#x@","number":443,"protocol":"HTTPS"},"tls":{"mode":"SIMPLE","credentialName":"a"}}`)),
		"Sidecars":                   repeatObjects(n(1000), "Sidecar", `"workloadSelector":{"labels":{"app":"a@"}},"egress":[{"hosts":`+items(200, `"./h#.example"`)+`}]`),
		"VS delegates":               append(repeatObjects(n(50), "VirtualService", `"hosts":["r@.example"],"http":`+items(200, `{"match":[{"uri":{"prefix":"/@"}}],"delegate":{"name":"del"}}`)), tenantObject("VirtualService", "del", `"http":`+items(20, `{"match":[{"uri":{"prefix":"/@#/b"}}],"directResponse":{"status":200}}`))),
		"WorkloadEntries x SE":       append(repeatObjects(n(1000), "WorkloadEntry", `"address":"10.2.1.1","labels":{"app":"w"}`), repeatObjects(n(100), "ServiceEntry", `"resolution":"STATIC","hosts":["h@.example"],"workloadSelector":{"labels":{"app":"w"}},`+ports(10, "HTTP"))...),
		"VS wildcard":                append(repeatObjects(n(300), "VirtualService", `"hosts":["*.example"],"tls":`+items(10, `{"match":[{"port":443,"sniHosts":["s#.x@.example"]}],"route":[{"destination":{"host":"a"}}]}`)), entries(1, 1000, 1)...),
	}
	return out
}

// TestGrownNamespaces measures.
func TestGrownNamespaces(t *testing.T) {
	base := decodeObjects(t, "c1", "mesh", []byte(fuzzedMesh))
	for name, objects := range namespaceAttacks(*scale) {
		t.Run(name, func(t *testing.T) {
			size := 0
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			start := time.Now()
			events := append([]snapshot.Event{}, base...)
			refused := ""
			nref := 0
			for _, text := range objects {
				size += len(text)
				r, err := (&source.Converter{Cluster: "c1", RefuseLocal: true}).DecodeJSON([]byte(text))
				if err != nil {
					refused = fmt.Sprintf("%.150s", err.Error())
					nref++
				}
				o := r.Object
				if o == nil {
					o = r.Closed
				}
				if o != nil {
					events = append(events, snapshot.Event{Key: r.Key, Object: o})
				}
			}
			decoded := time.Since(start)
			r := registry.New(registry.Config{
				Local: "c1", Clusters: []mesh.ClusterID{"c1"}, SystemNamespace: mesh.DefaultSystemNamespace,
				Publish: func(*snapshot.Snapshot, *snapshot.Changes) {}, Log: slog.New(slog.DiscardHandler), Now: time.Now,
			})
			r.Apply(events)
			r.Synced("c1")
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- r.Run(ctx) }()
			contents, err := r.Contents(ctx)
			if err != nil {
				t.Fatal(err)
			}
			built := time.Since(start)
			runtime.GC()
			var mid runtime.MemStats
			runtime.ReadMemStats(&mid)
			sizes := []string{}
			var keep []any
			for i, node := range testNodes() {
				if i != 0 && i != 4 && node.ID.Type != mesh.Router {
					continue
				}
				s, k := 0, 0
				g := generate(t, contents.Snapshot, node)
				keep = append(keep, g)
				for _, resources := range g {
					for _, resource := range resources {
						s += resource.Size()
						k++
					}
				}
				sizes = append(sizes, fmt.Sprintf("%s/%s %d res %d MB", node.ID.Type, node.Namespace, k, s>>20))
			}
			generated := time.Since(start)
			runtime.GC()
			runtime.ReadMemStats(&after)
			// another change
			chg := decodeObjects(t, "c1", "x", []byte("apiVersion: v1\nkind: Service\nmetadata: {name: other, namespace: others}\nspec: {clusterIP: 10.96.0.9, ports: [{name: http, port: 80}]}\n"))
			s2 := time.Now()
			r.Apply(chg)
			c2, err := r.Contents(ctx)
			if err != nil {
				t.Fatal(err)
			}
			change := time.Since(s2)
			s3 := time.Now()
			fs := analyze.Check(c2, analyze.Options{Now: time.Now()})
			an := time.Since(s3)
			cancel()
			<-done
			t.Logf("%-28s %4d obj %5d KB: decode %v built %v gen %v change %v analyze %v (%d findings); heap reg %d MB gen %d MB alloc %d MB; %s; refused %d %s",
				name, len(objects), size>>10, decoded.Round(time.Millisecond), built.Round(time.Millisecond), generated.Round(time.Millisecond), change.Round(time.Millisecond), an.Round(time.Millisecond), len(fs),
				(int64(mid.HeapAlloc)-int64(before.HeapAlloc))>>20, (int64(after.HeapAlloc)-int64(before.HeapAlloc))>>20, (after.TotalAlloc-before.TotalAlloc)>>20, strings.Join(sizes, ", "), nref, refused)
			runtime.KeepAlive(keep)
		})
	}
}
