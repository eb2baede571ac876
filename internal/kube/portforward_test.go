package kube

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/kube"
)

// spdystream tells the error of a second closing for a second to nobody; what
// waits for a stream to end is another function.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/moby/spdystream.(*Connection).shutdown"))
}

// TestDialContext speaks to a port of a pod, and hears why it cannot.
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
	conn, err := target.DialContext(t.Context(), "tcp", "anything:1")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "GET / HTTP/1.0\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "hello" {
		t.Errorf("%q, %v", body, err)
	}
	_ = resp.Body.Close()
	_ = conn.Close()

	target.Port = 1 // nobody listens there
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
			t.Errorf("a port where nobody listens: %v", err)
		}
	}
	target.Name = "other"
	if _, err := target.DialContext(t.Context(), "tcp", ""); err == nil || !strings.Contains(err.Error(), `port-forward: pods "other" not found`) {
		t.Errorf("a pod that there is not: %v", err)
	}
}
