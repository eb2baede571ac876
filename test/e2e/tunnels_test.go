package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

// tunnelMesh sends connections to external hosts through an HTTP proxy, for which a sidecar or an
// egress gateway makes tunnels.
const tunnelMesh = `apiVersion: v1
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
  ports: [{name: tls, port: 443, targetPort: 8443}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: egress, namespace: edge, labels: {kubernetes.io/service-name: egress}}
addressType: IPv4
ports: [{name: tls, port: 8443}]
endpoints: [{addresses: [127.3.0.5], targetRef: {kind: Pod, name: egress, namespace: edge}}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: egress, namespace: edge}
spec:
  selector: {istio: egress}
  servers: [{port: {number: 443, name: tls, protocol: TLS}, hosts: ["*"], tls: {mode: PASSTHROUGH}}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec:
  outboundTrafficPolicy: {mode: REGISTRY_ONLY}
  egress:
  - {port: {number: 15443, name: tls, protocol: TLS}, bind: 127.3.0.1, hosts: ["*/*"]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: external, namespace: edge}
spec:
  hosts: [sidecar.test, posted.test, gateway.test]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 15443, name: tls, protocol: TLS}]
  endpoints: [{address: 127.3.0.9}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: proxy, namespace: edge}
spec:
  hosts: [proxy.test]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports:
  - {number: 3128, name: tcp, protocol: TCP, targetPort: 18128}
  - {number: 3129, name: http2, protocol: HTTP2, targetPort: 18128}
  endpoints: [{address: 127.3.0.3}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: proxy, namespace: edge}
spec:
  host: proxy.test
  trafficPolicy: {tunnel: {protocol: CONNECT, targetHost: sidecar.test, targetPort: 443}}
  subsets:
  - {name: posted, trafficPolicy: {tunnel: {protocol: POST, targetHost: posted.test, targetPort: 443}}}
  - {name: gateway, trafficPolicy: {tunnel: {targetHost: gateway.test, targetPort: TARGETPORT}}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: external, namespace: edge}
spec:
  hosts: [sidecar.test, posted.test, gateway.test]
  gateways: [mesh, egress]
  tls:
  - match: [{gateways: [mesh], port: 15443, sniHosts: [sidecar.test]}]
    route: [{destination: {host: proxy.test, port: {number: 3128}}}]
  - match: [{gateways: [mesh], port: 15443, sniHosts: [posted.test]}]
    route: [{destination: {host: proxy.test, port: {number: 3129}, subset: posted}}]
  - match: [{gateways: [mesh], port: 15443, sniHosts: [gateway.test]}]
    route: [{destination: {host: egress, port: {number: 443}}}]
  - match: [{gateways: [egress], port: 443, sniHosts: [gateway.test]}]
    route: [{destination: {host: proxy.test, port: {number: 3128}, subset: gateway}}]
`

// TestTunnels: a sidecar and a gateway reach external hosts through an HTTP proxy, by CONNECT over
// HTTP/1.1 and by POST over HTTP/2, and follow a change of the target.
func TestTunnels(t *testing.T) {
	dir := harness.ShortDir(t)
	mesh := filepath.Join(dir, "mesh")
	for _, d := range []string{filepath.Join(mesh, "cluster1"), filepath.Join(mesh, "cluster2")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	objects := filepath.Join(mesh, "cluster1", "mesh.yaml")
	replace(t, objects, strings.ReplaceAll(tunnelMesh, "TARGETPORT", "443"))
	server := issue(t, authority(t, "external"), certs.ECDSAP256, "*.test")
	const external = "127.3.0.3:18443"
	servesTLS(t, external, &tls.Config{Certificates: []tls.Certificate{*server.client(t)}}, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s over %s", r.Host, r.TLS.ServerName)
	})
	var asked tunnelRequests
	servesBoth(t, "127.3.0.3:18128", asked.proxy(t, external))
	_, secure := controlPlane(t, dir, mesh)
	gateway := proxy{"egress", "router", "edge", "egress", "127.3.0.5", map[string]string{"istio": "egress"}}
	defer gateway.startAt(t, "127.3.0.5", dir, secure)()
	client := proxy{"client", "sidecar", "shop", "client", "127.3.0.1", nil}
	defer client.start(t, dir, secure, "ISTIO_META_INTERCEPTION_MODE=NONE")()

	through := func(host, request string) {
		t.Helper()
		direct := dial.HTTPClientOver(&http.Transport{
			TLSClientConfig: dial.UnverifiedTLSConfig(host),
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, "127.3.0.1:15443")
			},
			DisableKeepAlives: true,
		})
		eventually(t, request+" for "+host, func() error {
			resp, err := direct.Get("https://" + host)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if want := host + " over " + host; err != nil || string(body) != want {
				return fmt.Errorf("got %q, want %q: %w", body, want, err)
			}
			if last := asked.latest(); last != request {
				return fmt.Errorf("the proxy was asked for %q, want %q", last, request)
			}
			return nil
		})
	}
	through("sidecar.test", "CONNECT sidecar.test:443 HTTP/1.1")
	through("posted.test", "POST posted.test:443 HTTP/2.0")
	through("gateway.test", "CONNECT gateway.test:443 HTTP/1.1")
	replace(t, objects, strings.ReplaceAll(tunnelMesh, "TARGETPORT", "8443"))
	through("gateway.test", "CONNECT gateway.test:8443 HTTP/1.1")
}

// servesBoth serves HTTP/1.1 and HTTP/2 without TLS at an address.
func servesBoth(t *testing.T, at string, handler http.HandlerFunc) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	_ = server.Listener.Close()
	server.Listener, server.Config.Protocols = l, new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
}

// tunnelRequests holds the last request for a tunnel.
type tunnelRequests struct {
	mu   sync.Mutex
	last string
}

func (a *tunnelRequests) latest() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last
}

// proxy returns the handler of an HTTP proxy. All its tunnels lead to one address.
func (a *tunnelRequests) proxy(t *testing.T, to string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.last = r.Method + " " + r.Host + " " + r.Proto
		a.mu.Unlock()
		target, err := new(net.Dialer).DialContext(r.Context(), "tcp", to)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = target.Close() }()
		control := http.NewResponseController(w)
		var in io.Reader = r.Body
		var out io.Writer = flushing{w, control}
		if r.Method == http.MethodConnect {
			conn, buffered, err := control.Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
				return
			}
			in, out = buffered, conn
		} else if err := control.Flush(); err != nil {
			return
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(target, in)
			_ = target.Close()
		}()
		_, _ = io.Copy(out, target)
		if c, ok := out.(net.Conn); ok {
			_ = c.Close()
		} else {
			_ = control.SetReadDeadline(time.Unix(1, 0)) // the client may keep its half open
		}
		<-done
	}
}

// flushing sends each part of a response at once.
type flushing struct {
	io.Writer
	control *http.ResponseController
}

func (f flushing) Write(b []byte) (int, error) {
	n, err := f.Writer.Write(b)
	if err == nil {
		err = f.control.Flush()
	}
	return n, err
}
