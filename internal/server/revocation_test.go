package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// listOf returns a revocation list of a.
func listOf(t *testing.T, a *certs.Authority, until time.Time, revoked ...*x509.Certificate) string {
	t.Helper()
	template := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: until}
	for _, c := range revoked {
		template.RevokedCertificateEntries = append(template.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: time.Now()})
	}
	der, err := x509.CreateRevocationList(rand.Reader, template, a.Cert, a.Key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}))
}

func (w *workload) dial(t *testing.T, s *Server) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:"+s.secure.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: w.roots, ServerName: "istiod.istio-system.svc", Certificates: []tls.Certificate{w.cert},
	})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	w.last = conn
	return conn
}

// fetch returns the validation context for peers.
func fetch(t *testing.T, conn *grpc.ClientConn, have string, names ...string) (version string, peers *tlsv3.CertificateValidationContext, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answer, err := secretv3.NewSecretDiscoveryServiceClient(conn).FetchSecrets(ctx, &discoveryv3.DiscoveryRequest{ResourceNames: names, VersionInfo: have})
	if err != nil {
		return "", nil, err
	}
	for _, r := range answer.GetResources() {
		var secret tlsv3.Secret
		if err := r.UnmarshalTo(&secret); err != nil {
			t.Fatal(err)
		}
		peers = secret.GetValidationContext()
	}
	return answer.GetVersionInfo(), peers, nil
}

// TestListsForPeers: agents get the revocation lists for peers, but only lists that proxies
// can use.
func TestListsForPeers(t *testing.T) {
	dir, root := filepath.Join(t.TempDir(), "cluster1"), certstest.NewRoot(t)
	signer := certstest.NewIntermediate(t, root)
	saveCA(t, dir, signer)
	s := start(t, func(c *Config) { c.CADir = dir })
	conn := workloadOf(t, signer).dial(t, s)
	none, peers, err := fetch(t, conn, "", "ROOTCA")
	if err != nil || peers.GetCrl() != nil || string(peers.GetTrustedCa().GetInlineBytes()) != string(certs.EncodeCerts(root.Cert)) {
		t.Fatalf("%v, %v, want the root and no lists", peers, err)
	}
	if v, again, err := fetch(t, conn, none, "ROOTCA"); v != none || again != nil || err != nil {
		t.Errorf("%q, %v, %v, want no resources for who has them", v, again, err)
	}
	lists := listOf(t, root, time.Now().Add(time.Hour)) + listOf(t, signer, time.Now().Add(time.Hour))
	before, _ := s.forAgents()
	write(t, dir, "ca-crl.pem", lists)
	waitFor(t, "lists", func() bool { now, _ := s.forAgents(); return now != before })
	good, peers, err := fetch(t, conn, none, "ROOTCA")
	if err != nil || string(peers.GetCrl().GetInlineBytes()) != lists {
		t.Fatalf("%v, %v, want the lists", peers, err)
	}
	// With only the root's list, Envoy would refuse all peers.
	write(t, dir, "ca-crl.pem", listOf(t, root, time.Now().Add(time.Hour)))
	waitFor(t, "an alarm", func() bool { return len(s.ca.Problems()) > 0 })
	if v, again, err := fetch(t, conn, good, "ROOTCA"); v != good || again != nil || err != nil {
		t.Errorf("%q, %v, %v, want the last good ones", v, again, err)
	}
	for name, ask := range map[string]func() error{
		"another secret": func() error { _, _, err := fetch(t, conn, "", "kubernetes://a"); return err },
		"two secrets":    func() error { _, _, err := fetch(t, conn, "", "ROOTCA", "default"); return err },
		"without TLS": func() error {
			plain, err := grpc.NewClient("passthrough:"+s.plain.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			defer plain.Close()
			_, _, err = fetch(t, plain, "", "ROOTCA")
			return err
		},
	} {
		if err := ask(); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v, want %v", name, err, codes.Unimplemented)
		}
	}
	stranger := workloadOf(t, signer)
	stranger.cert = tls.Certificate{}
	if _, _, err := fetch(t, stranger.dial(t, s), "", "ROOTCA"); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a certificate: %v", err)
	}
}

// TestListsThatProxiesCannotUse: at the start, agents with better lists do not get lists that
// proxies cannot use.
func TestListsThatProxiesCannotUse(t *testing.T) {
	dir, root := filepath.Join(t.TempDir(), "cluster1"), certstest.NewRoot(t)
	signer := certstest.NewIntermediate(t, root)
	saveCA(t, dir, signer)
	write(t, dir, "ca-crl.pem", listOf(t, root, time.Now().Add(time.Hour)))
	s := start(t, func(c *Config) { c.CADir = dir })
	if _, _, err := fetch(t, workloadOf(t, signer).dial(t, s), "", "ROOTCA"); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "cannot be used by proxies") {
		t.Errorf("error %v", err)
	}
}

// TestListOfAnotherCluster: a list of another cluster's CA counts for certificates of that CA
// only, not for CAs of the same name.
func TestListOfAnotherCluster(t *testing.T) {
	dir, root := filepath.Join(t.TempDir(), "cluster1"), certstest.NewRoot(t)
	signer, other, namesake := certstest.NewIntermediate(t, root), certstest.NewIntermediate(t, root), certstest.NewIntermediate(t, root)
	saveCA(t, dir, signer)
	bad, good, foreign := workloadOf(t, other), workloadOf(t, other), workloadOf(t, namesake)
	later := time.Now().Add(time.Hour)
	write(t, dir, "ca-crl.pem", listOf(t, root, later)+listOf(t, signer, later)+listOf(t, other, later, bad.cert.Leaf, foreign.cert.Leaf))
	s := start(t, func(c *Config) { c.CADir = dir })
	if problems := s.ca.Problems(); len(problems) > 0 {
		t.Errorf("problems: %q", problems)
	}
	if _, err := bad.ask(t, s); err == nil {
		t.Error("who is revoked is let in")
	}
	for _, w := range []*workload{good, foreign} {
		if _, err := w.ask(t, s); err != nil {
			t.Error(err)
		}
	}
	if _, text := page(t, s.http, "/ready?verbose"); strings.Contains(text, "crl-") {
		t.Errorf("/ready?verbose has %q", text)
	}
	if _, peers, err := fetch(t, good.dial(t, s), "", "ROOTCA"); err != nil || strings.Count(string(peers.GetCrl().GetInlineBytes()), "BEGIN") != 3 {
		t.Errorf("proxies are given %v, %v", peers, err)
	}
}

// stream opens a stream of a workload.
func (w *workload) stream(t *testing.T, s *Server, name string) discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient {
	t.Helper()
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(w.dial(t, s)).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	md, err := structpb.NewStruct(map[string]any{"CLUSTER_ID": "cluster1", "NAMESPACE": "apps", "SERVICE_ACCOUNT": "web"})
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~10.0.0.1~" + name + ".apps~apps.svc.cluster.local", Metadata: md}, TypeUrl: xdswire.ClusterType,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	return stream
}

// TestOpenStreamsEnd: a stream ends when a list revokes the certificate of its caller. Others
// stay open.
func TestOpenStreamsEnd(t *testing.T) {
	t.Parallel()
	dir, root := filepath.Join(t.TempDir(), "cluster1"), certstest.NewRoot(t)
	signer := certstest.NewIntermediate(t, root)
	saveCA(t, dir, signer)
	s := start(t, func(c *Config) { c.CADir = dir })
	bad, good := workloadOf(t, signer), workloadOf(t, signer)
	ending, going := bad.stream(t, s, "bad"), good.stream(t, s, "good")
	later := time.Now().Add(time.Hour)
	write(t, dir, "ca-crl.pem", listOf(t, root, later)+listOf(t, signer, later, bad.cert.Leaf))
	_, err := ending.Recv()
	if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("the stream of who is revoked ends with %v", err)
	}
	if n := metrics(t, s)["meshctl_xds_revoked_streams_total"]; n != 1 {
		t.Errorf("%v streams are counted", n)
	}
	// Envoy tries again on the same connection, which must not last.
	conn := bad.last
	again, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err == nil {
		_, err = again.Recv()
	}
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("another stream on the connection of who is revoked: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if !conn.WaitForStateChange(ctx, connectivity.Ready) {
		t.Error("the connection of who is revoked lives on")
	}
	// It still answers after all callers were checked.
	if err := going.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.ListenerType}); err != nil {
		t.Fatal(err)
	}
	if _, err := going.Recv(); err != nil {
		t.Errorf("the stream of who is not revoked ends with %v", err)
	}
}

// TestOpenStreamsEndWithTheirRoot: a caller whose root leaves the bundle is refused, and its
// stream ends.
func TestOpenStreamsEndWithTheirRoot(t *testing.T) {
	dir, root, foreign := filepath.Join(t.TempDir(), "cluster1"), certstest.NewRoot(t), certstest.NewRoot(t)
	signer := certstest.WithRoots(certstest.NewIntermediate(t, root), root, foreign)
	saveCA(t, dir, signer)
	s := start(t, func(c *Config) { c.CADir = dir })
	other := workloadOf(t, certstest.WithRoots(certstest.NewIntermediate(t, foreign), root, foreign))
	ending, going := other.stream(t, s, "foreign"), workloadOf(t, signer).stream(t, s, "own")
	signer.Roots = signer.Roots[:1]
	saveCA(t, dir, signer)
	if _, err := ending.Recv(); status.Code(err) != codes.Unauthenticated {
		t.Errorf("it ends with %v", err)
	}
	if err := going.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.ListenerType}); err != nil {
		t.Fatal(err)
	}
	if _, err := going.Recv(); err != nil {
		t.Error(err)
	}
}
