package e2e

import (
	"bytes"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
)

// serviceEntries has a ServiceEntry for each way to recognize connections and to find
// endpoints.
const serviceEntries = `
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    proxyHttpPort: 15007
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: static, namespace: shop}
spec:
  hosts: [orders.internal]
  addresses: [10.96.0.80]
  location: MESH_INTERNAL
  resolution: STATIC
  ports:
  - {number: 80, name: http, protocol: HTTP, targetPort: 8080}
  - {number: 7000, name: tcp, protocol: TCP}
  endpoints:
  - {address: 10.11.0.5, ports: {tcp: 8700}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: range, namespace: shop}
spec:
  hosts: [databases.example.net]
  addresses: [10.50.0.0/16]
  location: MESH_EXTERNAL
  resolution: NONE
  ports: [{number: 7100, name: tcp, protocol: TCP, targetPort: 7200}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: any-address, namespace: shop}
spec:
  hosts: [queue.example.net]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 7300, name: tcp, protocol: TCP, targetPort: 8300}]
  endpoints: [{address: 10.11.0.5}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: dns, namespace: shop}
spec:
  hosts: [api.example.net]
  location: MESH_EXTERNAL
  resolution: DNS
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8400}]
  endpoints: [{address: localhost}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: first-of-dns, namespace: shop}
spec:
  hosts: [mirror.example.net]
  location: MESH_EXTERNAL
  resolution: DNS_ROUND_ROBIN
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8500}]
  endpoints: [{address: localhost}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: wildcard, namespace: shop}
spec:
  hosts: ["*.example.org"]
  location: MESH_EXTERNAL
  resolution: NONE
  ports: [{number: 80, name: http, protocol: HTTP}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: server-name, namespace: shop}
spec:
  hosts: [secure.example.net]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 443, name: tls, protocol: TLS}]
  endpoints: [{address: 127.0.0.1, ports: {tls: PORT}}]
`

// TestServiceEntries sends redirected connections to the hosts of ServiceEntries. A stranger
// answers at each address that the client dials. It also calls the hosts by the HTTP proxy port.
func TestServiceEntries(t *testing.T) {
	if !inPod(t) {
		return
	}
	runTool(t, "", "ip", "link", "set", "lo", "up")
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	at, err := url.Parse(secure.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := startPod(t, string(bytes.ReplaceAll([]byte(serviceEntries), []byte("PORT"), []byte(at.Port()))), "10.11.0.77")
	for _, ip := range []string{"10.11.0.5", "10.96.0.80", "10.50.0.1", "10.77.0.1"} {
		p.address(t, ip)
	}
	for _, stranger := range []string{"10.96.0.80:80", "10.96.0.80:7000", "10.50.0.1:7100", "10.77.0.1:7300", "10.77.0.1:80"} {
		answers(t, stranger, "stranger")
	}
	answers(t, "10.11.0.5:8080", "orders")
	answers(t, "10.11.0.5:8700", "orders over TCP")
	answers(t, "10.50.0.1:7200", "database")
	answers(t, "10.11.0.5:8300", "queue")
	answers(t, "127.0.0.1:8400", "api")
	answers(t, "127.0.0.1:8500", "mirror")

	served(t, "http://10.96.0.80", outboundHTTP, "orders")
	served(t, "http://10.96.0.80:7000", overTCP, "orders over TCP")
	served(t, "http://10.50.0.1:7100", overTCP, "database")
	served(t, "http://10.77.0.1:7300", overTCP, "queue")
	for host, want := range map[string]string{
		"orders.internal": "orders", "api.example.net": "api", "mirror.example.net": "mirror", "www.example.org": "stranger",
	} {
		if got := called(t, "http://10.77.0.1", host); got != want {
			t.Errorf("%q answers to %s, want %q", got, host, want)
		}
	}
	proxy := &http.Client{Timeout: deadline, Transport: &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: "127.0.0.1:15007"}),
	}}
	defer proxy.CloseIdleConnections()
	for at, want := range map[string]string{
		"http://orders.internal": "orders", "http://orders.internal:80": "orders", "http://10.96.0.80": "orders",
		"http://api.example.net": "api", "http://api.example.net:81": "", "http://unknown.example.net": "",
	} {
		resp, err := proxy.Get(at)
		if err != nil {
			t.Fatalf("%s by the HTTP proxy port: %v", at, err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		wantStatus := http.StatusOK
		if want == "" {
			wantStatus = http.StatusBadGateway
		}
		if string(body) != want || resp.StatusCode != wantStatus {
			t.Errorf("%s by the HTTP proxy port: %q with status %d, want %q with %d", at, body, resp.StatusCode, want, wantStatus)
		}
	}
	conn, err := tls.Dial("tcp", "10.77.0.1:443", &tls.Config{ServerName: "secure.example.net", InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if got := conn.ConnectionState().PeerCertificates[0]; !got.Equal(secure.Certificate()) {
		t.Errorf("the certificate is of %s", got.Subject)
	}
}
