package multicluster

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"
)

const helloworld = "outbound|5000||helloworld.sample.svc.cluster.local"

// watcher is a proxy that has the endpoints of helloworld, by delta xDS.
type watcher struct {
	mu      sync.Mutex
	now     map[string]bool
	gone    []string      // addresses that were taken away, in order
	changed chan struct{} // closed and replaced with each response
	err     error
}

// watch connects a proxy to a control plane until the test ends.
func watch(t *testing.T, p *plane) *watcher {
	t.Helper()
	conn, err := grpc.NewClient(p.plain(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	metadata, err := structpb.NewStruct(map[string]any{"CLUSTER_ID": p.Name(), "NETWORK": "flat", "NAMESPACE": "sample"})
	if err != nil {
		t.Fatal(err)
	}
	const typeURL = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node:    &corev3.Node{Id: "sidecar~10.9.0.1~client.sample~sample.svc.cluster.local", Metadata: metadata},
		TypeUrl: typeURL, ResourceNamesSubscribe: []string{helloworld},
	}); err != nil {
		t.Fatal(err)
	}
	w := &watcher{now: map[string]bool{}, changed: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			resp, err := stream.Recv()
			if err == nil {
				err = w.take(resp)
			}
			if err == nil {
				err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: resp.GetNonce()})
			}
			if err != nil {
				w.update(func() { w.err = err })
				return
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-done; _ = conn.Close() })
	return w
}

func (w *watcher) update(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *watcher) take(resp *discoveryv3.DeltaDiscoveryResponse) error {
	for _, name := range resp.GetRemovedResources() {
		w.update(func() { w.gone = append(w.gone, name) })
	}
	for _, r := range resp.GetResources() {
		var cla endpointv3.ClusterLoadAssignment
		if err := r.GetResource().UnmarshalTo(&cla); err != nil {
			return err
		}
		next := map[string]bool{}
		for _, locality := range cla.GetEndpoints() {
			for _, e := range locality.GetLbEndpoints() {
				next[e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()] = true
			}
		}
		w.update(func() {
			for a := range w.now {
				if !next[a] {
					w.gone = append(w.gone, a)
				}
			}
			w.now = next
		})
	}
	return nil
}

// wait waits until the proxy has exactly these addresses, and returns how long
// that took.
func (w *watcher) wait(t *testing.T, addresses ...string) time.Duration {
	t.Helper()
	slices.Sort(addresses)
	began := time.Now()
	timeout := time.After(deadline)
	for {
		w.mu.Lock()
		now, changed, err := slices.Sorted(maps.Keys(w.now)), w.changed, w.err
		w.mu.Unlock()
		if slices.Equal(now, addresses) {
			return time.Since(began)
		}
		if err != nil {
			t.Fatalf("the stream ended: %v", err)
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("the proxy has %q after %s, want %q", now, deadline, addresses)
		}
	}
}

// removed returns the names of the resources removed from the proxy so far.
func (w *watcher) removed() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.gone)
}

// link is the network between a control plane and an API server, which a test
// can break.
type link struct {
	net.Listener
	mu     sync.Mutex
	to     string // address; empty resets every connection
	slow   bool   // what is sent stays on the way
	conns  map[net.Conn]bool
	serves sync.WaitGroup
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	k := &link{Listener: l, to: to, conns: map[net.Conn]bool{}}
	k.serves.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			k.serves.Go(func() { k.forward(conn) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); k.set("", false); k.serves.Wait() })
	return k
}

// set changes the network; connections that there are break, unless it only
// gets slow.
func (k *link) set(to string, slow bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.to, k.slow = to, slow
	if slow {
		return
	}
	for conn := range k.conns {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // a reset
		}
		_ = conn.Close()
	}
	clear(k.conns)
}

func (k *link) isSlow() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.slow
}

func (k *link) forward(conn net.Conn) {
	k.mu.Lock()
	to := k.to
	k.conns[conn] = true
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		delete(k.conns, conn)
		k.mu.Unlock()
		if to == "" {
			if tcp, ok := conn.(*net.TCPConn); ok {
				_ = tcp.SetLinger(0)
			}
		}
		_ = conn.Close()
	}()
	if to == "" {
		return
	}
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_ = k.copy(conn, server)
		_ = conn.Close()
	})
	_ = k.copy(server, conn)
	_ = server.Close()
	back.Wait()
}

// copy passes on what comes, but not while the network is slow.
func (k *link) copy(to io.Writer, from net.Conn) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return err
		}
		if k.isSlow() {
			continue // it got lost; TCP would send it again for long
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return err
		}
	}
}

func (k *link) url() string { return fmt.Sprintf("https://%s", k.Addr()) }
