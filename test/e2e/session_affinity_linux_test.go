package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
)

// stickyMesh has a Service with session affinity, one of whose endpoints is ready while its pod
// terminates.
const stickyMesh = `
apiVersion: v1
kind: Service
metadata: {name: sticky, namespace: shop}
spec: {clusterIP: 10.96.0.1, sessionAffinity: ClientIP, publishNotReadyAddresses: true, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sticky, namespace: shop, labels: {kubernetes.io/service-name: sticky}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.11.0.1]}
- {addresses: [10.11.0.2], conditions: {ready: true, serving: true, terminating: true}}
`

// TestSessionAffinity: all requests of a client address reach one endpoint, and all endpoints
// have clients.
func TestSessionAffinity(t *testing.T) {
	if !inPod(t) {
		return
	}
	p := startPod(t, stickyMesh, "10.11.0.77")
	for _, endpoint := range []string{"10.11.0.1", "10.11.0.2"} {
		p.address(t, endpoint)
		answers(t, endpoint+":8080", endpoint)
	}
	clients := make(map[string]int) // by endpoint
	for i := range 32 {
		source := fmt.Sprint("10.12.0.", i+1)
		p.address(t, source)
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
		client := &http.Client{Timeout: deadline, Transport: &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}}
		var first string
		for n := range 4 {
			resp, err := client.Get("http://10.96.0.1")
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				first = string(body)
				clients[first]++
			} else if string(body) != first {
				t.Errorf("%s reached %s, then %q", source, first, body)
			}
		}
	}
	if len(clients) != 2 || clients["10.11.0.1"]+clients["10.11.0.2"] != 32 {
		t.Errorf("clients by endpoint: %v, want some of each", clients)
	}
}
