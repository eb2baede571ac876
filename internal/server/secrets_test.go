package server

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// credential returns a certificate of a gateway and its key, in PEM.
func credential(t *testing.T, s *Server) (cert, key string) {
	t.Helper()
	private, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := s.ca.Current().SignLeaf(private.Public(), mesh.Caller{
		Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "apps", ServiceAccount: "shop"},
	}, time.Hour, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Raw})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func secretYAML(name, cert, key string) string {
	encode := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {name: %s, namespace: apps}\ndata:\n  tls.crt: %s\n  tls.key: %s\n  ca.crt: %s\n",
		name, encode(cert), encode(key), encode(cert))
}

// gatewayPod makes workload web of namespace apps a gateway.
const gatewayPod = `apiVersion: v1
kind: Pod
metadata: {name: web, namespace: apps, labels: {istio: shop}}
spec: {serviceAccountName: web, containers: [{name: proxy}]}
status: {podIP: 10.0.0.1, phase: Running}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: shop, namespace: apps}
spec:
  selector: {istio: shop}
  servers:
  - {port: {number: 15443, name: tls, protocol: TLS}, tls: {mode: AUTO_PASSTHROUGH}, hosts: ["*.local"]}
`

// wireClient asks for one type over one variant.
type wireClient struct {
	t     *testing.T
	typ   string
	sotw  discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	delta discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

func dialWire(t *testing.T, s *Server, secure bool, v xdswire.Variant, nodeType, typ string, names ...string) *wireClient {
	t.Helper()
	addr, creds := s.plain.Addr().String(), insecure.NewCredentials()
	if secure {
		addr, creds = s.secure.Addr().String(), credentials.NewTLS(clientTLS(t, s))
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	api := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	md, err := structpb.NewStruct(map[string]any{"CLUSTER_ID": "cluster1", "NAMESPACE": "apps", mesh.MetadataRelay: "true"})
	if err != nil {
		t.Fatal(err)
	}
	node := &corev3.Node{Id: nodeType + "~10.0.0.1~web.apps~apps.svc.cluster.local", Metadata: md}
	c := &wireClient{t: t, typ: typ}
	if v == xdswire.Delta {
		if c.delta, err = api.DeltaAggregatedResources(t.Context()); err == nil {
			err = c.delta.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: typ, ResourceNamesSubscribe: names})
		}
	} else if c.sotw, err = api.StreamAggregatedResources(t.Context()); err == nil {
		err = c.sotw.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typ, ResourceNames: names})
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// next accepts the next response and returns its messages.
func (c *wireClient) next(names ...string) [][]byte {
	c.t.Helper()
	var out [][]byte
	if c.delta != nil {
		m, err := c.delta.Recv()
		if err != nil {
			c.t.Fatal(err)
		}
		for _, r := range m.GetResources() {
			if c.typ == xdswire.NameTableType && r.GetName() != "" {
				c.t.Errorf("the name table is called %q", r.GetName())
			}
			out = append(out, r.GetResource().GetValue())
		}
		if err := c.delta.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: c.typ, ResponseNonce: m.GetNonce()}); err != nil {
			c.t.Fatal(err)
		}
		return out
	}
	m, err := c.sotw.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, r := range m.GetResources() {
		out = append(out, r.GetValue())
	}
	if err := c.sotw.Send(&discoveryv3.DiscoveryRequest{TypeUrl: c.typ, ResponseNonce: m.GetNonce(), ResourceNames: names}); err != nil {
		c.t.Fatal(err)
	}
	return out
}

func (c *wireClient) secrets(names ...string) map[string]string {
	c.t.Helper()
	out := make(map[string]string)
	for _, b := range c.next(names...) {
		var s tlsv3.Secret
		if err := proto.Unmarshal(b, &s); err != nil {
			c.t.Fatal(err)
		}
		out[s.GetName()] = string(s.GetTlsCertificate().GetCertificateChain().GetInlineBytes()) +
			string(s.GetTlsCertificate().GetPrivateKey().GetInlineBytes()) + string(s.GetValidationContext().GetTrustedCa().GetInlineBytes())
	}
	return out
}

// text is a log that tests read while it is written.
type text struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *text) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestSecretsOfFiles: a gateway gets a Secret of the directory and its changes over TLS. It
// gets none in plaintext, sidecars get none, and no key appears elsewhere.
func TestSecretsOfFiles(t *testing.T) {
	for _, v := range []xdswire.Variant{xdswire.SotW, xdswire.Delta} {
		t.Run(v.String(), func(t *testing.T) {
			var dir string
			var logs text
			s := start(t, func(c *Config) {
				dir, c.Log = c.ConfigDir, slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
				write(t, dir, "gateway.yaml", gatewayPod)
			})
			cert, key := credential(t, s)
			write(t, dir, "secret.yaml", secretYAML("shop", cert, key))
			const pair, roots = "kubernetes://shop", "kubernetes://shop-cacert"
			plain := dialWire(t, s, false, v, "router", xdswire.SecretType, pair)
			sidecar := dialWire(t, s, true, v, "sidecar", xdswire.SecretType, pair, roots)
			if got := sidecar.secrets(pair, roots); !maps.Equal(got, map[string]string{roots: cert}) {
				t.Errorf("a sidecar is given %v", got)
			}
			gateway := dialWire(t, s, true, v, "router", xdswire.SecretType, pair)
			if got := gateway.secrets(pair); !maps.Equal(got, map[string]string{pair: cert + key}) {
				t.Fatalf("the gateway is given %v", got)
			}
			other, otherKey := credential(t, s)
			write(t, dir, "secret.yaml", secretYAML("shop", cert, otherKey))
			waitFor(t, "complaint", func() bool {
				return strings.Contains(logs.String(), "data[tls.key]: is not the key of the certificate")
			})
			write(t, dir, "secret.yaml", secretYAML("shop", other, otherKey))
			if got := gateway.secrets(pair); !maps.Equal(got, map[string]string{pair: other + otherKey}) {
				t.Errorf("the gateway is given %v", got)
			}
			write(t, dir, "broken.yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: x}\nstringData:\n  key: |\n  "+strings.ReplaceAll(key, "\n", "\n ")+"\n  - [")
			waitFor(t, "second complaint", func() bool { return strings.Contains(logs.String(), "broken.yaml") })
			waitFor(t, "warnings", func() bool {
				return strings.Contains(logs.String(), "secrets are served only over TLS") && strings.Contains(logs.String(), "it is not a gateway")
			})
			_ = plain
			keysAreNowhere(t, s, logs.String(), key, otherKey)
		})
	}
}

// keysAreNowhere checks that no page or log has the keys.
func keysAreNowhere(t *testing.T, s *Server, logs string, keys ...string) {
	t.Helper()
	shown := logs
	pages := []string{"/ready?verbose", "/debug/xds/history?proxy=web.apps", "/debug/syncz?pretty"}
	for page := range s.pages() {
		pages = append(pages, "/debug/"+page)
	}
	for _, page := range pages {
		code, body := get(t, s, page)
		if code != http.StatusOK {
			t.Errorf("%s: %d, %s", page, code, body)
		}
		shown += body
	}
	resp, err := http.Get("http://" + s.monitoring.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if err != nil {
		t.Fatal(err)
	}
	shown += string(body)
	shown += fmt.Sprintf("%+v %#v", s.registry.Current(), s.registry.Current())
	for _, key := range keys {
		lines := strings.Split(key, "\n")
		for _, line := range append(lines[1:len(lines)-2], base64.StdEncoding.EncodeToString([]byte(key))[60:120]) {
			if i := strings.Index(shown, line); i >= 0 {
				t.Errorf("a key is shown: %.300s", shown[max(i-200, 0):])
			}
		}
	}
}

// TestNamesOfFiles: proxies get the name table and its changes, in plaintext and over TLS.
func TestNamesOfFiles(t *testing.T) {
	for _, v := range []xdswire.Variant{xdswire.SotW, xdswire.Delta} {
		t.Run(v.String(), func(t *testing.T) {
			var dir string
			s := start(t, func(c *Config) {
				dir = c.ConfigDir
				write(t, dir, "service-1.yaml", serviceYAML(1))
			})
			for _, secure := range []bool{false, true} {
				for _, nodeType := range []string{"sidecar", "router"} {
					c := dialWire(t, s, secure, v, nodeType, xdswire.NameTableType)
					table := func(want ...string) {
						t.Helper()
						got := c.next()
						if len(got) != 1 {
							t.Fatalf("%d resources, want 1", len(got))
						}
						for i := 1; i <= 2; i++ {
							name := fmt.Sprintf("svc-%d.ns-%d.svc.cluster.local", i, i)
							if has := strings.Contains(string(got[0]), name); has != strings.Contains(strings.Join(want, " "), name) {
								t.Errorf("%s is in the table: %v", name, has)
							}
						}
					}
					table("svc-1.ns-1.svc.cluster.local")
					write(t, dir, "service-2.yaml", serviceYAML(2))
					table("svc-1.ns-1.svc.cluster.local", "svc-2.ns-2.svc.cluster.local")
					write(t, dir, "service-2.yaml", "# none\n")
					table("svc-1.ns-1.svc.cluster.local")
				}
			}
		})
	}
}
