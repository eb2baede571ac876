package e2e

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

// routedMesh has services with two versions, and VirtualServices for them.
var routedMesh = func() string {
	var out strings.Builder
	fmt.Fprint(&out, `
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {app: client}}
spec: {serviceAccountName: client}
status: {podIP: 10.11.0.77}
---
apiVersion: v1
kind: Pod
metadata: {name: v1, namespace: shop, labels: {version: v1}}
status: {podIP: 10.11.0.1}
---
apiVersion: v1
kind: Pod
metadata: {name: v2, namespace: shop, labels: {version: v2}}
status: {podIP: 10.11.0.2}
`)
	service := func(name, namespace, vip, protocol string, port, target int, policy string) {
		out.WriteString(testService{
			name: name, namespace: namespace, vip: vip, protocol: protocol, port: port, target: target,
			rule: "subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]" + policy,
		}.objects())
	}
	service("api", "shop", "10.96.1.1", "http", 80, 9001, "")
	service("shadow", "other", "10.96.1.2", "http", 8080, 9002, "")
	service("hash", "shop", "10.96.1.3", "http", 80, 9001, ", trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: x-user}}}")
	service("banner", "shop", "10.96.1.4", "tcp", 90, 9003, "")
	service("detected", "shop", "10.96.1.5", "unknown", 91, 9001, "")
	service("secure", "shop", "10.96.1.6", "tls", 443, 9004, "")
	fmt.Fprint(&out, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: domain, namespace: shop}
spec:
  hosts: ["*.secure.example"]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 443, name: tls, protocol: TLS, targetPort: 9004}]
  endpoints: [{address: 10.11.0.1}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: tls, namespace: shop}
spec:
  hosts: ["*.secure.example"]
  tls:
  - match: [{sniHosts: [two.secure.example], port: 443}]
    route: [{destination: {host: secure, subset: v2}}]
  - match: [{sniHosts: ["*.secure.example"]}]
    route: [{destination: {host: "*.secure.example"}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: banner, namespace: shop}
spec:
  hosts: [banner]
  tcp:
  - match: [{sourceLabels: {app: other}}]
    route: [{destination: {host: nowhere}}]
  - match: [{port: 90, sourceLabels: {app: client}}]
    route: [{destination: {host: banner, subset: v1}, weight: 25}, {destination: {host: banner, subset: v2}, weight: 75}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: others, namespace: shop}
spec:
  hosts: [virtual.example, detected.shop.svc.cluster.local, hash]
  http:
  - match: [{sourceNamespace: elsewhere}]
    directResponse: {status: 410}
  - match: [{authority: {prefix: virtual}}]
    route: [{destination: {host: shadow.other.svc.cluster.local, subset: v2}}]
  - match: [{uri: {exact: /detected}}]
    route: [{destination: {host: api, subset: v2}}]
  - route: [{destination: {host: hash.shop.svc.cluster.local}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: one-letter, namespace: shop}
spec:
  hosts: [a.x]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 9001}]
  endpoints: [{address: 10.11.0.1}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: one-letter, namespace: shop}
spec:
  hosts: ["*.x"]
  http: [{directResponse: {status: 207, body: {string: wildcard}}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: part, namespace: other}
spec:
  http:
  - match: [{uri: {exact: /delegated/one}}]
    route: [{destination: {host: shadow, subset: v1}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: api, namespace: shop}
spec:
  hosts: [api]
  http:
  - match: [{uri: {prefix: /delegated}}]
    delegate: {name: part, namespace: other}
`)
	for _, route := range []string{
		"/weights}}], route: [{destination: {host: api, subset: v1}, weight: 30}, {destination: {host: api, subset: v2}, weight: 70}",
		"/retries}}], retries: {attempts: 3, retryOn: '5xx'}, route: [{destination: {host: api}}",
		"/codes}}], retries: {attempts: 2, retryOn: 'gateway-error,507', perTryTimeout: 5s, backoff: 0.005s}, route: [{destination: {host: api}}",
		"/no-retries}}], retries: {attempts: 0}, route: [{destination: {host: api}}",
		"/delay}}], fault: {delay: {percentage: {value: 100}, fixedDelay: 0.3s}}, route: [{destination: {host: api}}",
		"/abort}}], fault: {abort: {percentage: {value: 30}, httpStatus: 418}}, route: [{destination: {host: api}}",
		"/mirror}}], mirror: {host: shadow.other.svc.cluster.local}, route: [{destination: {host: api, subset: v1}}",
		"/copies}}], mirrors: [{destination: {host: shadow.other.svc.cluster.local, subset: v1}, percentage: {value: 40}}], route: [{destination: {host: api}}",
		"/direct}}], directResponse: {status: 203, body: {string: direct}",
		"/redirect}}], redirect: {uri: /new, authority: new.example, redirectCode: 307, port: 8443, scheme: https",
		"/moved}}], redirect: {prefixRewrite: /there",
		"/rewritten}}], rewrite: {uri: /other, authority: other.example}, route: [{destination: {host: api}}",
		"/regex}}], rewrite: {uriRegexRewrite: {match: '^/regex/([a-z]+)/(.*)$', rewrite: '/\\2/\\1'}}, route: [{destination: {host: api}}",
		"/timeout}}], timeout: 0.2s, route: [{destination: {host: api}}",
		"/headers}}], headers: {request: {set: {x-set: 'a%%b', x-both: route}, add: {x-add: two}, remove: [x-gone]}, response: {set: {x-answer: 'yes'}, remove: [x-secret]}}," +
			" route: [{destination: {host: api}, headers: {request: {set: {x-both: destination}, add: {host: set.example}}}}",
		"/cors}}], corsPolicy: {allowOrigins: [{regex: 'https://.*[.]example'}], allowMethods: [GET, PUT], allowHeaders: [x-a], exposeHeaders: [x-b], maxAge: 3600s, allowCredentials: true}," +
			" route: [{destination: {host: api}}",
		"/nowhere}}], route: [{destination: {host: nobody.example, port: {number: 80}}}",
		"/matched}, headers: {x-user: {regex: 'a|b'}}, withoutHeaders: {x-other: {}}, queryParams: {q: {exact: '1'}}, method: {exact: GET}, scheme: {exact: http}}]," +
			" directResponse: {status: 200, body: {string: matched}",
		"/CASE}, ignoreUriCase: true}], directResponse: {status: 200, body: {string: case}",
		"/labels}, sourceLabels: {app: other}}], directResponse: {status: 410",
		"/labels}, sourceLabels: {app: client}, gateways: [mesh], port: 80}], directResponse: {status: 202",
	} {
		end := "]}"
		if strings.Contains(route, "directResponse: {") || strings.Contains(route, "redirect: {") {
			end = "}}"
		}
		fmt.Fprintf(&out, "  - {match: [{uri: {prefix: %s%s\n", route, end)
	}
	fmt.Fprint(&out, "  - route: [{destination: {host: api, subset: v1}}]\n")
	return out.String()
}()

// TestVirtualServices sends redirected requests and connections to hosts with
// VirtualServices.
func TestVirtualServices(t *testing.T) {
	if !inPod(t) {
		return
	}
	p := startPod(t, routedMesh, "10.11.0.77")
	for _, ip := range []string{"10.11.0.1", "10.11.0.2", "10.96.1.1", "10.96.1.2", "10.96.1.3", "10.96.1.4", "10.96.1.5", "10.96.1.6", "10.97.0.1"} {
		p.address(t, ip)
	}
	var counts sync.Map // *atomic.Int64 by server and path
	count := func(name string) *atomic.Int64 {
		n, _ := counts.LoadOrStore(name, new(atomic.Int64))
		return n.(*atomic.Int64)
	}
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	for name, at := range map[string]string{"v1": "10.11.0.1:9001", "v2": "10.11.0.2:9001", "shadow1": "10.11.0.1:9002", "shadow2": "10.11.0.2:9002"} {
		serves(t, at, func(w http.ResponseWriter, r *http.Request) {
			count(name + r.URL.Path).Add(1)
			count(r.URL.Path).Add(1)
			w.Header().Set("x-secret", "x")
			if strings.HasPrefix(name, "shadow") && (r.URL.Path == "/mirror" || r.URL.Path == "/copies") && r.Host != "api.shop" {
				t.Errorf("the copy of a request to api.shop has the host %s", r.Host)
			}
			switch r.URL.Path {
			case "/retries", "/no-retries":
				w.WriteHeader(http.StatusServiceUnavailable)
			case "/codes":
				w.WriteHeader(http.StatusInsufficientStorage)
			case "/timeout":
				select {
				case <-release:
				case <-r.Context().Done():
				}
			}
			fmt.Fprintf(w, "%s %s %s set=%q add=%q both=%q gone=%q", name, r.Host, r.URL.Path, r.Header["X-Set"], r.Header["X-Add"], r.Header["X-Both"], r.Header["X-Gone"])
		})
	}
	const api = "http://10.96.1.1"
	get := func(t *testing.T, path string, headers ...string) response {
		t.Helper()
		return requested(t, api+path, "api.shop", headers...)
	}
	// 5 % of many requests is more than five standard deviations of a random share.
	const many = 3000
	near := func(t *testing.T, what string, got, percent int64) {
		t.Helper()
		if want := percent * many / 100; got < want-many/20 || got > want+many/20 {
			t.Errorf("%s: %d of %d, want %d %%", what, got, many, percent)
		}
	}
	t.Run("weights", func(t *testing.T) {
		for range many {
			get(t, "/weights")
		}
		near(t, "the first version", count("v1/weights").Load(), 30)
		if got := count("/weights").Load(); got != many {
			t.Errorf("%d requests arrived, want %d", got, many)
		}
	})
	t.Run("retries", func(t *testing.T) {
		for path, want := range map[string]int64{"/retries": 4, "/codes": 3, "/no-retries": 1} {
			if got := get(t, path); got.status < 500 || count(path).Load() != want {
				t.Errorf("%s: status %d after %d tries, want %d", path, got.status, count(path).Load(), want)
			}
		}
	})
	t.Run("faults", func(t *testing.T) {
		start := time.Now()
		if got := get(t, "/delay"); got.status != http.StatusOK || time.Since(start) < 250*time.Millisecond {
			t.Errorf("a delayed request: %+v after %v", got, time.Since(start))
		}
		aborted := int64(0)
		for range many {
			if get(t, "/abort").status == http.StatusTeapot {
				aborted++
			}
		}
		near(t, "aborted requests", aborted, 30)
	})
	t.Run("mirrors", func(t *testing.T) {
		for range 20 {
			if got := get(t, "/mirror"); !strings.HasPrefix(got.body, "v1 ") {
				t.Fatalf("the response is %+v", got)
			}
		}
		for range many {
			get(t, "/copies")
		}
		harness.Eventually(t, deadline, "copies of all requests", func() error {
			if got := count("shadow1/mirror").Load() + count("shadow2/mirror").Load(); got != 20 {
				return fmt.Errorf("%d of 20 copies", got)
			}
			return nil
		})
		near(t, "copied requests", count("shadow1/copies").Load(), 40)
	})
	t.Run("responses and rewrites", func(t *testing.T) {
		for path, want := range map[string]string{
			"/direct": "203 direct", "/rewritten/x": "other.example /other/x set", "/regex/one/two": "api.shop /two/one set",
			"/delegated/one": "200 shadow1 ", "/delegated/two": "200 v1 api.shop /delegated/two", "/else": "200 v1 api.shop /else ",
			"/matched?q=1": "200 v", "/nowhere": "503 ", "/cAsE": "200 case", "/labels": "202 ",
		} {
			if got := get(t, path); !strings.Contains(fmt.Sprint(got.status, " ", got.body), want) {
				t.Errorf("%s: %d %q, want %q", path, got.status, got.body, want)
			}
		}
		for path, want := range map[string]string{
			"/redirect": "307 https://new.example:8443/new", "/moved/x": "301 http://api.shop/there/x",
		} {
			if got := get(t, path); fmt.Sprint(got.status, " ", got.header.Get("Location")) != want {
				t.Errorf("%s: %+v, want %q", path, got, want)
			}
		}
		for want, headers := range map[string][]string{"matched": {"x-user", "b"}, "v1 ": {"x-user", "c"}, "v1": {"x-user", "a", "x-other", "b"}} {
			if got := get(t, "/matched?q=1", headers...); !strings.HasPrefix(got.body, want) {
				t.Errorf("with headers %v: %+v, want %q", headers, got, want)
			}
		}
	})
	t.Run("headers", func(t *testing.T) {
		got := get(t, "/headers", "x-set", "old", "x-add", "one", "x-gone", "x")
		want := `set.example /headers set=["a%b"] add=["one" "two"] both=["destination"] gone=[]`
		if !strings.HasSuffix(got.body, want) || got.header.Get("X-Answer") != "yes" || got.header.Get("X-Secret") != "" {
			t.Errorf("got %+v, want %s", got, want)
		}
	})
	t.Run("CORS", func(t *testing.T) {
		if got := get(t, "/cors", "Origin", "https://a.example"); got.header.Get("Access-Control-Allow-Origin") != "https://a.example" || got.header.Get("Access-Control-Expose-Headers") != "x-b" {
			t.Errorf("an allowed origin: %+v", got)
		}
		if got := get(t, "/cors", "Origin", "https://a.test"); got.header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("another origin: %+v", got)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, api+"/cors", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Origin": {"https://a.example"}, "Access-Control-Request-Method": {"PUT"}}
		client := dial.HTTPClient(deadline, nil)
		defer client.CloseIdleConnections()
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if h := resp.Header; h.Get("Access-Control-Allow-Methods") != "GET,PUT" || h.Get("Access-Control-Max-Age") != "3600" || h.Get("Access-Control-Allow-Credentials") != "true" {
			t.Errorf("a preflight request: %v", h)
		}
	})
	t.Run("timeout", func(t *testing.T) {
		if got := get(t, "/timeout"); got.status != http.StatusGatewayTimeout {
			t.Errorf("got %+v", got)
		}
	})
	t.Run("other hosts", func(t *testing.T) {
		if got := requested(t, "http://10.97.0.1", "virtual.example"); !strings.HasPrefix(got.body, "shadow2 ") {
			t.Errorf("a host without a service: %+v", got)
		}
		if got := requested(t, "http://10.97.0.1", "a.x"); got.status != 207 || got.body != "wildcard" {
			t.Errorf("a host with one letter before the domain of a wildcard: %+v", got)
		}
		if got := requested(t, "http://10.96.1.5:91/detected", ""); !strings.HasPrefix(got.body, "v2 ") {
			t.Errorf("a port with detected protocol: %+v", got)
		}
	})
	t.Run("consistent hash", func(t *testing.T) {
		servers := map[string]bool{}
		for user := range 20 {
			server := func() string {
				return strings.Fields(requested(t, "http://10.96.1.3", "hash.shop", "x-user", fmt.Sprint(user)).body)[0]
			}
			first := server()
			servers[first] = true
			for range 3 {
				if got := server(); got != first {
					t.Errorf("user %d is at %s after %s", user, got, first)
				}
			}
		}
		if len(servers) != 2 {
			t.Errorf("all users are at %v", servers)
		}
	})
	t.Run("TCP", func(t *testing.T) {
		for ip, banner := range map[string]string{"10.11.0.1": "1", "10.11.0.2": "2"} {
			l, err := net.Listen("tcp", ip+":9003")
			servesEach(t, l, err, sendsFirst(banner))
		}
		var second int64
		for range many {
			conn, err := net.Dial("tcp", "10.96.1.4:90")
			if err != nil {
				t.Fatal(err)
			}
			banner, err := io.ReadAll(conn)
			if _ = conn.Close(); err != nil || len(banner) != 1 {
				t.Fatalf("read %q: %v", banner, err)
			}
			if string(banner) == "2" {
				second++
			}
		}
		near(t, "connections to the second version", second, 75)
	})
	t.Run("TLS", func(t *testing.T) {
		template := httptest.NewTLSServer(nil)
		t.Cleanup(template.Close)
		for ip, name := range map[string]string{"10.11.0.1": "one", "10.11.0.2": "two"} {
			l, err := tls.Listen("tcp", ip+":9004", &tls.Config{Certificates: template.TLS.Certificates})
			servesEach(t, l, err, sendsFirst(name))
		}
		for sni, want := range map[string]string{"one.secure.example": "one", "two.secure.example": "two"} {
			conn, err := tls.Dial("tcp", "10.97.0.1:443", &tls.Config{ServerName: sni, InsecureSkipVerify: true})
			if err != nil {
				t.Errorf("%s: %v", sni, err)
				continue
			}
			got, err := io.ReadAll(conn)
			if _ = conn.Close(); err != nil || string(got) != want {
				t.Errorf("%s is at %q, want %q: %v", sni, got, want, err)
			}
		}
	})
}
