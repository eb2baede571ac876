package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// metadataMesh has a service, and a provider of spans that has no server.
const metadataMesh = `
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {app: client}}
spec: {serviceAccountName: client}
status: {podIP: 10.11.0.77}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    extensionProviders: [{name: spans, zipkin: {service: zipkin.shop.svc.cluster.local, port: 9411}}]
    defaultProviders: {tracing: [spans]}
    defaultConfig: {tracing: {sampling: 0}}
---
apiVersion: v1
kind: Service
metadata: {name: zipkin, namespace: shop}
spec: {clusterIP: 10.96.0.9, ports: [{name: http, port: 9411}]}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: api, namespace: shop, labels: {kubernetes.io/service-name: api}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.11.0.1]}]
`

// TestMetadataOfConnections: the metadata of one proxy decide whether it accepts HTTP/1.0, when it
// closes idle connections and how many requests it samples.
func TestMetadataOfConnections(t *testing.T) {
	if !inPod(t) {
		return
	}
	p := preparePod(t, metadataMesh, "10.11.0.77")
	_, secure := controlPlane(t, p.dir, p.mesh)
	p.address(t, "10.11.0.1")
	serves(t, "10.11.0.1:8080", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("X-B3-Sampled")) })

	t.Run("none", func(t *testing.T) {
		p.startProxy(t, secure)
		if status, _, err := requestOver(t, "HTTP/1.0", false); err == nil { // it is no HTTP, and goes to the address of the service
			t.Errorf("HTTP/1.0: status %d, want the end of the connection", status)
		}
		if status, sampled, _ := requestOver(t, "HTTP/1.1", false); status != http.StatusOK || sampled != "0" {
			t.Errorf("HTTP/1.1: status %d, sampled %q", status, sampled)
		}
	})
	t.Run("some", func(t *testing.T) {
		p.startProxy(t, secure, "ISTIO_META_HTTP10=1", "ISTIO_META_IDLE_TIMEOUT=1s",
			`PROXY_CONFIG={"discoveryAddress":"`+secure+`","concurrency":1,"terminationDrainDuration":"0s","tracing":{"sampling":100}}`)
		if status, sampled, _ := requestOver(t, "HTTP/1.0", false); status != http.StatusOK || sampled != "1" {
			t.Errorf("HTTP/1.0: status %d, sampled %q", status, sampled)
		}
		if status, _, err := requestOver(t, "HTTP/1.1", true); status != http.StatusOK || err != nil {
			t.Errorf("HTTP/1.1: status %d, and then %v, want the end of the connection", status, err)
		}
	})
}

// requestOver requests / from the service by a version of HTTP, and returns the status and the body, or
// an error if there is no response. If idle, it waits until the server ends the connection, and returns
// an error if the server does not.
func requestOver(t *testing.T, version string, idle bool) (status int, body string, err error) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", "10.96.0.1:80", deadline)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(deadline)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "GET / %s\r\nHost: api.shop\r\n\r\n", version); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(conn)
	resp, err := http.ReadResponse(reader, nil)
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	if idle {
		_, err = io.Copy(io.Discard, reader)
	}
	return resp.StatusCode, string(text), err
}
