package kube

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/kube"
)

// TestMain fails on leaked goroutines. spdystream takes up to a second to drop the
// error of a second close; another function waits for the end of a stream.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"))
}

// TestDialContext: a port of a pod is reachable, and errors name the cause.
func TestDialContext(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := kube.Shared(t, "east")
	kubelet := c.Kubelet(t)
	namespace := c.Namespace(t, "portforward")
	c.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: %s},
spec: {nodeName: %s, automountServiceAccountToken: false, serviceAccountName: default, containers: [{name: web, image: none}]},
status: {phase: Running, podIP: 10.9.9.9, podIPs: [{ip: 10.9.9.9}]}}`, namespace, kubelet.Node))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") }))
	defer server.Close()
	_, text, _ := net.SplitHostPort(server.Listener.Addr().String())
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	target := PodPort{Access: c.Config(), Namespace: namespace, Name: "web", Port: uint16(port)}
	wantHello(t, target)
	overSPDY := target
	overSPDY.Access = &rest.Config{Host: withoutWebSocket(t, c.Config())}
	wantHello(t, overSPDY)

	target.Port = 1 // closed
	client := dial.HTTPClientVia(time.Minute, target.DialContext)
	for range 50 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "port-forward: ") || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("got error %v for a closed port", err)
		}
	}
	target.Name = "other"
	if _, err := target.DialContext(t.Context(), "tcp", ""); err == nil || !strings.Contains(err.Error(), `pods "other" not found`) {
		t.Errorf("got error %v for a missing pod", err)
	}
}

// wantHello checks that the port answers HTTP requests with hello.
func wantHello(t *testing.T, target PodPort) {
	t.Helper()
	conn, err := target.DialContext(t.Context(), "tcp", "ignored:1")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET / HTTP/1.0\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "hello" {
		t.Errorf("got %q, %v, want hello", body, err)
	}
}

// withoutWebSocket returns the address of a proxy to the API server that refuses
// WebSocket, as some proxies do.
func withoutWebSocket(t *testing.T, access *rest.Config) string {
	t.Helper()
	access.NextProtos = []string{"http/1.1"}
	transport, err := rest.TransportFor(access)
	if err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(access.Host)
	if err != nil {
		t.Fatal(err)
	}
	refused := make(chan struct{}, 1)
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "websocket" {
			refused <- struct{}{}
			http.Error(w, "no WebSocket here", http.StatusBadRequest)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		server.Close()
		utilnet.CloseIdleConnectionsFor(transport)
		if len(refused) != 1 {
			t.Error("WebSocket was not tried")
		}
	})
	return server.URL
}

// TestDialContextEnds: the end of the context ends a connection attempt to an API
// server that does not answer.
func TestDialContextEnds(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		cancel()
		<-t.Context().Done()
	}()
	target := PodPort{Access: &rest.Config{Host: listener.Addr().String()}, Namespace: "apps", Name: "web", Port: 80}
	if conn, err := target.DialContext(ctx, "tcp", ""); err == nil {
		_ = conn.Close()
		t.Error("got a connection, want an error")
	}
}
