package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

// authorizer is an external authorizer by gRPC and HTTP. It permits, refuses or does not answer, as
// the header x-decide of a request wants. It refuses requests whose body has the word "refuse", and
// connections of TCP of one identity.
type authorizer struct {
	authv3.UnimplementedAuthorizationServer
	asked  atomic.Int64
	ending chan struct{}
}

const refusedCaller = "spiffe://cluster.local/ns/apps-2/sa/other"

func (a *authorizer) Check(ctx context.Context, r *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	a.asked.Add(1)
	attributes := r.GetAttributes()
	request := attributes.GetRequest().GetHttp()
	decide := request.GetHeaders()["x-decide"]
	switch {
	case decide == "slow":
		select {
		case <-ctx.Done():
		case <-a.ending:
		}
		return nil, errors.New("too late")
	case strings.Contains(decide, "refuse"), strings.Contains(request.GetBody()+string(request.GetRawBody()), "refuse"):
		return &authv3.CheckResponse{
			Status: &statuspb.Status{Code: int32(codes.PermissionDenied)},
			HttpResponse: &authv3.CheckResponse_DeniedResponse{DeniedResponse: &authv3.DeniedHttpResponse{
				Status: &typev3.HttpStatus{Code: typev3.StatusCode_PaymentRequired}, Body: "pay",
			}},
		}, nil
	}
	if attributes.GetSource().GetPrincipal() == refusedCaller && request.GetPath() == "" {
		return &authv3.CheckResponse{Status: &statuspb.Status{Code: int32(codes.PermissionDenied)}}, nil
	}
	return &authv3.CheckResponse{HttpResponse: &authv3.CheckResponse_OkResponse{OkResponse: &authv3.OkHttpResponse{
		Headers: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: "x-authorizer", Value: "yes"}}},
	}}}, nil
}

func (a *authorizer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.asked.Add(1)
	body, err := io.ReadAll(r.Body)
	switch {
	case err != nil:
		w.WriteHeader(http.StatusBadRequest)
	case !strings.HasPrefix(r.URL.Path, "/check/guarded") || r.Header.Get("x-added") != "by Envoy" || r.Header.Get("x-secret") != "":
		w.WriteHeader(http.StatusTeapot)
	case r.Header.Get("x-decide") == "slow":
		select {
		case <-r.Context().Done():
		case <-a.ending:
		}
	case strings.Contains(strings.Join(r.Header.Values("x-decide"), ","), "refuse"), strings.Contains(string(body), "refuse"):
		w.WriteHeader(http.StatusPaymentRequired)
	}
}

// start serves by both protocols, and returns the ports.
func (a *authorizer) start(t *testing.T) (byGRPC, byHTTP string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	authv3.RegisterAuthorizationServer(server, a)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	web := httptest.NewServer(a)
	t.Cleanup(func() {
		close(a.ending)
		web.Close()
		server.Stop()
		<-served
	})
	port := func(addr string) string { return addr[strings.LastIndex(addr, ":")+1:] }
	return port(l.Addr().String()), port(web.URL)
}

// authorizers are the providers of the test. Nothing listens at the port of the dead ones.
const authorizers = `trustDomainAliases: [old.example.com], extensionProviders: [
{name: grpc, envoyExtAuthzGrpc: {service: sample/authorizer.test, port: 9000, timeout: 5s}},
{name: grpc-open, envoyExtAuthzGrpc: {service: sample/authorizer.test, port: 9000, timeout: 5s, failOpen: true}},
{name: http, envoyExtAuthzHttp: {service: sample/authorizer.test, port: 8000, timeout: 5s, pathPrefix: /check, statusOnError: \"503\", includeRequestHeadersInCheck: [x-decide], includeAdditionalHeadersInCheck: {x-added: by Envoy}}},
{name: http-open, envoyExtAuthzHttp: {service: sample/authorizer.test, port: 8000, timeout: 5s, pathPrefix: /check, failOpen: true, includeRequestHeadersInCheck: [x-decide], includeAdditionalHeadersInCheck: {x-added: by Envoy}}},
{name: grpc-body, envoyExtAuthzGrpc: {service: sample/authorizer.test, port: 9000, includeRequestBodyInCheck: {maxRequestBytes: 16, packAsBytes: true}}},
{name: http-body, envoyExtAuthzHttp: {service: sample/authorizer.test, port: 8000, pathPrefix: /check, includeAdditionalHeadersInCheck: {x-added: by Envoy}, includeRequestBodyInCheck: {maxRequestBytes: 16, allowPartialMessage: true}}},
{name: dead, envoyExtAuthzGrpc: {service: sample/authorizer.test, port: 9001, timeout: 0.5s}},
{name: dead-open, envoyExtAuthzGrpc: {service: sample/authorizer.test, port: 9001, timeout: 0.5s, failOpen: true}}]`

// provide sets the providers in MeshConfig, and the ports of their service.
func (p *protected) provide(t *testing.T, providers, byGRPC, byHTTP string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(p.mesh, "cluster1", "mesh.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	objects, _, _ := strings.Cut(string(text), authorizerEntry)
	before, rest, _ := strings.Cut(objects, "data: {mesh: ")
	_, after, _ := strings.Cut(rest, "\n")
	replace(t, filepath.Join(p.mesh, "cluster1", "mesh.yaml"), before+`data: {mesh: "{`+strings.ReplaceAll(providers, "\n", " ")+"}\"}\n"+after+fmt.Sprintf(authorizerEntry+`
  hosts: [authorizer.test]
  resolution: STATIC
  ports: [{number: 9000, name: grpc, protocol: GRPC, targetPort: %s}, {number: 8000, name: http, protocol: HTTP, targetPort: %s}, {number: 9001, name: grpc-dead, protocol: GRPC, targetPort: 1}]
  endpoints: [{address: 127.0.0.1}]
`, byGRPC, byHTTP))
}

const authorizerEntry = `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: authorizer, namespace: sample}
spec:`

// TestExternalAuthorization: a real Envoy asks providers about what rules match, and obeys the
// answer. Without one, failOpen and statusOnError decide.
func TestExternalAuthorization(t *testing.T) {
	a := &authorizer{ending: make(chan struct{})}
	byGRPC, byHTTP := a.start(t)
	p := startProtected(t)
	p.provide(t, authorizers, byGRPC, byHTTP)
	for provider, want := range map[string]struct{ permit, refuse, slow int }{
		"grpc":      {200, 402, 403},
		"grpc-open": {200, 402, 200},
		"http":      {200, 402, 503},
		"http-open": {200, 402, 200},
		"dead":      {403, 403, 403},
		"dead-open": {200, 200, 200},
	} {
		t.Run(provider, func(t *testing.T) {
			p.apply(t, `{action: CUSTOM, provider: {name: `+provider+`}, rules: [{to: [{operation: {paths: ["/guarded*"]}}]}]}`,
				`{rules: [{to: [{operation: {notMethods: [DELETE]}}]}, {to: [{operation: {ports: ["5001"]}}]}]}`)
			request := func(path, decide string) int {
				return p.send(t, "", "", "GET "+path+" HTTP/1.1\nHost: a\nx-secret: s\nx-decide: "+decide)
			}
			for decide, code := range map[string]int{"permit": want.permit, "refuse": want.refuse, "slow": want.slow} {
				eventually(t, fmt.Sprintf("status %d if it should %s", code, decide), func() error {
					if got := request("/guarded/a", decide); got != code {
						return fmt.Errorf("status %d", got)
					}
					return nil
				})
			}
			// Repeated headers, and values that are not UTF-8.
			for _, decide := range []string{"permit\nx-decide: refuse", "refuse\nx-decide: permit", "refuse\xff", "\xc3refuse"} {
				if code := request("/guarded/a", decide); code != want.refuse && code != http.StatusBadRequest {
					t.Errorf("x-decide: %q: status %d", decide, code)
				}
			}
			asked := a.asked.Load()
			if code := request("/free", "refuse"); code != http.StatusOK || a.asked.Load() != asked {
				t.Errorf("a path that no rule matches: status %d, the provider was asked %d times", code, a.asked.Load()-asked)
			}
			if code := p.send(t, "", "", "DELETE /guarded HTTP/1.1\nHost: a\nx-decide: permit"); code != http.StatusForbidden && code != want.permit {
				t.Errorf("what an ALLOW policy does not permit: status %d", code)
			}
		})
	}
	const long = "a body of more than 16 bytes"
	for provider, statuses := range map[string]map[string]int{
		"grpc-body": {"permit": http.StatusOK, "refuse": http.StatusPaymentRequired, long: http.StatusRequestEntityTooLarge},
		"http-body": {"permit": http.StatusOK, "refuse": http.StatusPaymentRequired, long + " refuse": http.StatusOK, "refuse " + long: http.StatusPaymentRequired},
	} {
		t.Run(provider, func(t *testing.T) {
			p.apply(t, `{action: CUSTOM, provider: {name: `+provider+`}, rules: [{to: [{operation: {paths: ["/guarded*"]}}]}]}`)
			for body, code := range statuses {
				eventually(t, fmt.Sprintf("status %d for the body %q", code, body), func() error {
					if got := p.send(t, "", "", fmt.Sprintf("POST /guarded HTTP/1.1\nHost: a\nContent-Length: %d\n\n%s", len(body), body)); got != code {
						return fmt.Errorf("status %d", got)
					}
					return nil
				})
			}
		})
	}
	t.Run("TCP", func(t *testing.T) {
		p.apply(t, `{action: CUSTOM, provider: {name: grpc}, rules: [{to: [{operation: {ports: ["5001"]}}]}]}`)
		eventually(t, "the provider decides about connections", func() error {
			if refused, permitted := p.connects(t, strings.TrimPrefix(refusedCaller, "spiffe://"), ""), p.connects(t, "", ""); refused || !permitted {
				return fmt.Errorf("permitted %t and %t", refused, permitted)
			}
			return nil
		})
		p.apply(t, `{action: CUSTOM, provider: {name: http}, rules: [{to: [{operation: {ports: ["5001"]}}]}]}`)
		eventually(t, "a provider by HTTP refuses connections", func() error {
			if p.connects(t, "", "") {
				return errors.New("permitted")
			}
			return nil
		})
	})
}

// keptConnection is a connection in plaintext that requests share.
type keptConnection struct {
	net.Conn
	answers *bufio.Reader
}

// keep opens a connection.
func (p *protected) keep(t *testing.T) *keptConnection {
	t.Helper()
	conn, err := p.dial("", "127.3.0.1:5000", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &keptConnection{conn, bufio.NewReader(conn)}
}

// get returns the status of an answer, 0 if the connection has ended.
func (c *keptConnection) get(path, decide string) int {
	_ = c.SetDeadline(time.Now().Add(deadline))
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a\r\nx-decide: %s\r\n\r\n", path, decide); err != nil {
		return 0
	}
	resp, err := http.ReadResponse(c.answers, nil)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode
}

// TestProviderAppears: no request passes unasked when MeshConfig gets the provider of a policy, nor
// when a policy moves to a new provider. This holds for connections that are older, too.
func TestProviderAppears(t *testing.T) {
	a := &authorizer{ending: make(chan struct{})}
	byGRPC, byHTTP := a.start(t)
	p := startProtected(t)
	policy := func(action string) string {
		return `{` + action + `, rules: [{to: [{operation: {paths: ["/guarded*"]}}]}]}`
	}
	p.apply(t, policy(`action: CUSTOM, provider: {name: grpc}`))
	becomes := func(decide string, want int) {
		t.Helper()
		eventually(t, fmt.Sprintf("status %d if the provider should %s", want, decide), func() error {
			if got := p.send(t, "", "", "GET /guarded HTTP/1.1\nHost: a\nx-decide: "+decide); got != want {
				return fmt.Errorf("status %d", got)
			}
			return nil
		})
	}
	becomes("permit", http.StatusForbidden)
	older := p.keep(t)
	if code := older.get("/free", "refuse"); code != http.StatusOK {
		t.Fatalf("a request that the policy does not concern: status %d", code)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var traffic sync.WaitGroup
	var refused atomic.Int64
	traffic.Go(func() {
		for ctx.Err() == nil {
			code := older.get("/guarded", "refuse")
			if refused.Add(1); code != http.StatusForbidden && code != http.StatusPaymentRequired {
				t.Errorf("request %d on the older connection: status %d", refused.Load(), code)
				return
			}
		}
	})
	listeners := adminGet(t, admin, "/stats?filter=listener_manager.listener_(modified|added|removed)")
	provider := func(name string) string {
		return `{name: ` + name + `, envoyExtAuthzGrpc: {service: sample/authorizer.test, port: 9000}}`
	}
	mesh := "trustDomainAliases: [old.example.com], extensionProviders: [" + provider("none") + ", " + provider("grpc")
	p.provide(t, mesh+"]", byGRPC, byHTTP)
	becomes("permit", http.StatusOK)
	becomes("refuse", http.StatusPaymentRequired)
	stop()
	traffic.Wait()
	if now := adminGet(t, admin, "/stats?filter=listener_manager.listener_(modified|added|removed)"); now != listeners {
		t.Errorf("a listener changed with the provider: before\n%safter\n%s", listeners, now)
	}

	// A provider that no policy has named changes listeners, and older connections lack its filter.
	p.apply(t, policy(`action: DENY`))
	becomes("permit", http.StatusForbidden)
	var kept []*keptConnection
	for range 20 {
		c := p.keep(t)
		if code := c.get("/free", "permit"); code != http.StatusOK {
			t.Fatalf("a request that the policy does not concern: status %d", code)
		}
		kept = append(kept, c)
	}
	p.provide(t, mesh+", "+provider("new")+"]", byGRPC, byHTTP)
	eventually(t, "listeners have the filter of the new provider", func() error {
		if !strings.Contains(adminGet(t, admin, "/config_dump?resource=dynamic_listeners"), "ext_authz.new") {
			return errors.New("they do not")
		}
		return listenersAre(t, "listener_manager.total_listeners_warming: 0")
	})
	p.apply(t, policy(`action: CUSTOM, provider: {name: new}`))
	eventually(t, "Envoy has the moved policy", func() error {
		if !strings.Contains(adminGet(t, admin, "/config_dump?resource=ecds_filters"), "istio-ext-authz-ns[sample]-policy[p0]") {
			return errors.New("it does not")
		}
		return nil
	})
	answered := 0
	for _, c := range kept {
		switch code := c.get("/guarded", "permit"); code {
		case http.StatusForbidden:
			answered++
		case 0: // drained
		default:
			t.Errorf("an older connection: status %d", code)
		}
	}
	if answered == 0 {
		t.Error("all older connections have ended")
	}
}

// TestDryRunStatistics: policies with the annotation refuse nothing, and Envoy counts what they
// would do, with Istio's labels.
func TestDryRunStatistics(t *testing.T) {
	p := startProtected(t)
	policy := func(name, spec string) string {
		return "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: " + name +
			`, namespace: sample, annotations: {istio.io/dry-run: "true"}}` + "\nspec: " + spec + "\n---\n"
	}
	replace(t, filepath.Join(p.mesh, "cluster1", "dry.yaml"),
		policy("deny", `{action: DENY, rules: [{to: [{operation: {paths: [/a]}}]}]}`)+policy("allow", `{rules: [{to: [{operation: {paths: [/a]}}]}]}`))
	p.apply(t)
	eventually(t, "Envoy counts", func() error {
		for _, path := range []string{"/a", "/b"} {
			if code := p.send(t, "", "", "GET "+path+" HTTP/1.1\nHost: a"); code != http.StatusOK {
				return fmt.Errorf("%s: status %d", path, code)
			}
		}
		stats := adminGet(t, admin, "/stats/prometheus?filter=istio_dry_run&usedonly")
		for _, action := range []string{"allow", "deny"} {
			for _, result := range []string{"allowed", "denied"} {
				if labels := fmt.Sprintf(`authz_dry_run_action="%s",authz_dry_run_result="%s"`, action, result); !strings.Contains(stats, labels) {
					return fmt.Errorf("%s is not in\n%s", labels, stats)
				}
			}
		}
		return nil
	})
}
