package e2e

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/meshctl/meshctl/internal/dial"
)

// routeScenario has the HTTP routes of a VirtualService for the host of the scenario, and
// requests to it. $1 and $2 stand for routes to the versions of a service.
type routeScenario struct {
	name   string
	routes string
	calls  []call
	spec   string // further fields of the VirtualService
}

// call is a request, with its method, path and headers, and the start of the result: the
// status and the location of a redirect or the body. The servers respond with their version,
// the method, host and path, and the headers that start with x-t.
type call struct{ request, want string }

// routeScenarios are the features of HTTP routes that one request shows.
var routeScenarios = []routeScenario{
	{
		name: "URI exact", routes: `[{match: [{uri: {exact: /a}}], $1}]`,
		calls: []call{{"GET /a", "200 v1"}, {"GET /a?b=c", "200 v1"}, {"GET /a/", "404"}, {"GET /A", "404"}},
	},
	{
		name: "URI prefix", routes: `[{match: [{uri: {prefix: /a}}], $1}]`,
		calls: []call{{"GET /a", "200 v1"}, {"GET /ab", "200 v1"}, {"GET /b/a", "404"}},
	},
	{
		name: "URI regex", routes: `[{match: [{uri: {regex: '/v[0-9]+/.*'}}], $1}]`,
		calls: []call{{"GET /v12/x?y=z", "200 v1"}, {"GET /v/x", "404"}, {"GET /x/v1/x", "404"}},
	},
	{
		name: "ignore case of URI", routes: `[{match: [{uri: {exact: /Abc}, ignoreUriCase: true}], $1}, {match: [{uri: {prefix: /Pre}, ignoreUriCase: true}], $2}]`,
		calls: []call{{"GET /aBC", "200 v1"}, {"GET /pREfix", "200 v2"}, {"GET /ab", "404"}},
	},
	{
		name: "method", routes: `[{match: [{method: {exact: POST}}], $1}, {match: [{method: {regex: 'PUT|DELETE'}}], $2}]`,
		calls: []call{{"POST /", "200 v1 POST"}, {"DELETE /", "200 v2 DELETE"}, {"GET /", "404"}},
	},
	{
		name: "authority", routes: `[{match: [{authority: {exact: authority.test}}], $1}]`,
		calls: []call{{"GET /", "200 v1"}},
	},
	{
		name: "other authority", routes: `[{match: [{authority: {prefix: 'no'}}], $1}, {match: [{authority: {regex: 'o.*[.]test'}}], $2}]`,
		calls: []call{{"GET /", "200 v2"}},
	},
	{
		name: "scheme", routes: `[{match: [{scheme: {exact: https}}], $1}, {match: [{scheme: {exact: http}}], $2}]`,
		calls: []call{{"GET /", "200 v2"}},
	},
	{
		name: "header exact", routes: `[{match: [{headers: {x-a: {exact: b}}}], $1}]`,
		calls: []call{{"GET / x-a:b", "200 v1"}, {"GET / x-a:bc", "404"}, {"GET /", "404"}},
	},
	{
		name: "header prefix", routes: `[{match: [{headers: {x-a: {prefix: b}}}], $1}]`,
		calls: []call{{"GET / x-a:bc", "200 v1"}, {"GET / x-a:cb", "404"}},
	},
	{
		name: "header regex", routes: `[{match: [{headers: {x-a: {regex: 'b+'}}}], $1}]`,
		calls: []call{{"GET / x-a:bbb", "200 v1"}, {"GET / x-a:bbc", "404"}},
	},
	{
		name: "header present", routes: `[{match: [{headers: {x-a: {}}}], $1}]`,
		calls: []call{{"GET / x-a:any", "200 v1"}, {"GET /", "404"}},
	},
	{
		name: "without headers", routes: `[{match: [{withoutHeaders: {x-a: {exact: b}}}], $1}, {match: [{withoutHeaders: {x-c: {}}}], $2}]`,
		calls: []call{{"GET /", "200 v1"}, {"GET / x-a:c", "200 v1"}, {"GET / x-a:b", "200 v2"}, {"GET / x-a:b x-c:d", "404"}},
	},
	{
		name: "query exact", routes: `[{match: [{queryParams: {a: {exact: b}}}], $1}]`,
		calls: []call{{"GET /?a=b", "200 v1"}, {"GET /?c=d&a=b", "200 v1"}, {"GET /?a=bc", "404"}, {"GET /", "404"}},
	},
	{
		name: "query prefix", routes: `[{match: [{queryParams: {a: {prefix: b}}}], $1}]`,
		calls: []call{{"GET /?a=bc", "200 v1"}, {"GET /?a=c", "404"}},
	},
	{
		name: "query regex", routes: `[{match: [{queryParams: {a: {regex: '[0-9]+'}}}], $1}]`,
		calls: []call{{"GET /?a=42", "200 v1"}, {"GET /?a=4b", "404"}},
	},
	{
		name: "conditions of one match", routes: `[{match: [{uri: {prefix: /a}, headers: {x-a: {exact: b}}, method: {exact: GET}}], $1}]`,
		calls: []call{{"GET /a x-a:b", "200 v1"}, {"POST /a x-a:b", "404"}, {"GET /a", "404"}, {"GET /b x-a:b", "404"}},
	},
	{
		name: "several matches", routes: `[{match: [{uri: {exact: /a}}, {headers: {x-a: {exact: b}}}], $1}]`,
		calls: []call{{"GET /a", "200 v1"}, {"GET / x-a:b", "200 v1"}, {"GET /", "404"}},
	},
	{
		name: "first route", routes: `[{match: [{uri: {prefix: /a}}], $1}, {match: [{uri: {exact: /a/b}}], $2}, {$2}]`,
		calls: []call{{"GET /a/b", "200 v1"}, {"GET /", "200 v2"}},
	},
	{
		name: "port", routes: `[{match: [{port: 8080}], $1}, {match: [{port: 80}], $2}]`,
		calls: []call{{"GET /", "200 v2"}},
	},
	{
		name: "source labels", routes: `[{match: [{sourceLabels: {app: other}}], $1}, {match: [{sourceLabels: {app: client}}], $2}]`,
		calls: []call{{"GET /", "200 v2"}},
	},
	{
		name: "source namespace", routes: `[{match: [{sourceNamespace: other}], $1}, {match: [{sourceNamespace: shop}], $2}]`,
		calls: []call{{"GET /", "200 v2"}},
	},
	{
		name: "gateways", routes: `[{match: [{gateways: [edge]}], $1}, {match: [{gateways: [mesh]}], $2}]`, spec: "gateways: [mesh, edge]",
		calls: []call{{"GET /", "200 v2"}},
	},
	{
		name: "gateway only", routes: `[{$1}]`, spec: "gateways: [edge]",
		calls: []call{{"GET /", "200 stranger"}},
	},
	{
		name: "export to others", routes: `[{$1}]`, spec: "exportTo: [other]",
		calls: []call{{"GET /", "200 stranger"}},
	},
	{
		name: "export to own namespace", routes: `[{$1}]`, spec: `exportTo: ["."]`,
		calls: []call{{"GET /", "200 v1"}},
	},
	{
		name: "rewrite prefix", routes: `[{match: [{uri: {prefix: /a/}}], rewrite: {uri: /b/}, $1}]`,
		calls: []call{{"GET /a/c?d=e", "200 v1 GET rewrite-prefix.test /b/c?d=e"}},
	},
	{
		name: "rewrite whole path", routes: `[{match: [{uri: {exact: /a}}], rewrite: {uri: /b}, $1}]`,
		calls: []call{{"GET /a?d=e", "200 v1 GET rewrite-whole-path.test /b?d=e"}},
	},
	{
		name: "rewrite authority", routes: `[{rewrite: {authority: other.example}, $1}]`,
		calls: []call{{"GET /a", "200 v1 GET other.example /a"}},
	},
	{
		name: "rewrite authority beside the header", routes: `[{rewrite: {authority: other.example}, headers: {request: {set: {":authority": set.example}}}, $1}]`,
		calls: []call{{"GET /a", "200 v1 GET other.example /a"}},
	},
	{
		name: "rewrite regex", routes: `[{rewrite: {uriRegexRewrite: {match: '/user/([0-9]+)', rewrite: '/id/\1/x'}}, $1}]`,
		calls: []call{{"GET /user/7", "200 v1 GET rewrite-regex.test /id/7/x"}, {"GET /users", "200 v1 GET rewrite-regex.test /users"}},
	},
	{
		name: "redirect path", routes: `[{match: [{uri: {prefix: /a}}], redirect: {uri: /b}}, {$1}]`,
		calls: []call{{"GET /a/c", "301 http://redirect-path.test/b"}},
	},
	{
		name: "redirect authority", routes: `[{redirect: {authority: other.example, redirectCode: 308}}]`,
		calls: []call{{"GET /a?b=c", "308 http://other.example/a?b=c"}},
	},
	{
		name: "redirect scheme", routes: `[{redirect: {scheme: https, port: 8443, redirectCode: 302}}]`,
		calls: []call{{"GET /a", "302 https://redirect-scheme.test:8443/a"}},
	},
	{
		name: "redirect port of the request", routes: `[{redirect: {uri: /b, derivePort: FROM_REQUEST_PORT, redirectCode: 303}}]`,
		calls: []call{{"GET /a", "303 http://redirect-port-of-the-request.test"}},
	},
	{
		name: "direct response", routes: `[{match: [{uri: {prefix: /text}}], directResponse: {status: 418, body: {string: tea}}}, {match: [{uri: {prefix: /bytes}}], directResponse: {status: 200, body: {bytes: dGVh}}}, {directResponse: {status: 204}}]`,
		calls: []call{{"GET /text", "418 tea"}, {"GET /bytes", "200 tea"}, {"GET /", "204"}},
	},
	{
		name: "request headers", routes: `[{headers: {request: {set: {x-t-a: new}, add: {x-t-b: two}, remove: [x-t-c]}}, $1}]`,
		calls: []call{{"GET / x-t-a:old x-t-b:one x-t-c:gone", "200 v1 GET request-headers.test / X-T-A=[new] X-T-B=[one two]"}},
	},
	{
		name: "headers of a destination", routes: `[{headers: {request: {set: {x-t-a: route}}}, route: [{destination: {host: api, subset: v2}, headers: {request: {set: {x-t-a: destination}}}}]}]`,
		calls: []call{{"GET /", "200 v2 GET headers-of-a-destination.test / X-T-A=[destination]"}},
	},
	{
		name: "response headers", routes: `[{headers: {response: {set: {location: /set}, remove: [x-server]}}, $1}]`,
		calls: []call{{"GET /", "200 v1 GET response-headers.test / location=/set"}},
	},
	{
		name: "host header", routes: `[{headers: {request: {set: {host: set.example}}}, $1}]`,
		calls: []call{{"GET /", "200 v1 GET set.example /"}},
	},
	{
		name: "abort by header", routes: `[{match: [{headers: {x-a: {exact: b}}}], fault: {abort: {percentage: {value: 100}, httpStatus: 418}}, $1}, {$1}]`,
		calls: []call{{"GET / x-a:b", "418"}, {"GET /", "200 v1"}},
	},
	{
		name: "abort of no request", routes: `[{fault: {abort: {percentage: {value: 0}, httpStatus: 418}}, $1}]`,
		calls: []call{{"GET /", "200 v1"}},
	},
	{
		name: "timeout", routes: `[{match: [{uri: {prefix: /slow}}], timeout: 0.05s, $1}, {timeout: 0s, $1}]`,
		calls: []call{{"GET /slow", "504"}, {"GET /", "200 v1"}},
	},
	{
		name: "time of a try", routes: `[{timeout: 60s, retries: {attempts: 2, perTryTimeout: 0.05s, retryOn: reset}, $1}]`,
		calls: []call{{"GET /slow-twice", "200 v1 try 3"}},
	},
	{
		name: "retries on 5xx", routes: `[{retries: {attempts: 2, retryOn: 5xx}, $1}]`,
		calls: []call{{"GET /fail-2", "200 v1 try 3"}, {"GET /fail-9", "500 v1 try 3"}},
	},
	{
		name: "retries on gateway errors", routes: `[{retries: {attempts: 2, retryOn: gateway-error}, $1}]`,
		calls: []call{{"GET /fail-1", "500 v1 try 1"}},
	},
	{
		name: "retries on a status", routes: `[{retries: {attempts: 1, retryOn: '500'}, $1}]`,
		calls: []call{{"GET /fail-1", "200 v1 try 2"}},
	},
	{
		name: "retries on a reset", routes: `[{retries: {attempts: 3, retryOn: 'reset,connect-failure'}, $1}]`,
		calls: []call{{"GET /reset-3", "200 v1 try 4"}},
	},
	{
		name: "no retries", routes: `[{retries: {attempts: 0}, $1}]`,
		calls: []call{{"GET /reset-1", "503"}},
	},
	{
		name: "responses without default retries", routes: `[{$1}]`,
		calls: []call{{"GET /unavailable-1", "503 v1 try 1"}, {"GET /fail-1", "500 v1 try 1"}},
	},
	{
		name: "CORS", routes: `[{corsPolicy: {allowOrigins: [{exact: 'https://a.test'}, {prefix: 'https://b.'}], allowMethods: [PUT]}, $1}]`,
		calls: []call{
			{"OPTIONS / origin:https://a.test access-control-request-method:PUT", "200  allowed=https://a.test"},
			{"OPTIONS / origin:https://b.test access-control-request-method:PUT", "200  allowed=https://b.test"},
			{"GET / origin:https://a.test", "200 v1 GET cors.test / allowed=https://a.test"},
			{"GET / origin:https://c.test", "200 v1 GET cors.test /"},
		},
	},
	{
		name: "delegate", routes: `[{match: [{uri: {prefix: /one}}], delegate: {name: one, namespace: other}}, {$2}]`,
		calls: []call{{"GET /one/a", "200 v1"}, {"GET /one/b", "200 v2"}, {"GET /", "200 v2"}},
	},
	{
		name: "delegate for some clients", routes: `[{match: [{uri: {prefix: /one}, sourceNamespace: shop}], delegate: {name: of-client, namespace: other}}, {$2}]`,
		calls: []call{{"GET /one/a", "200 v1"}, {"GET /one/b", "200 v2"}, {"GET /", "200 v2"}},
	},
	{
		name: "several hosts", routes: `[{$1}]`, spec: "hosts: [several-hosts.test, more.test]",
		calls: []call{{"GET / host:more.test", "200 v1"}, {"GET /", "200 v1"}},
	},
	{
		name: "wildcard host", routes: `[{$1}]`, spec: `hosts: ["*.wild.test"]`,
		calls: []call{{"GET / host:a.wild.test", "200 v1"}, {"GET / host:a.b.wild.test", "200 v1"}, {"GET / host:exact.wild.test", "200 v2"}, {"GET / host:wild.test", "200 stranger"}},
	},
	{
		name: "wildcard for a part of a label", routes: `[{$2}]`, spec: `hosts: ["*-eu.wild.test"]`,
		calls: []call{{"GET / host:a-eu.wild.test", "200 v2"}, {"GET / host:a-us.wild.test", "200 v1"}},
	},
	{
		name: "wildcard for one letter", routes: `[{$2}]`, spec: `hosts: ["*.letter.test"]`,
		calls: []call{{"GET / host:a.letter.test", "200 v2"}, {"GET / host:ab.letter.test", "200 v2"}},
	},
	{
		name: "dot at the end of a host", routes: `[{$2}]`, spec: "hosts: [dot-at-the-end.test.]",
		calls: []call{{"GET / host:dot-at-the-end.test", "200 v2"}},
	},
	{
		name: "exact host beside a wildcard", routes: `[{$2}]`, spec: "hosts: [exact.wild.test]",
		calls: []call{{"GET / host:exact.wild.test", "200 v2"}},
	},
	{
		name: "subset that does not exist", routes: `[{route: [{destination: {host: api, subset: none}}]}]`,
		calls: []call{{"GET /", "503"}},
	},
}

// host returns the host of the scenario.
func (s routeScenario) host() string {
	return strings.ReplaceAll(strings.ToLower(s.name), " ", "-") + ".test"
}

// virtualService returns the VirtualService of the scenario.
func (s routeScenario) virtualService() string {
	routes := strings.NewReplacer(
		"$1", "route: [{destination: {host: api, subset: v1}}]", "$2", "route: [{destination: {host: api, subset: v2}}]",
	).Replace(s.routes)
	spec := s.spec
	if !strings.Contains(spec, "hosts:") {
		spec = strings.Trim("hosts: ["+s.host()+"], "+spec, ", ")
	}
	return fmt.Sprintf("---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: %s, namespace: shop}\nspec: {%s, http: %s}\n", s.host(), spec, routes)
}

// scenarioMesh has the pods of a client and of two versions of a service, delegates, and
// a ServiceEntry.
const scenarioMesh = `
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
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: one, namespace: other}
spec:
  http:
  - match: [{uri: {prefix: /one/a}}]
    route: [{destination: {host: api.shop.svc.cluster.local, subset: v1}}]
  - match: [{uri: {prefix: /one/b}}]
    route: [{destination: {host: api.shop.svc.cluster.local, subset: v2}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: of-client, namespace: other}
spec:
  http:
  - {match: [{sourceLabels: {app: other}}], directResponse: {status: 403}}
  - match: [{sourceLabels: {app: client}, uri: {prefix: /one/a}}]
    route: [{destination: {host: api.shop.svc.cluster.local, subset: v1}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: letters, namespace: shop}
spec:
  hosts: [a.letter.test, ab.letter.test]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 9001}]
  endpoints: [{address: 10.11.0.1}]
`

// versionServer returns a server that responds as calls describe, and counts the tries of a
// path. Paths make it fail some tries first.
func versionServer(version string) http.HandlerFunc {
	var tries sync.Map // *atomic.Int64 by host and path
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Server", version)
		n, _ := tries.LoadOrStore(r.Host+r.URL.Path, new(atomic.Int64))
		try := n.(*atomic.Int64).Add(1)
		what, count, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "-")
		until, _ := strconv.ParseInt(count, 10, 64)
		switch {
		case what == "slow" && (count == "" || try < 3):
			<-r.Context().Done()
			return
		case what == "reset" && try <= until:
			panic(http.ErrAbortHandler)
		case what == "unavailable" && try <= until:
			w.WriteHeader(http.StatusServiceUnavailable)
		case what == "fail" && try <= until:
			w.WriteHeader(http.StatusInternalServerError)
		}
		if count != "" {
			fmt.Fprintf(w, "%s try %d", version, try)
			return
		}
		fmt.Fprintf(w, "%s %s %s %s", version, r.Method, r.Host, r.RequestURI)
		for _, name := range slices.Sorted(maps.Keys(r.Header)) {
			if strings.HasPrefix(name, "X-T-") {
				fmt.Fprintf(w, " %s=%v", name, r.Header[name])
			}
		}
	}
}

// result sends the request of a call to an address and returns what the call describes.
func (c call) result(t *testing.T, url, host string) string {
	t.Helper()
	fields := strings.Fields(c.request)
	req, err := http.NewRequestWithContext(t.Context(), fields[0], url+fields[1], nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	for _, f := range fields[2:] {
		name, value, _ := strings.Cut(f, ":")
		if name == "host" {
			req.Host = value
		}
		req.Header.Set(name, value)
	}
	client := dial.HTTPClient(deadline, nil)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	out := fmt.Sprint(resp.StatusCode, " ", string(body))
	if to := resp.Header.Get("Location"); resp.StatusCode < 300 && to != "" {
		out += " location=" + to
	} else {
		out += to
	}
	if allowed := resp.Header.Get("Access-Control-Allow-Origin"); allowed != "" {
		out += " allowed=" + allowed
	}
	return out
}

// TestRouteScenarios sends the requests of all scenarios of HTTP routes, to a proxy with whole route
// configurations. TestVirtualHostDiscovery does so without.
func TestRouteScenarios(t *testing.T) {
	if !inPod(t) {
		return
	}
	p := preparePod(t, routeScenarioObjects(), "10.11.0.77")
	_, secure := controlPlane(t, p.dir, p.mesh, wholeRoutes)
	p.startProxy(t, secure)
	serveRouteScenarios(t, p)
	sentHosts(t, false)
	runRouteScenarios(t)
}

func routeScenarioObjects() string {
	objects := scenarioMesh + testService{
		name: "api", vip: "10.96.1.1", protocol: "http", port: 80, target: 9001,
		rule: "subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]",
	}.objects()
	for _, s := range routeScenarios {
		objects += s.virtualService()
	}
	return objects
}

// serveRouteScenarios starts the servers that the scenarios need.
func serveRouteScenarios(t *testing.T, p *pod) {
	t.Helper()
	for version, ip := range map[string]string{"v1": "10.11.0.1", "v2": "10.11.0.2"} {
		p.address(t, ip)
		serves(t, ip+":9001", versionServer(version))
	}
	p.address(t, "10.97.0.1")
	answers(t, "10.97.0.1:80", "stranger") // to requests that no VirtualService routes
}

func runRouteScenarios(t *testing.T) {
	t.Helper()
	for _, s := range routeScenarios {
		t.Run(s.name, func(t *testing.T) {
			for _, c := range s.calls {
				if got := c.result(t, "http://10.97.0.1", s.host()); !strings.HasPrefix(got, c.want) {
					t.Errorf("%s: %q, want %q", c.request, got, c.want)
				}
			}
		})
	}
}
