package e2e

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/protobuf/encoding/protojson"
	securityv1beta1 "istio.io/api/security/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/istiojson"
	"github.com/meshctl/meshctl/test/harness"
	"github.com/meshctl/meshctl/test/policymodel"
)

// protectedMesh has a workload with a port of HTTP and one of TCP, whose callers may be in
// two trust domains, keys of one issuer of tokens, and a provider that nobody can call.
const protectedMesh = `
apiVersion: v1
kind: Service
metadata: {name: helloworld, namespace: sample}
spec:
  selector: {app: helloworld}
  clusterIP: 10.97.0.1
  ports: [{name: http, port: 5000}, {name: tcp, port: 5001}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: helloworld, namespace: sample}
spec:
  workloadSelector: {labels: {app: helloworld}}
  ingress:
  - {bind: 127.3.0.1, port: {number: 5000, protocol: HTTP, name: http}, defaultEndpoint: '%[1]s'}
  - {bind: 127.3.0.1, port: {number: 5001, protocol: TCP, name: tcp}, defaultEndpoint: '%[2]s'}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: "{trustDomainAliases: [old.example.com], extensionProviders: [{name: none, envoyExtAuthzGrpc: {service: nowhere.test, port: 9000}}]}"}
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: sample}
spec: {jwtRules: [{issuer: "https://issuer.example.com/a", jwks: '%[3]s'}]}
`

var meshDomains = []string{"cluster.local", "old.example.com"}

// protected is a workload behind a real Envoy.
type protected struct {
	mesh    string
	dir     string                 // has the CA
	link    *link                  // to the control plane
	callers map[string]*tls.Config // by principal; nil for plaintext
	signer  signer
	round   int
}

func startProtected(t *testing.T) *protected {
	t.Helper()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	t.Cleanup(app.Close)
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = echo.Close() })
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	tokens := newSigner(t, "https://issuer.example.com/a", "k", jose.ES256)
	return protect(t, fmt.Sprintf(protectedMesh, strings.TrimPrefix(app.URL, "http://"), echo.Addr(), keySet(t, tokens)), tokens)
}

// protect starts the Envoy of the workload helloworld of a mesh, whose tokens a signer signs.
func protect(t *testing.T, mesh string, tokens signer) *protected {
	t.Helper()
	p := &protected{mesh: t.TempDir(), callers: map[string]*tls.Config{"": nil}, signer: tokens}
	for _, cluster := range []string{"cluster1", "cluster2"} {
		if err := os.Mkdir(filepath.Join(p.mesh, cluster), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	replace(t, filepath.Join(p.mesh, "cluster1", "mesh.yaml"), mesh)
	p.dir = harness.ShortDir(t)
	_, secure := controlPlane(t, p.dir, p.mesh)
	for _, id := range []string{"cluster.local/ns/apps/sa/client", "cluster.local/ns/apps-2/sa/other", "old.example.com/ns/legacy/sa/batch"} {
		p.identify(t, id, "--spiffe-id", "spiffe://"+id)
	}
	const linked = "127.3.0.2:15013"
	p.link = startLink(t, linked, secure)
	proxy := proxy{"helloworld-v1", "sidecar", "sample", "helloworld", "127.3.0.1", map[string]string{"app": "helloworld"}}
	// A policy that moves to another provider waits for the listeners to drain.
	t.Cleanup(proxy.start(t, p.dir, linked, "ISTIO_META_INTERCEPTION_MODE=NONE",
		`PROXY_CONFIG={"discoveryAddress":"`+linked+`","concurrency":1,"terminationDrainDuration":"0s","drainDuration":"2s"}`))
	return p
}

// identify adds a caller with a certificate of the mesh's CA, with the names of flags.
func (p *protected) identify(t *testing.T, caller string, names ...string) {
	t.Helper()
	out := filepath.Join(p.dir, fmt.Sprintf("caller%d", len(p.callers)))
	mustRun(t, slices.Concat([]string{"certs", "leaf", "--ca", filepath.Join(p.dir, "ca", "cluster1"), "--out", out}, names)...)
	cert, err := tls.LoadX509KeyPair(filepath.Join(out, "cert-chain.pem"), filepath.Join(out, "key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	p.callers[caller] = &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, NextProtos: []string{"istio"}}
}

// link passes connections on to an address.
type link struct {
	mu    sync.Mutex
	conns []net.Conn
}

func startLink(t *testing.T, addr, to string) *link {
	t.Helper()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	l := new(link)
	var all sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		l.cut()
		all.Wait()
	})
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			l.mu.Lock()
			l.conns = append(l.conns, conn)
			l.mu.Unlock()
			all.Go(func() { splice(t, conn, to) })
		}
	})
	return l
}

// cut closes all connections. Clients may connect again.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.conns {
		_ = conn.Close()
	}
	l.conns = nil
}

// apply replaces the policies, and waits until Envoy has them.
func (p *protected) apply(t *testing.T, policies ...string) {
	t.Helper()
	named := make(map[string]string)
	for i, spec := range policies {
		named[fmt.Sprint("p", i)] = spec
	}
	p.applyNamed(t, named)
}

// applyNamed is apply with the names of the policies.
func (p *protected) applyNamed(t *testing.T, policies map[string]string) {
	t.Helper()
	p.round++
	marker := fmt.Sprintf("round-%d", p.round)
	text := "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: " + marker +
		", namespace: sample}\nspec: {action: DENY, rules: [{from: [{source: {ipBlocks: [203.0.113.77]}}]}]}\n"
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		text += fmt.Sprintf("---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: %s, namespace: sample}\nspec: %s\n", name, policies[name])
	}
	replace(t, filepath.Join(p.mesh, "cluster1", "policies.yaml"), text)
	eventually(t, "Envoy has "+marker, func() error {
		// The dump has no network filters. They come in the same response.
		if dump := adminGet(t, admin, "/config_dump?resource=ecds_filters"); !strings.Contains(dump, "policy["+marker+"]") {
			return errors.New("it is not there")
		}
		return listenersAre(t, "listener_manager.total_listeners_warming: 0")
	})
}

func (p *protected) dial(caller, addr, serverName string) (net.Conn, error) {
	d := net.Dialer{Timeout: deadline, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}}
	conn, err := d.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(deadline))
	if config := p.callers[caller]; config != nil {
		config = config.Clone()
		config.ServerName = serverName
		return tls.Client(conn, config), nil
	}
	return conn, nil
}

// send sends the lines of a request and, after an empty line, its body. It returns the status, 0 if
// there is no answer.
func (p *protected) send(t *testing.T, caller, serverName, lines string) int {
	t.Helper()
	conn, err := p.dial(caller, "127.3.0.1:5000", serverName)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	head, body, _ := strings.Cut(lines, "\n\n")
	if _, err := io.WriteString(conn, strings.ReplaceAll(head, "\n", "\r\n")+"\r\nConnection: close\r\n\r\n"+body); err != nil {
		return 0
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// connects reports whether a connection to the port of TCP reaches the application.
func (p *protected) connects(t *testing.T, caller, serverName string) bool {
	t.Helper()
	conn, err := p.dial(caller, "127.3.0.1:5001", serverName)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const text = "more bytes than Envoy needs to see that this is no TLS"
	if _, err := io.WriteString(conn, text); err != nil {
		return false
	}
	_, err = io.ReadFull(conn, make([]byte, len(text)))
	return err == nil
}

// matrixPolicies holds the sets of policies of TestAuthorizationMatrix.
var matrixPolicies = [][]string{
	{},
	{`{}`},
	{`{rules: [{}]}`},
	{`{action: DENY, rules: [{}]}`},
	{`{action: AUDIT, rules: [{}]}`},
	{`{rules: [{from: [{source: {principals: [cluster.local/ns/apps/sa/client]}}]}]}`},
	{`{rules: [{from: [{source: {principals: ["*/ns/legacy/*", cluster.local/ns/legacy/sa/batch]}}]}]}`},
	{`{rules: [{from: [{source: {principals: ["*"]}}]}]}`},
	{`{action: DENY, rules: [{from: [{source: {notPrincipals: ["*"]}}]}]}`},
	{`{rules: [{from: [{source: {namespaces: [apps]}}]}]}`},
	{`{rules: [{from: [{source: {namespaces: ["apps*"]}}]}]}`},
	{`{action: DENY, rules: [{from: [{source: {notNamespaces: ["apps*"]}}]}]}`},
	{`{rules: [{from: [{source: {serviceAccounts: [apps/client, batch]}}]}]}`},
	{`{action: DENY, rules: [{from: [{source: {trustDomains: [old.example.com]}}]}]}`},
	{`{rules: [{from: [{source: {ipBlocks: [127.0.0.0/8], notRemoteIpBlocks: [203.0.113.0/24]}}]}]}`},
	{`{action: DENY, rules: [{from: [{source: {remoteIpBlocks: [203.0.113.9]}}]}]}`},
	{`{rules: [{to: [{operation: {ports: ["5000"]}}]}]}`},
	{`{action: DENY, rules: [{to: [{operation: {notPorts: ["5001"]}}]}]}`},
	{`{rules: [{to: [{operation: {methods: [GET], paths: [/a, "/b/*", "*.css"]}}]}]}`},
	{`{action: DENY, rules: [{to: [{operation: {paths: [/a, "/b/*"]}}]}]}`},
	{`{action: DENY, rules: [{to: [{operation: {notPaths: [/a, "/b/*"], ports: ["5000"]}}]}]}`},
	{`{rules: [{to: [{operation: {paths: ["/users/{*}/cart", "/files/{**}"]}}, {operation: {ports: ["5001"]}}]}]}`},
	{`{action: DENY, rules: [{to: [{operation: {paths: ["/users/{*}/cart", "/files/{**}/x"]}}]}]}`},
	{`{rules: [{to: [{operation: {hosts: [Shop.example.com, "*.example.org"]}}]}]}`},
	{`{action: DENY, rules: [{to: [{operation: {hosts: [shop.example.com]}}]}]}`},
	{`{action: DENY, rules: [{to: [{operation: {notHosts: [shop.example.com], ports: ["5000"]}}]}]}`},
	{`{rules: [{when: [{key: "request.headers[x-team]", values: [red, "blue*"], notValues: [blueish]}]}]}`},
	{`{action: DENY, rules: [{when: [{key: "request.headers[x-team]", values: [red]}]}]}`},
	{`{rules: [{from: [{source: {requestPrincipals: ["https://issuer.example.com/a/alice"]}}]}]}`},
	{`{rules: [{from: [{source: {requestPrincipals: ["*"]}}], when: [{key: "request.auth.claims[realm][roles]", values: [admin]}]}]}`},
	{`{action: DENY, rules: [{from: [{source: {notRequestPrincipals: ["*"]}}]}]}`},
	{`{rules: [{when: [{key: request.auth.audiences, values: [shop]}]}]}`},
	{`{rules: [{when: [{key: connection.sni, values: [Shop.example.com]}]}]}`},
	{`{rules: [{when: [{key: destination.ip, values: [127.3.0.1]}, {key: destination.port, values: ["5000"]}]}]}`},
	{`{rules: [{from: [{source: {namespaces: [apps]}}, {source: {ipBlocks: [10.0.0.0/8]}}], to: [{operation: {methods: [GET]}}, {operation: {methods: [PUT]}}]}]}`},
	{`{rules: [{to: [{operation: {paths: ["/*"]}}]}]}`, `{action: DENY, rules: [{to: [{operation: {methods: [PUT], paths: [/a]}}]}]}`},
	{`{rules: [{from: [{source: {namespaces: [apps]}}]}]}`, `{rules: [{to: [{operation: {paths: [/a]}}]}]}`},
	{`{action: CUSTOM, provider: {name: none}, rules: [{to: [{operation: {paths: [/a]}}]}]}`, `{rules: [{}]}`},
	{`{action: CUSTOM, provider: {name: unknown}, rules: [{to: [{operation: {methods: [PUT], ports: ["5000"]}}]}]}`},
}

// matrixRequest is a request of the matrix. Without a method it is a connection of TCP.
type matrixRequest struct {
	method, path, host, serverName string
	headers                        []string
	token                          bool
}

var matrixRequests = []matrixRequest{
	{serverName: "shop.example.com"},
	{},
	{method: "GET", path: "/a", host: "shop.example.com"},
	{method: "GET", path: "/a?x=/b/", host: "SHOP.example.com", serverName: "shop.example.com"},
	{method: "PUT", path: "/a", host: "shop.example.com:5000", headers: []string{"x-team: red"}},
	{method: "GET", path: "/b/c.css", host: "a.example.org", headers: []string{"x-team: blueish"}},
	{method: "GET", path: "//a", host: "shop.example.com.", headers: []string{"x-team: green", "x-team: red"}},
	{method: "POST", path: "/users/u%2Fv/cart", host: "a.example.org", headers: []string{"x-team: blue-1"}},
	{method: "GET", path: "/users/u/cart", host: "shop.example.com", token: true},
	{method: "GET", path: "/files/a/b/x", host: "other", headers: []string{"x-forwarded-for: 203.0.113.9"}},
	{method: "GET", path: "/b/..%2fa", host: "shop.example.com", token: true, headers: []string{"x-team: Red"}},
}

// TestAuthorizationMatrix compares what a real Envoy permits with the model, for all
// combinations of policies, callers and requests.
func TestAuthorizationMatrix(t *testing.T) {
	p := startProtected(t)
	token, claims := protectedToken(t, p), protectedClaims(p)
	combinations, streams, allowed := 0, 0, 0
	for i, specs := range matrixPolicies {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			p.apply(t, specs...)
			policies := parsePolicies(t, specs)
			eventually(t, "Envoy permits what the model permits", func() error {
				var wrong []string
				for _, caller := range slices.Sorted(maps.Keys(p.callers)) {
					for _, r := range matrixRequests {
						want := policymodel.Allowed(policies, meshDomains, r.model(p, caller, claims))
						if got := r.send(t, p, caller, token); got != want {
							wrong = append(wrong, fmt.Sprintf("caller %q, %+v: %t, want %t", caller, r, got, want))
						}
						if combinations++; r.method == "" {
							streams++
						}
						if want {
							allowed++
						}
					}
				}
				if len(wrong) > 0 {
					return errors.New(strings.Join(wrong, "\n") + "\nof " + strings.Join(specs, "\n"))
				}
				return nil
			})
		})
	}
	if want := len(matrixPolicies) * len(p.callers) * len(matrixRequests); combinations < want || want < 250 || streams < 250 || allowed == 0 || allowed == combinations {
		t.Errorf("%d combinations, %d of them of TCP, %d allowed, want %d", combinations, streams, allowed, want)
	}
	for line := range strings.SplitSeq(strings.TrimSpace(adminGet(t, admin, "/stats?filter=update_rejected|config_fail|config_conflict")), "\n") {
		if !strings.HasSuffix(line, ": 0") {
			t.Errorf("Envoy counts %s", line)
		}
	}
}

// protectedToken returns the token of requests that have one, and protectedClaims what the model
// reads of it.
func protectedToken(t *testing.T, p *protected) string {
	t.Helper()
	return p.signer.token(t, map[string]any{"realm": map[string]any{"roles": []string{"user", "admin"}}, "aud": []string{"bank", "shop"}})
}

func protectedClaims(p *protected) map[string]any {
	return map[string]any{
		"iss": p.signer.issuer, "sub": "alice", "aud": []any{"bank", "shop"}, "realm": map[string]any{"roles": []any{"user", "admin"}},
	}
}

func parsePolicies(t *testing.T, specs []string) []policymodel.Policy {
	t.Helper()
	var out []policymodel.Policy
	for _, text := range specs {
		asJSON, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		spec := &securityv1beta1.AuthorizationPolicy{}
		if err := istiojson.Unmarshal(protojson.UnmarshalOptions{}, asJSON, spec); err != nil {
			t.Fatal(err)
		}
		out = append(out, policymodel.Policy{Namespace: "sample", Spec: spec})
	}
	return out
}

// model returns the request as the model sees it.
func (r matrixRequest) model(p *protected, caller string, claims map[string]any) *policymodel.Request {
	loopback := netip.MustParseAddr("127.0.0.1")
	out := &policymodel.Request{
		TCP: r.method == "", Host: r.host, Method: r.method, Headers: map[string][]string{}, Principal: caller,
		Source: loopback, Remote: loopback, To: netip.MustParseAddr("127.3.0.1"), Port: "5000",
	}
	out.Path, _, _ = strings.Cut(r.path, "?")
	if out.TCP {
		out.Port = "5001"
	}
	if p.callers[caller] != nil {
		out.ServerName = r.serverName
	}
	for _, h := range r.headers {
		name, value, _ := strings.Cut(h, ": ")
		out.Headers[name] = append(out.Headers[name], value)
		if name == "x-forwarded-for" {
			out.Remote = netip.MustParseAddr(value)
		}
	}
	if r.token {
		out.Claims = claims
	}
	return out
}

// send reports whether the request reaches the application.
func (r matrixRequest) send(t *testing.T, p *protected, caller, token string) bool {
	t.Helper()
	return r.status(t, p, caller, token) == http.StatusOK
}

// status sends the request and returns the status of the answer; 0 if there is none. A connection
// of TCP that reaches the application has the status 200.
func (r matrixRequest) status(t *testing.T, p *protected, caller, token string) int {
	t.Helper()
	if r.method == "" {
		if p.connects(t, caller, r.serverName) {
			return http.StatusOK
		}
		return 0
	}
	lines := append([]string{r.method + " " + r.path + " HTTP/1.1", "Host: " + r.host}, r.headers...)
	if r.token {
		lines = append(lines, "Authorization: Bearer "+token)
	}
	return p.send(t, caller, r.serverName, strings.Join(lines, "\n"))
}
