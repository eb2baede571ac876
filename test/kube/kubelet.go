package kube

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
)

// Kubelet serves port-forwards of a Node: it connects a port of each pod to the same port on
// this machine's loopback.
type Kubelet struct {
	// Node is the name of the Node, for the spec of pods.
	Node string
	// Hosts has the addresses of pods by name, for those that are not at 127.0.0.1.
	// It is set before the first forward.
	Hosts    map[string]string
	forwards atomic.Int64
}

// Forwards is how many connections were forwarded.
func (k *Kubelet) Forwards() int { return int(k.forwards.Load()) }

// Kubelet makes a Node that forwards ports until the test ends.
func (c *Cluster) Kubelet(tb testing.TB) *Kubelet {
	tb.Helper()
	k := &Kubelet{}
	server := httptest.NewTLSServer(k)
	tb.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	k.Node = "node-" + port
	c.Apply(tb, fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: %s}, status: {
addresses: [{type: InternalIP, address: 127.0.0.1}], daemonEndpoints: {kubeletEndpoint: {Port: %s}}}}`, k.Node, port))
	return k
}

// ServeHTTP implements http.Handler.
func (k *Kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	if len(parts) < 3 || parts[0] != "portForward" {
		http.NotFound(w, r)
		return
	}
	portforward.ServePortForward(w, r, k, parts[2], "", nil, time.Minute, 10*time.Second, portforward.SupportedProtocols)
}

// PortForward implements portforward.PortForwarder.
func (k *Kubelet) PortForward(ctx context.Context, pod, _ string, port int32, stream io.ReadWriteCloser) error {
	k.forwards.Add(1)
	defer stream.Close()
	host := cmp.Or(k.Hosts[pod], "127.0.0.1")
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
	if err != nil {
		return err
	}
	defer conn.Close()
	ended := make(chan struct{}, 2)
	for _, way := range []struct {
		to   io.Writer
		from io.Reader
	}{{conn, stream}, {stream, conn}} {
		go func() {
			_, _ = io.Copy(way.to, way.from) // ends with either side
			ended <- struct{}{}
		}()
	}
	<-ended
	return nil
}
