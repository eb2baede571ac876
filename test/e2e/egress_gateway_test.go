package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

// egressMesh sends the requests of sidecars to two external hosts through an egress gateway,
// which passes them on as they are or over TLS, and connections of TLS by server name. The
// folder FILES has the roots of the external servers.
const egressMesh = `apiVersion: v1
kind: Pod
metadata: {name: egress, namespace: edge, labels: {istio: egress}}
spec: {serviceAccountName: egress, containers: [{name: proxy}]}
status: {podIP: 127.3.0.5, phase: Running}
---
apiVersion: v1
kind: Service
metadata: {name: egress, namespace: edge}
spec:
  clusterIP: 10.96.0.5
  selector: {istio: egress}
  ports: [{name: http, port: 80, targetPort: 8880}, {name: tls, port: 443, targetPort: 8443}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: egress, namespace: edge, labels: {kubernetes.io/service-name: egress}}
addressType: IPv4
ports: [{name: http, port: 8880}, {name: tls, port: 8443}]
endpoints: [{addresses: [127.3.0.5], targetRef: {kind: Pod, name: egress, namespace: edge}}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: egress, namespace: edge}
spec:
  selector: {istio: egress}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: [plain.test, secured.test]}
  - {port: {number: 443, name: tls, protocol: TLS}, hosts: [plain.test], tls: {mode: PASSTHROUGH}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec:
  outboundTrafficPolicy: {mode: REGISTRY_ONLY}
  egress:
  - {port: {number: 15080, name: http, protocol: HTTP}, bind: 127.3.0.1, hosts: ["*/*"]}
  - {port: {number: 15443, name: tls, protocol: TLS}, bind: 127.3.0.1, hosts: ["*/*"]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: external, namespace: edge}
spec:
  hosts: [plain.test, secured.test]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports:
  - {number: 15080, name: http, protocol: HTTP, targetPort: 18000}
  - {number: 15443, name: tls, protocol: TLS, targetPort: 18443}
  endpoints: [{address: 127.3.0.3}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: plain, namespace: edge}
spec:
  hosts: [plain.test]
  gateways: [mesh, egress]
  http:
  - match: [{gateways: [mesh], port: 15080}]
    route: [{destination: {host: egress, port: {number: 80}}}]
  - match: [{gateways: [egress], port: 80}]
    headers: {request: {set: {x-through: gateway}}}
    route: [{destination: {host: plain.test, port: {number: 15080}}}]
  tls:
  - match: [{gateways: [mesh], port: 15443, sniHosts: [plain.test]}]
    route: [{destination: {host: egress, port: {number: 443}}}]
  - match: [{gateways: [egress], port: 443, sniHosts: [plain.test]}]
    route: [{destination: {host: plain.test, port: {number: 15443}}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: secured, namespace: edge}
spec:
  hosts: [secured.test]
  gateways: [mesh, egress]
  http:
  - match: [{gateways: [mesh], port: 15080}]
    route: [{destination: {host: egress, port: {number: 80}}}]
  - match: [{gateways: [egress], port: 80}]
    headers: {request: {set: {x-through: gateway}}}
    route: [{destination: {host: secured.test, port: {number: 15443}}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: secured, namespace: edge}
spec:
  host: secured.test
  trafficPolicy:
    portLevelSettings:
    - port: {number: 15443}
      tls: {mode: SIMPLE, caCertificates: FILES/roots.pem, sni: secured.test, subjectAltNames: ["*.test"]}
`

// TestEgressGateway: requests and connections to external hosts leave the mesh through an
// egress gateway, which begins TLS for one of the hosts. Other hosts are not reached.
func TestEgressGateway(t *testing.T) {
	dir := harness.ShortDir(t)
	mesh, files := filepath.Join(dir, "mesh"), filepath.Join(dir, "files")
	for _, d := range []string{filepath.Join(mesh, "cluster1"), filepath.Join(mesh, "cluster2"), files} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	server := issue(t, authority(t, "external"), certs.ECDSAP256, "*.test")
	replace(t, filepath.Join(files, "roots.pem"), string(server.roots))
	replace(t, filepath.Join(mesh, "cluster1", "mesh.yaml"), strings.ReplaceAll(egressMesh, "FILES", files))
	echo := func(w http.ResponseWriter, r *http.Request) {
		name := "none"
		if r.TLS != nil {
			name = r.TLS.ServerName
		}
		fmt.Fprintf(w, "%s through %q, TLS %s", r.Host, r.Header.Get("x-through"), name)
	}
	serves(t, "127.3.0.3:18000", echo)
	servesTLS(t, "127.3.0.3:18443", &tls.Config{Certificates: []tls.Certificate{*server.client(t)}}, echo)
	_, secure := controlPlane(t, dir, mesh)
	gateway := proxy{"egress", "router", "edge", "egress", "127.3.0.5", map[string]string{"istio": "egress"}}
	defer gateway.startAt(t, "127.3.0.5", dir, secure)()
	client := proxy{"client", "sidecar", "shop", "client", "127.3.0.1", nil}
	defer client.start(t, dir, secure, "ISTIO_META_INTERCEPTION_MODE=NONE")()

	for host, want := range map[string]string{
		"plain.test":   `plain.test through "gateway", TLS none`,
		"secured.test": `secured.test through "gateway", TLS secured.test`,
	} {
		eventually(t, "a request to "+host, func() error {
			if got := requested(t, "http://127.3.0.1:15080", host); got.body != want {
				return fmt.Errorf("got %+v, want %s", got, want)
			}
			return nil
		})
	}
	if got := requested(t, "http://127.3.0.1:15080", "other.test"); got.status != http.StatusBadGateway {
		t.Errorf("a host that is not registered: %+v", got)
	}
	direct := dial.HTTPClientOver(&http.Transport{
		TLSClientConfig: dial.UnverifiedTLSConfig("plain.test"),
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, "127.3.0.1:15443")
		},
	})
	defer direct.CloseIdleConnections()
	eventually(t, "TLS of the application", func() error {
		resp, err := direct.Get("https://plain.test")
		if err != nil {
			return err
		}
		body, err := io.ReadAll(resp.Body)
		if _ = resp.Body.Close(); err != nil || string(body) != `plain.test through "", TLS plain.test` {
			return fmt.Errorf("got %q: %w", body, err)
		}
		return nil
	})
	if stats := requested(t, "http://127.3.0.5:15000/stats?filter=15443.*plain.test.*upstream_cx_total", "").body; stats == "" || strings.HasSuffix(strings.TrimSpace(stats), ": 0") {
		t.Errorf("TLS did not pass the gateway: %q", stats)
	}
}
