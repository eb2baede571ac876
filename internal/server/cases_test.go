package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// clientTLS is what a workload of the mesh connects with; chain follows its
// certificate.
func clientTLS(t *testing.T, s *Server, chain ...[]byte) *tls.Config {
	t.Helper()
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	who := mesh.Caller{
		Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "apps", ServiceAccount: "web"}, Cluster: "cluster1",
	}
	leaf, err := s.ca.Current().SignLeaf(key.Public(), who, time.Hour, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	for _, r := range s.ca.Current().Roots {
		roots.AddCert(r)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: "127.0.0.1", NextProtos: []string{"h2"},
		Certificates: []tls.Certificate{{Certificate: append([][]byte{leaf.Raw}, chain...), PrivateKey: key}},
	}
}

// dialSecure opens a stream of the workload and waits for its clusters.
func dialSecure(t *testing.T, s *Server, cfg *tls.Config) (discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient, error) {
	t.Helper()
	conn, err := grpc.NewClient(s.secure.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
	if err != nil {
		return nil, err
	}
	err = stream.Send(&discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~10.0.0.1~web.apps~apps.svc.cluster.local"}, TypeUrl: xdswire.ClusterType,
	})
	if err != nil && !errors.Is(err, io.EOF) { // EOF: the reason comes from Recv
		return nil, err
	}
	r, err := stream.Recv()
	if err == nil && len(r.GetResources()) == 0 {
		err = errors.New("no clusters came")
	}
	return stream, err
}

// wantServed checks that a workload is given its configuration.
func wantServed(t *testing.T, s *Server) {
	t.Helper()
	if _, err := dialSecure(t, s, clientTLS(t, s)); err != nil {
		t.Fatal(err)
	}
}

// TestHandshakesThatNeverEnd holds more connections in handshakes than
// are allowed, silent ones and ones that stop within a message.
func TestHandshakesThatNeverEnd(t *testing.T) {
	const conns = 400
	s := start(t, func(c *Config) {
		c.Limits.PendingConns = 50
		c.Limits.Handshake, c.Limits.FirstRequest = time.Second, time.Hour
	})
	ended := make(chan struct{}, conns)
	for i := range conns {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.secure.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%2 == 0 { // the begin of a ClientHello; a closed connection may refuse it
			_, _ = conn.Write([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3})
		}
		go func() {
			_, _ = io.Copy(io.Discard, conn)
			ended <- struct{}{}
		}()
	}
	wantServed(t, s)
	for i := range conns {
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatalf("%d of %d connections were closed", i, conns)
		}
	}
	wantServed(t, s)
	if n := metrics(t, s)["meshctl_xds_refused_connections_total"]; n < conns-50-10 {
		t.Errorf("%v connections refused, want those over the limit", n)
	}
}

func TestEmptyRecords(t *testing.T) {
	s := start(t, func(c *Config) { c.Limits.Handshake, c.Limits.FirstRequest = time.Hour, time.Hour })
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.secure.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// It may be closed before all is written.
	_, _ = conn.Write(slices.Repeat([]byte{22, 3, 3, 0, 0}, 1000))
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a connection with nothing but empty records goes on")
	}
	wantServed(t, s)
}

// TestOldTLS: before TLS 1.3 a client could renegotiate.
func TestOldTLS(t *testing.T) {
	s := start(t, nil)
	cfg := clientTLS(t, s)
	cfg.MaxVersion = tls.VersionTLS12
	cfg.Renegotiation = tls.RenegotiateFreelyAsClient
	if conn, err := (&tls.Dialer{Config: cfg}).DialContext(t.Context(), "tcp", s.secure.Addr().String()); err == nil {
		conn.Close()
		t.Error("TLS 1.2 was accepted")
	}
	wantServed(t, s)
}

func TestLongChain(t *testing.T) {
	s := start(t, nil)
	spec := certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "filler", TTL: time.Hour}
	filler, err := certs.NewRoot(spec, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	long := clientTLS(t, s, slices.Repeat([][]byte{filler.Cert.Raw}, 99)...)
	if _, err := dialSecure(t, s, long); status.Code(err) != codes.Unavailable {
		t.Errorf("100 certificates: got %v, want a failed handshake", err)
	}
	short := clientTLS(t, s, slices.Repeat([][]byte{filler.Cert.Raw}, 5)...)
	if _, err := dialSecure(t, s, short); err != nil {
		t.Errorf("6 certificates: %v", err)
	}
	wantServed(t, s)
}

// assignment waits for the next assignment of a service's endpoints.
func (p *proxy) assignment(t *testing.T) *endpointv3.ClusterLoadAssignment {
	t.Helper()
	r := p.next(t)
	if r.GetTypeUrl() != xdswire.EndpointType || len(r.GetResources()) != 1 {
		t.Fatalf("%d resources of %s, want one assignment", len(r.GetResources()), r.GetTypeUrl())
	}
	a := &endpointv3.ClusterLoadAssignment{}
	if err := r.GetResources()[0].GetResource().UnmarshalTo(a); err != nil {
		t.Fatal(err)
	}
	return a
}

func addresses(a *endpointv3.ClusterLoadAssignment) []string {
	var out []string
	for _, l := range a.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			out = append(out, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress())
		}
	}
	return out
}

// TestEndpoints has the endpoints of a service come and go, end at
// none, and then be very many.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	const slicesOfMany, many = 100, 1000
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
		write(t, dir, "service.yaml", serviceYAML(7))
		write(t, dir, "slice.yaml", sliceYAML(7, "10.1.0.1"))
	})
	name := "outbound|80||svc-7.ns-7.svc.cluster.local"
	join := func(pod string) (*proxy, *endpointv3.ClusterLoadAssignment) {
		p := connect(t, s, pod)
		p.next(t)
		p.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.EndpointType, ResourceNamesSubscribe: []string{name}})
		return p, p.assignment(t)
	}
	p, a := join("first")
	if got := addresses(a); !slices.Equal(got, []string{"10.1.0.1"}) {
		t.Fatalf("endpoints %v", got)
	}
	for i := range 51 { // flip-flop
		write(t, dir, "slice.yaml", sliceYAML(7, fmt.Sprintf("10.1.0.%d", 2+i%2)))
	}
	write(t, dir, "slice.yaml", sliceYAML(7, "10.1.0.9", "10.1.0.4"))
	for got := addresses(a); !slices.Equal(got, []string{"10.1.0.4", "10.1.0.9"}); got = addresses(p.assignment(t)) {
		if len(got) != 1 {
			t.Fatalf("endpoints %v in between", got)
		}
	}
	write(t, dir, "slice.yaml", sliceYAML(7))
	if got := addresses(p.assignment(t)); len(got) != 0 {
		t.Errorf("endpoints %v, want none", got)
	}

	var want []string
	for i := range slicesOfMany {
		var part []string
		for j := range many {
			part = append(part, fmt.Sprintf("10.%d.%d.%d", 10+i, j/250, j%250+1))
		}
		want = append(want, part...)
		write(t, dir, fmt.Sprintf("many-%d.yaml", i), strings.ReplaceAll(sliceYAML(7, part...), "-abc", fmt.Sprint("-", i)))
	}
	slices.Sort(want)
	var got []string
	for len(got) < len(want) {
		got = addresses(p.assignment(t))
	}
	_, a = join("second")
	if again := addresses(a); !slices.Equal(got, again) {
		t.Error("another proxy is sent another order")
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%d endpoints that are not the %d of the service", len(got), len(want))
	}
}

// TestRemotesDown starts with remote clusters that cannot be read.
func TestRemotesDown(t *testing.T) {
	t.Parallel()
	away := filepath.Join(t.TempDir(), "not", "there")
	var own string
	s := start(t, func(c *Config) {
		own = c.ConfigDir
		write(t, own, "service.yaml", serviceYAML(1))
		c.RemoteDirs = []ClusterDir{{"cluster2", away}, {"cluster3", filepath.Join(own, "service.yaml")}}
		c.RemoteTimeout = 100 * time.Millisecond
	})
	if code, body := get(t, s, "/ready"); code != http.StatusOK {
		t.Errorf("/ready says %d %s", code, body)
	}
	_, body := get(t, s, "/ready?verbose")
	if want := regexp.MustCompile(`^ready\nsigning CA: .*, valid until \d.*\ncluster cluster1: read\ncluster cluster2: not read: .*\ncluster cluster3: not read: .*\n$`); !want.MatchString(body) {
		t.Errorf("/ready?verbose says %s, want %s", body, want)
	}
	m := metrics(t, s)
	for cluster, want := range map[string]float64{"cluster1": 1, "cluster2": 0, "cluster3": 0} {
		if got, ok := m[`meshctl_cluster_synced{cluster="`+cluster+`"}`]; !ok || got != want {
			t.Errorf("the metric of %s is %v, want %v", cluster, got, want)
		}
	}
	if _, body := get(t, s, "/debug/clusters"); strings.Count(body, `"Reason"`) != 2 {
		t.Errorf("the status of the clusters is %s", body)
	}
	p := connect(t, s, "p")
	if n := clustersOf(p.next(t)); n != 1 {
		t.Errorf("%d services, want that of the own cluster", n)
	}

	if err := os.MkdirAll(away, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, away, "service.yaml", serviceYAML(2))
	if n := clustersOf(p.next(t)); n != 1 {
		t.Errorf("%d services came with the remote cluster, want 1", n)
	}
	waitFor(t, "metric of the remote cluster", func() bool {
		return metrics(t, s)[`meshctl_cluster_synced{cluster="cluster2"}`] == 1
	})
}

func clustersOf(r *discoveryv3.DeltaDiscoveryResponse) int {
	n := 0
	for _, c := range r.GetResources() {
		if strings.HasPrefix(c.GetName(), "outbound|") {
			n++
		}
	}
	return n
}

// get reads a page of a server.
func get(t *testing.T, s *Server, path string) (code int, body string) {
	t.Helper()
	token, err := localtoken.Read(s.cfg.TokenDirs, s.http.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return getAs(t, s, path, token)
}

// getAs asks for a page with a token, or without when it is empty.
func getAs(t *testing.T, s *Server, path, token string) (code int, body string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.http.Addr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestShutdown stops a server with two proxies, one of which holds things up
// because it takes no byte of its configuration, and strangers who say nothing.
func TestShutdown(t *testing.T) {
	t.Parallel()
	s, stop, done := launch(t, func(c *Config) {
		c.ShutdownTimeout = time.Second
		c.Limits.Handshake, c.Limits.FirstRequest = time.Hour, time.Hour
	})
	waitFor(t, "readiness", func() bool { return s.ready.Load() })
	for _, l := range []net.Listener{s.plain, s.secure} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	stream, err := dialSecure(t, s, clientTLS(t, s))
	if err != nil {
		t.Fatal(err)
	}
	holdUp(t, s)
	waitFor(t, "two proxies", func() bool { return len(s.hub.Proxies()) == 2 })
	stop()
	waitFor(t, "503 from /ready", func() bool {
		code, _ := get(t, s, "/ready")
		return code == http.StatusServiceUnavailable
	})
	for err == nil {
		_, err = stream.Recv()
	}
	if st := status.Convert(err); st.Code() != codes.Unavailable || st.Message() != "server is shutting down" {
		t.Errorf("the stream ended with %v", err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("the server ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the server does not end")
	}
}

// holdUp connects without TLS and opens a stream with a window of 0.
func holdUp(t *testing.T, s *Server) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", s.plain.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		conn.Close()
		<-done
	})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, conn)
	}()
	var block strings.Builder
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"},
		{":scheme", "http"},
		{":authority", "test"},
		{":path", discoveryv3.AggregatedDiscoveryService_StreamAggregatedResources_FullMethodName},
		{"content-type", "application/grpc"},
		{"te", "trailers"},
	} {
		if err := enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}); err != nil {
			t.Fatal(err)
		}
	}
	request, err := (xdswire.ServerCodec{}).Marshal(&discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~10.0.0.2~stuck.apps~apps.svc.cluster.local"}, TypeUrl: xdswire.ClusterType,
	})
	if err != nil {
		t.Fatal(err)
	}
	message := append([]byte{0, 0, 0, 0, byte(request.Len())}, request.Materialize()...)
	_, err = io.WriteString(conn, http2.ClientPreface)
	fr := http2.NewFramer(conn, nil)
	err = errors.Join(err,
		fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}),
		fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(block.String()), EndHeaders: true}),
		fr.WriteData(1, false, message))
	if err != nil {
		t.Fatal(err)
	}
}
