package e2e

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/dial"
)

// destinationMesh has the pod of a client and pods in three regions. The client and v1 share
// one.
const destinationMesh = `
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: "protocolDetectionTimeout: 5s"
---
apiVersion: v1
kind: Node
metadata: {name: near, labels: {topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: z1}}
---
apiVersion: v1
kind: Namespace
metadata: {name: close, annotations: {networking.istio.io/traffic-distribution: PreferClose}}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {app: client}}
spec: {nodeName: near, serviceAccountName: client}
status: {podIP: 10.11.0.77}
---
apiVersion: v1
kind: Pod
metadata: {name: v1, namespace: shop, labels: {version: v1}}
spec: {nodeName: near}
status: {podIP: 10.11.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: v2, namespace: shop, labels: {version: v2, istio-locality: r2.z1}}
status: {podIP: 10.11.0.2}
---
apiVersion: v1
kind: Pod
metadata: {name: v3, namespace: shop, labels: {version: v3, topology.istio.io/locality: r3.z1}}
status: {podIP: 10.11.0.3}
`

const (
	hashed  = "trafficPolicy: {loadBalancer: {consistentHash: {%s}}}"
	ejects  = "outlierDetection: {consecutive5xxErrors: 1, interval: 0.1s, baseEjectionTime: 0.1s, maxEjectionPercent: 100}"
	proxied = "trafficPolicy: {proxyProtocol: {version: %s}}"
)

// warmup is the time in which the share of a new endpoint grows.
const warmup = 20 * time.Second

// destinationServices are the services of TestDestinationScenarios. Their addresses are
// 10.96.1.1 and so on. ready and growing are the endpoints of those whose endpoints change.
func destinationServices(ready, growing string) []testService {
	out := []testService{
		{name: "cookie", port: 80, rule: fmt.Sprintf(hashed, "httpCookie: {name: user, ttl: 3600s}")},
		{name: "source", port: 80, rule: fmt.Sprintf(hashed, "useSourceIp: true")},
		{name: "query", port: 80, rule: fmt.Sprintf(hashed, "httpQueryParameterName: user")},
		{name: "maglev", port: 80, rule: fmt.Sprintf(hashed, "httpHeaderName: x-user, maglev: {tableSize: 101}")},
		{name: "tcp-source", port: 90, protocol: "tcp", target: bannerPort, rule: fmt.Sprintf(hashed, "useSourceIp: true")},
		{name: "ready", port: 80, endpoints: ready, rule: "trafficPolicy: {" + ejects + "}"},
		{name: "failover", port: 80, endpoints: endpointsOf("v2", "v3"), rule: "trafficPolicy: {loadBalancer: {localityLbSetting: {failover: [{from: r1, to: r3}]}}, " + ejects + "}"},
		{name: "priority", port: 80, rule: "trafficPolicy: {loadBalancer: {localityLbSetting: {failoverPriority: ['version=v2']}}, " + ejects + "}"},
		{name: "distributed", port: 80, rule: "trafficPolicy: {loadBalancer: {localityLbSetting: {distribute: [{from: r1/*, to: {r1/*: 20, r2/*: 80}}]}}}"},
		{name: "ejected", port: 80, rule: "trafficPolicy: {" + ejects + ", loadBalancer: {localityLbSetting: {enabled: false}}}"},
		{name: "robin", port: 80, rule: "trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN}}"},
		{name: "http2", port: 80, protocol: "http2"},
		{name: "upgraded", port: 80, rule: "trafficPolicy: {connectionPool: {http: {h2UpgradePolicy: UPGRADE}}}"},
		{name: "as-client", port: 80, rule: "trafficPolicy: {connectionPool: {http: {useClientProtocol: true}}}"},
		{name: "grpc", port: 80, protocol: "grpc", target: grpcPort, rule: "subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]"},
		{name: "detected", port: 91, protocol: "any"},
		{name: "first", port: 92, protocol: "any", target: bannerPort},
		{name: "header1", port: 90, protocol: "tcp", target: headerPort, rule: fmt.Sprintf(proxied, "V1")},
		{name: "header2", port: 90, protocol: "tcp", target: headerPort, rule: fmt.Sprintf(proxied, "V2")},
		{name: "headless", vip: "None", port: webPort},
		{name: "headless-tcp", vip: "None", port: bannerPort, protocol: "tcp", target: bannerPort},
		{name: "private", namespace: "other", port: 80, annotations: `networking.istio.io/exportTo: "."`},
		{
			name: "late", port: 80, target: securePort, endpoints: "{addresses: [127.0.0.1]}",
			rule: "workloadSelector: {matchLabels: {app: client}}, trafficPolicy: {tls: {mode: SIMPLE, credentialName: late, sni: example.com, subjectAltNames: [example.com]}}",
		},
		{name: "cold", port: 80, endpoints: growing, rule: "trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN}}"},
		{name: "warm", port: 80, endpoints: growing, rule: fmt.Sprintf("trafficPolicy: {loadBalancer: {simple: ROUND_ROBIN, warmup: {duration: %s, minimumPercent: 1, aggression: 0.9}}}", warmup)},
		{name: "close", namespace: "close", port: 80},
		{name: "half", port: 80, endpoints: "{addresses: [10.11.0.1]}, {addresses: [10.11.0.9]}"},
	}
	for i := range out {
		s := &out[i]
		if s.vip == "" {
			s.vip = fmt.Sprint("10.96.1.", i+1)
		}
		if s.protocol == "" {
			s.protocol = "http"
		}
		if s.target == 0 {
			s.target = webPort
		}
	}
	return out
}

// samePort has services without an address at one port.
const samePort = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: same-http, namespace: shop, creationTimestamp: "2024-01-03T00:00:00Z"}
spec:
  hosts: [http.same.test]
  resolution: STATIC
  ports: [{number: 95, name: http, protocol: HTTP, targetPort: 9001}]
  endpoints: [{address: 10.11.0.1}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: same-newer, namespace: shop, creationTimestamp: "2024-01-02T00:00:00Z"}
spec:
  hosts: [newer.same.test]
  resolution: STATIC
  ports: [{number: 95, name: tcp, protocol: TCP, targetPort: 9002}]
  endpoints: [{address: 10.11.0.3}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: same-older, namespace: shop, creationTimestamp: "2024-01-01T00:00:00Z"}
spec:
  hosts: [older.same.test]
  resolution: STATIC
  ports: [{number: 95, name: tcp, protocol: TCP, targetPort: 9002}]
  endpoints: [{address: 10.11.0.2}]
`

// twoFamilies is a service whose only reachable endpoint has IPv4, as the client has.
const twoFamilies = `---
apiVersion: v1
kind: Service
metadata: {name: families, namespace: shop}
spec: {clusterIP: 10.96.2.1, clusterIPs: [10.96.2.1, "fd00:96::1"], ipFamilies: [IPv4, IPv6], ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: families-4, namespace: shop, labels: {kubernetes.io/service-name: families}}
addressType: IPv4
ports: [{name: http, port: 9001}]
endpoints: [{addresses: [10.11.0.1]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: families-6, namespace: shop, labels: {kubernetes.io/service-name: families}}
addressType: IPv6
ports: [{name: http, port: 9001}]
endpoints: [{addresses: ["fd00:11::1"]}, {addresses: ["fd00:11::2"]}]
`

// grpcRoutes routes calls of gRPC by method and header.
const grpcRoutes = `---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: grpc, namespace: shop}
spec:
  hosts: [grpc]
  http:
  - match: [{uri: {exact: /grpc.health.v1.Health/Check}, headers: {x-version: {exact: v2}}}]
    route: [{destination: {host: grpc, subset: v2}}]
  - route: [{destination: {host: grpc, subset: v1}}]
`

// sticks checks that each of 20 users always reaches one version, and all together both.
func sticks(t *testing.T, ask func(user int) string) {
	t.Helper()
	versions := map[string]int{}
	for user := range 20 {
		first := ask(user)
		versions[first]++
		for range 3 {
			if got := ask(user); got != first {
				t.Errorf("user %d is at %s after %s", user, got, first)
			}
		}
	}
	if len(versions) != 2 || versions["v1"]+versions["v2"] != 20 {
		t.Errorf("users by version: %v", versions)
	}
}

// shares returns the number of responses by body.
func shares(t *testing.T, url string, requests int) map[string]int {
	t.Helper()
	out := map[string]int{}
	for range requests {
		out[requested(t, url, "").body]++
	}
	return out
}

// TestDestinationScenarios sends requests and connections of several protocols to services
// with DestinationRules.
func TestDestinationScenarios(t *testing.T) {
	if !inPod(t) {
		return
	}
	partner := issue(t, authority(t, "partner"), certs.ECDSAP256, "example.com")
	vips := map[string]string{}
	ready, growing := endpointsOf("v1"), endpointsOf("v1")
	objects := func() string {
		out := destinationMesh + samePort + twoFamilies + grpcRoutes
		for _, s := range destinationServices(ready, growing) {
			out += s.objects()
			vips[s.name] = s.vip
		}
		return out
	}
	p := startPod(t, objects(), "10.11.0.77")
	for pod, ip := range podIPs {
		p.address(t, ip)
		startPodServers(t, pod, ip)
	}
	p.address(t, "10.11.0.9") // has no server
	servesTLS(t, fmt.Sprint("127.0.0.1:", securePort), &tls.Config{Certificates: []tls.Certificate{*partner.client(t)}},
		func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.TLS.ServerName) })
	for i := range 20 {
		p.address(t, fmt.Sprint("10.12.0.", i+1)) // users
	}
	web := func(service string) string { return "http://" + vips[service] }
	change := func(endpoints *string, pods ...string) {
		*endpoints = endpointsOf(pods...)
		replace(t, filepath.Join(p.dir, "mesh", "cluster1", "mesh.yaml"), objects())
	}

	t.Run("hash of a cookie", func(t *testing.T) {
		cookies := make([]string, 20)
		sticks(t, func(user int) string {
			got := requested(t, web("cookie"), "", "Cookie", cookies[user])
			if cookies[user] == "" {
				cookie, err := http.ParseSetCookie(got.header.Get("Set-Cookie"))
				if err != nil || cookie.Name != "user" || cookie.MaxAge != 3600 {
					t.Fatalf("%+v: %v", got, err)
				}
				cookies[user] = cookie.Name + "=" + cookie.Value
			}
			return got.body
		})
	})
	t.Run("hash of the source address", func(t *testing.T) {
		sticks(t, func(user int) string {
			got := streamed(t, fmt.Sprint("10.12.0.", user+1), vips["source"]+":80", "GET / HTTP/1.1\r\nHost: source\r\nConnection: close\r\n\r\n")
			return got[strings.LastIndex(got, "\n")+1:]
		})
	})
	t.Run("hash of the source address for TCP", func(t *testing.T) {
		sticks(t, func(user int) string {
			return streamed(t, fmt.Sprint("10.12.0.", user+1), vips["tcp-source"]+":90", "")
		})
	})
	t.Run("hash of a query parameter", func(t *testing.T) {
		sticks(t, func(user int) string { return requested(t, fmt.Sprint(web("query"), "/?user=", user), "").body })
	})
	t.Run("Maglev", func(t *testing.T) {
		sticks(t, func(user int) string { return requested(t, web("maglev"), "", "x-user", fmt.Sprint(user)).body })
	})
	t.Run("endpoints of another family", func(t *testing.T) {
		if got := shares(t, "http://10.96.2.1", 20); got["v1"] != 20 {
			t.Errorf("shares %v", got)
		}
	})
	t.Run("round robin", func(t *testing.T) {
		if got := shares(t, web("robin"), 100); got["v1"] != 50 || got["v2"] != 50 {
			t.Errorf("shares %v", got)
		}
	})
	t.Run("distribution over localities", func(t *testing.T) {
		if got := shares(t, web("distributed"), 1000); got["v1"] < 150 || got["v1"] > 250 || got["v1"]+got["v2"] != 1000 {
			t.Errorf("shares %v, want 20 %% and 80 %%", got)
		}
	})
	t.Run("distribution of a namespace", func(t *testing.T) {
		if got := shares(t, web("close"), 20); got["v1"] != 20 {
			t.Errorf("shares %v", got)
		}
	})
	t.Run("failover to a region", func(t *testing.T) {
		if got := shares(t, web("failover"), 20); got["v3"] != 20 {
			t.Errorf("shares %v", got)
		}
	})
	t.Run("failover by label", func(t *testing.T) {
		if got := shares(t, web("priority"), 20); got["v1"]+got["v2"] != 20 {
			t.Errorf("shares %v", got)
		}
	})
	t.Run("failover and back", func(t *testing.T) {
		for _, step := range []struct {
			pods []string
			want string
		}{
			{[]string{"v1", "v2"}, "v1"}, {[]string{"v2", "not ready", "v1"}, "v2"}, {[]string{"v1", "v2"}, "v1"},
		} {
			change(&ready, step.pods...)
			eventually(t, "requests go to "+step.want, func() error {
				if got := shares(t, web("ready"), 10); got[step.want] != 10 {
					return fmt.Errorf("shares %v", got)
				}
				return nil
			})
		}
	})
	t.Run("slow start", func(t *testing.T) {
		reaches := func(service string, want ...string) func() error {
			return func() error {
				if got := shares(t, web(service), 10*len(want)); len(got) != len(want) || got[want[0]] == 0 {
					return fmt.Errorf("shares %v", got)
				}
				return nil
			}
		}
		eventually(t, "v2 begins with a small share", func() error {
			change(&growing, "v1")
			eventually(t, "v2 is gone", reaches("cold", "v1"))
			time.Sleep(warmup) // v1 may be new, too
			began := time.Now()
			change(&growing, "v1", "v2")
			eventually(t, "v2 is there", reaches("cold", "v1", "v2"))
			got := shares(t, web("warm"), 50)
			if took := time.Since(began); took > warmup/2 {
				return fmt.Errorf("the requests took too long, %s", took)
			}
			if got["v2"] > 17 {
				t.Errorf("shares %v within half of the time to warm up, want at most a third at v2", got)
			}
			return nil
		})
		eventually(t, "v2 has its whole share", func() error {
			if got := shares(t, web("warm"), 20); got["v2"] != 10 {
				return fmt.Errorf("shares %v", got)
			}
			return nil
		})
	})
	t.Run("ejection and return", func(t *testing.T) {
		only := func(want ...string) func() error {
			return func() error {
				got := shares(t, web("ejected"), 10)
				for _, version := range want {
					if got[version] == 0 {
						return fmt.Errorf("shares %v", got)
					}
				}
				if len(got) != len(want) {
					return fmt.Errorf("shares %v", got)
				}
				return nil
			}
		}
		eventually(t, "v1 is ejected", func() error {
			requested(t, web("ejected")+"/v1-fails", "")
			return only("v2")()
		})
		eventually(t, "v1 returns", only("v1", "v2"))
	})
	t.Run("protocols", func(t *testing.T) {
		for service, want := range map[string]string{"robin": "HTTP/1.1", "http2": "HTTP/2.0", "upgraded": "HTTP/2.0", "as-client": "HTTP/1.1"} {
			if got := requested(t, web(service)+"/protocol", "").body; got != want {
				t.Errorf("a client of HTTP/1.1 reaches %s by %s, want %s", service, got, want)
			}
		}
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		client := dial.HTTPClientOver(&http.Transport{Protocols: protocols})
		defer client.CloseIdleConnections()
		for url, want := range map[string]string{
			web("robin"): "HTTP/1.1", web("http2"): "HTTP/2.0", web("as-client"): "HTTP/2.0", web("detected") + ":91": "HTTP/2.0",
		} {
			resp, err := client.Get(url + "/protocol")
			if err != nil {
				t.Errorf("%s: %v", url, err)
				continue
			}
			body, err := io.ReadAll(resp.Body)
			if _ = resp.Body.Close(); err != nil || string(body) != want {
				t.Errorf("a client of HTTP/2 reaches %s by %s, want %s: %v", url, body, want, err)
			}
		}
	})
	t.Run("gRPC", func(t *testing.T) {
		conn, err := grpc.NewClient("passthrough:///"+vips["grpc"]+":80", grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		for _, row := range []struct{ service, header, want string }{
			{"", "v1", "v1"}, {"", "v2", "v2"}, {"unavailable", "", "v1"}, // repeated by default
		} {
			var header metadata.MD
			ctx := metadata.AppendToOutgoingContext(t.Context(), "x-version", row.header)
			_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: row.service}, grpc.Header(&header))
			if err != nil || strings.Join(header["x-version"], " ") != row.want {
				t.Errorf("%+v: %v: %v", row, header, err)
			}
		}
	})
	t.Run("WebSocket", func(t *testing.T) {
		conn, err := net.Dial("tcp", vips["robin"]+":80")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		fmt.Fprint(conn, "GET /socket HTTP/1.1\r\nHost: robin\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		fmt.Fprint(conn, "frame\n")
		if line, err := in.ReadString('\n'); err != nil || resp.StatusCode != http.StatusSwitchingProtocols || line != "frame\n" {
			t.Errorf("%s, then %q: %v", resp.Status, line, err)
		}
	})
	t.Run("server that sends first, at a port with detection", func(t *testing.T) {
		if got := streamed(t, "", vips["first"]+":92", ""); got != "v1" && got != "v2" {
			t.Errorf("received %q", got)
		}
	})
	t.Run("PROXY protocol", func(t *testing.T) {
		if got := streamed(t, "10.12.0.1", vips["header1"]+":90", "x\n"); !strings.HasPrefix(got, "PROXY TCP4 10.12.0.1 "+vips["header1"]+" ") {
			t.Errorf("version 1: %q", got)
		}
		if got := streamed(t, "10.12.0.1", vips["header2"]+":90", "x\n"); !strings.HasPrefix(got, "\r\n") {
			t.Errorf("version 2: %q", got) // the signature starts with an empty line
		}
	})
	t.Run("headless", func(t *testing.T) {
		for _, pod := range []string{"v1", "v2"} {
			if got := requested(t, fmt.Sprint("http://", podIPs[pod], ":", webPort), "").body; got != pod {
				t.Errorf("HTTP to pod %s: %q", pod, got)
			}
			if got := streamed(t, "", fmt.Sprint(podIPs[pod], ":", bannerPort), ""); got != pod {
				t.Errorf("TCP to pod %s: %q", pod, got)
			}
		}
	})
	t.Run("service of another namespace", func(t *testing.T) {
		p.address(t, vips["private"])
		answers(t, vips["private"]+":80", "stranger")
		if got := requested(t, web("private"), "private.other").body; got != "stranger" {
			t.Errorf("a service that is not exported: %q", got)
		}
	})
	t.Run("TLS with a Secret that comes later", func(t *testing.T) {
		if got := requested(t, web("late"), ""); got.status != http.StatusServiceUnavailable {
			t.Errorf("without the Secret: %+v", got)
		}
		replace(t, filepath.Join(p.dir, "mesh", "cluster1", "late.yaml"), partner.secret("shop", "late", partner.roots))
		eventually(t, "the Secret arrives", func() error {
			if got := requested(t, web("late"), "").body; got != "example.com" {
				return errors.New(got)
			}
			return nil
		})
	})
	t.Run("HTTP and TCP without an address at one port", func(t *testing.T) {
		if got := requested(t, "http://10.97.0.1:95", "http.same.test").body; got != "v1" {
			t.Errorf("HTTP: %q", got)
		}
		if got := streamed(t, "", "10.97.0.1:95", ""); got != "v2" {
			t.Errorf("TCP: %q, want the older service", got)
		}
	})
	t.Run("default retries of refused connections", func(t *testing.T) {
		if got := shares(t, web("half"), 50); got["v1"] != 50 {
			t.Errorf("shares %v", got)
		}
	})
}
