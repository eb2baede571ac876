package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/test/harness"
)

// sidecarMesh has a Sidecar with TLS at ports of the pod, an egress listener for TCP and an
// egress proxy. FILES has the certificate of the ports.
const sidecarMesh = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec:
  outboundTrafficPolicy:
    mode: ALLOW_ANY
    egressProxy: {host: egress, port: {number: 3128}}
  ingress:
  - port: {number: 9443, protocol: HTTPS, name: https}
    defaultEndpoint: 127.0.0.1:8080
    tls: {mode: SIMPLE, serverCertificate: FILES/server.pem, privateKey: FILES/key.pem}
  - port: {number: 9444, protocol: TLS, name: tls}
    defaultEndpoint: 127.0.0.1:8080
    tls: {mode: MUTUAL, serverCertificate: FILES/server.pem, privateKey: FILES/key.pem, caCertificates: FILES/server.pem}
  - port: {number: 9446, protocol: HTTP, name: own}
    captureMode: NONE
    bind: 127.0.0.9
    defaultEndpoint: 127.0.0.1:8080
  egress:
  - port: {number: 3306, protocol: MYSQL, name: mysql}
    bind: 127.0.0.1
    captureMode: NONE
    hosts: ["*/mysql.example.com"]
  - hosts: ["./*"]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: plain, namespace: shop}
spec:
  selector: {matchLabels: {app: client}}
  portLevelMtls: {"9443": {mode: DISABLE}, "9444": {mode: DISABLE}}
---
apiVersion: v1
kind: Service
metadata: {name: egress, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 3128}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: egress, namespace: shop, labels: {kubernetes.io/service-name: egress}}
addressType: IPv4
ports: [{name: http, port: 8300}]
endpoints: [{addresses: [10.11.0.5]}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: mysql, namespace: data}
spec:
  hosts: [mysql.example.com]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 3306, name: mysql, protocol: MYSQL, targetPort: 8306}]
  endpoints: [{address: 10.11.0.5}]
`

// TestSidecarListeners: the proxy terminates TLS at ingress ports by a Sidecar, binds the
// listeners that are not captured, and sends unknown traffic to the egress proxy.
func TestSidecarListeners(t *testing.T) {
	if !inPod(t) {
		return
	}
	runTool(t, "", "ip", "link", "set", "lo", "up")
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	certificate.Close()
	files := harness.ShortDir(t)
	writeCertificate(t, files, &certificate.TLS.Certificates[0])
	p := startPod(t, strings.ReplaceAll(sidecarMesh, "FILES", files), "10.11.0.77")
	for _, ip := range []string{"10.11.0.5", "10.77.0.1"} {
		p.address(t, ip)
	}
	answers(t, "127.0.0.1:8080", "application")
	answers(t, "10.11.0.5:8300", "egress proxy")
	answers(t, "10.11.0.5:8306", "database")
	answers(t, "10.77.0.1:9000", "stranger")
	answers(t, "10.77.0.1:3128", "stranger")

	roots := x509.NewCertPool()
	roots.AddCert(certificate.Certificate())
	// over returns the answer at a port with TLS, and the server that it names.
	over := func(port string, own ...tls.Certificate) (body, server string, err error) {
		client := &http.Client{Timeout: deadline, Transport: &http.Transport{TLSClientConfig: &tls.Config{
			RootCAs: roots, ServerName: "example.com", Certificates: own,
		}}}
		defer client.CloseIdleConnections()
		resp, err := client.Get("https://10.11.0.77:" + port)
		if err != nil {
			return "", "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), resp.Header.Get("Server"), err
	}
	if body, server, err := over("9443"); body != "application" || server != inboundHTTP {
		t.Errorf("TLS SIMPLE: %q of server %q, error %v", body, server, err)
	}
	if _, _, err := get("http://10.11.0.77:9443"); err == nil {
		t.Error("a port with TLS takes plaintext")
	}
	if body, server, err := over("9444", certificate.TLS.Certificates[0]); body != "application" || server != overTCP {
		t.Errorf("TLS MUTUAL: %q of server %q, error %v", body, server, err)
	}
	if body, _, err := over("9444"); err == nil {
		t.Errorf("TLS MUTUAL without a certificate: %q", body)
	}
	served(t, "http://127.0.0.9:9446", inboundHTTP, "application")
	served(t, "http://127.0.0.1:3306", overTCP, "database")
	served(t, "http://10.77.0.1:9000", overTCP, "egress proxy")
	served(t, "http://10.77.0.1:3128", outboundHTTP, "egress proxy") // a port of HTTP, an unknown host
}

// podEndpoints has a Sidecar whose ingress listeners call the pod at its own addresses.
const podEndpoints = `
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: server, namespace: shop}
spec:
  workloadSelector: {labels: {app: server}}
  ingress:
  - {port: {number: 8080, protocol: HTTP, name: http}, defaultEndpoint: '0.0.0.0:8080'}
  - {port: {number: 8081, protocol: HTTP, name: http-v6}, defaultEndpoint: '[::]:8081'}
  - {port: {number: 9000, protocol: TCP, name: tcp}, defaultEndpoint: '0.0.0.0:9000'}
  - {port: {number: 9080, protocol: HTTP, name: http-other}, defaultEndpoint: '0.0.0.0:8080'}
`

// TestIngressEndpointsOfThePod calls ports of a Sidecar that lead to an address of the pod. The
// proxy's connections to it are not redirected to the proxy again.
func TestIngressEndpointsOfThePod(t *testing.T) {
	if !inPod(t) {
		return
	}
	n := startNode(t, redirectedMesh+podEndpoints)
	server := n.startPod(t, "server", "10.11.0.5", "fd00:a::5")
	for _, at := range []string{"10.11.0.5:8080", "[fd00:a::5]:8081", "10.11.0.5:9000"} {
		var l net.Listener
		server.inside(t, 0, func() (err error) {
			l, err = net.Listen("tcp", at)
			return err
		})
		servesOn(t, l, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "server") })
	}
	callers := mtlsCallers(t, n.dir)
	policies := filepath.Join(n.dir, "mesh", "cluster1", "policies.yaml")
	for _, tc := range []struct{ mode, permitted string }{{"STRICT", strict}, {"PERMISSIVE", permissive}} {
		replace(t, policies, mtlsPolicy("shop", "own", "selector: {matchLabels: {app: server}}, mtls: {mode: "+tc.mode+"}"))
		for _, ip := range []string{"10.11.0.5", "fd00:a::5"} {
			for _, port := range []string{"9080", "9000", "8081", "8080"} {
				eventuallyReach(t, tc.mode, net.JoinHostPort(ip, port), callers, tc.permitted)
			}
		}
	}
}

// egressPorts has a Sidecar with egress listeners for ports of a service, and one for the own
// namespace.
const egressPorts = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec:
  outboundTrafficPolicy: {mode: %s}
  egress:
  - {port: {number: 80, protocol: HTTP, name: http}, hosts: ["other/*"]}
  - {port: {number: 3306, protocol: MYSQL, name: mysql}, captureMode: NONE, hosts: ["other/*"]}
  - {port: {number: 8088, protocol: HTTP, name: http-own}, captureMode: NONE, hosts: ["other/*"]}
  - hosts: ["./*"]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: other}
spec:
  clusterIP: 10.96.0.1
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: http-other, port: 81, targetPort: 8080}
  - {name: http-own, port: 8088, targetPort: 8080}
  - {name: tcp, port: 9000, targetPort: 8306}
  - {name: mysql, port: 3306, targetPort: 8306}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, namespace: other, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports:
- {name: http, port: 8080}
- {name: http-other, port: 8080}
- {name: http-own, port: 8080}
- {name: tcp, port: 8306}
- {name: mysql, port: 8306}
endpoints: [{addresses: [10.11.0.5]}]
`

// TestEgressPorts: an egress listener with a port opens only this port of its hosts. Without
// redirection, it listens at the loopback address. With redirection, a listener for HTTP
// passes on what is not HTTP.
func TestEgressPorts(t *testing.T) {
	if !inPod(t) {
		return
	}
	p := startPod(t, fmt.Sprintf(egressPorts, "REGISTRY_ONLY"), "10.11.0.77")
	for _, ip := range []string{"10.11.0.5", "10.77.0.1"} {
		p.address(t, ip)
	}
	answers(t, "10.11.0.5:8080", "web")
	answers(t, "10.11.0.5:8306", "database")
	servesTLS(t, "10.77.0.1:80", nil, http.NotFound)

	if got := called(t, "http://10.96.0.1", "web.other"); got != "web" {
		t.Errorf("the port of the egress listener: %q", got)
	}
	for _, closed := range []string{"http://10.96.0.1:81", "http://10.96.0.1:9000"} {
		if got, _, err := get(closed); err == nil {
			t.Errorf("GET %s: %q from a port that no egress listener opens", closed, got)
		}
	}
	served(t, "http://127.0.0.1:3306", overTCP, "database")
	if got := called(t, "http://127.0.0.1:8088", "web.other"); got != "web" {
		t.Errorf("the port that is not redirected: %q", got)
	}
	for _, port := range []string{"3306", "8088"} {
		if got, _, err := get("http://10.11.0.77:" + port); err == nil {
			t.Errorf("port %s answers at the address of the pod: %q", port, got)
		}
	}
	if ownTLS("10.77.0.1:80") == nil {
		t.Error("TLS to an unknown destination passes, although its policy is REGISTRY_ONLY")
	}
	replace(t, filepath.Join(p.mesh, "cluster1", "mesh.yaml"), fmt.Sprintf(egressPorts, "ALLOW_ANY"))
	eventually(t, "TLS to an unknown destination at the port of the egress listener", func() error { return ownTLS("10.77.0.1:80") })
}

// excludedHosts has a Sidecar that imports all hosts but one, and listens at an address for the
// ports of all services.
const excludedHosts = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec:
  outboundTrafficPolicy: {mode: REGISTRY_ONLY}
  egress:
  - {bind: 127.0.0.5, captureMode: NONE, hosts: ["*/*", "~other/closed.other.svc.cluster.local"]}
---
apiVersion: v1
kind: Service
metadata: {name: open, namespace: other}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 3306, targetPort: 8306}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: open, namespace: other, labels: {kubernetes.io/service-name: open}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: tcp, port: 8306}]
endpoints: [{addresses: [10.11.0.5]}]
---
apiVersion: v1
kind: Service
metadata: {name: closed, namespace: other}
spec: {clusterIP: 10.96.0.2, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: closed, namespace: other, labels: {kubernetes.io/service-name: closed}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.11.0.5]}]
`

// TestEgressExclusions: a host that a Sidecar excludes is unknown, and the egress listener without
// a port serves the ports of the other services at its address.
func TestEgressExclusions(t *testing.T) {
	if !inPod(t) {
		return
	}
	p := startPod(t, excludedHosts, "10.11.0.77")
	p.address(t, "10.11.0.5")
	answers(t, "10.11.0.5:8080", "web")
	answers(t, "10.11.0.5:8306", "database")

	if got := called(t, "http://127.0.0.5", "open.other"); got != "web" {
		t.Errorf("a host that is imported: %q", got)
	}
	served(t, "http://127.0.0.5:3306", overTCP, "database")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.5", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "closed.other"
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("a host that is excluded: %s", resp.Status)
	}
}
