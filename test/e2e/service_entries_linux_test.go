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
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: merged-one, namespace: shop, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  hosts: [merged.internal]
  addresses: [10.96.0.81]
  resolution: STATIC
  ports: [{number: 7001, name: tcp, protocol: TCP, targetPort: 8701}]
  endpoints: [{address: 10.11.0.5}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: merged-two, namespace: shop, creationTimestamp: "2026-01-02T00:00:00Z"}
spec:
  hosts: [merged.internal]
  addresses: [10.96.0.82, 10.51.0.0/16]
  resolution: STATIC
  ports: [{number: 7002, name: tcp, protocol: TCP, targetPort: 8702}]
  endpoints: [{address: 10.11.0.5}]
---
apiVersion: v1
kind: Service
metadata: {name: owner, namespace: shop}
spec: {clusterIP: 10.96.0.90, ports: [{name: tcp, port: 7400}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: without-address, namespace: shop}
spec:
  hosts: [taken.internal]
  addresses: [10.96.0.90]
  resolution: STATIC
  ports: [{number: 7500, name: tcp, protocol: TCP, targetPort: 8700}]
  endpoints: [{address: 10.11.0.5}]
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
	for _, ip := range []string{"10.11.0.5", "10.96.0.80", "10.96.0.81", "10.96.0.82", "10.50.0.1", "10.51.0.1", "10.77.0.1"} {
		p.address(t, ip)
	}
	for _, stranger := range []string{"10.96.0.80:80", "10.96.0.80:7000", "10.50.0.1:7100", "10.77.0.1:7300", "10.77.0.1:80", "10.77.0.1:7500", "10.96.0.81:7001", "10.96.0.81:7002", "10.96.0.82:7001", "10.96.0.82:7002", "10.51.0.1:7001", "10.51.0.1:7002"} {
		answers(t, stranger, "stranger")
	}
	answers(t, "10.11.0.5:8080", "orders")
	answers(t, "10.11.0.5:8700", "orders over TCP")
	answers(t, "10.11.0.5:8701", "merged one")
	answers(t, "10.11.0.5:8702", "merged two")
	answers(t, "10.50.0.1:7200", "database")
	answers(t, "10.11.0.5:8300", "queue")
	answers(t, "127.0.0.1:8400", "api")
	answers(t, "127.0.0.1:8500", "mirror")

	served(t, "http://10.96.0.80", outboundHTTP, "orders")
	served(t, "http://10.96.0.80:7000", overTCP, "orders over TCP")
	served(t, "http://10.50.0.1:7100", overTCP, "database")
	served(t, "http://10.77.0.1:7300", overTCP, "queue")
	served(t, "http://10.96.0.81:7001", overTCP, "merged one")
	served(t, "http://10.96.0.82:7002", overTCP, "merged two")
	served(t, "http://10.51.0.1:7002", overTCP, "merged two")
	for _, other := range []string{
		"10.96.0.81:7002", "10.96.0.82:7001", "10.51.0.1:7001", // the port of another ServiceEntry of the host
		"10.77.0.1:7500", // the port of a ServiceEntry that has lost its address
	} {
		if got := called(t, "http://"+other, other); got != "stranger" {
			t.Errorf("%q answers at %s, want the stranger", got, other)
		}
	}
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
