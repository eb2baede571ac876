package server

import (
	"crypto/rand"
	"crypto/tls"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// introduce opens a stream as a node and returns its error, nil if it was answered.
func introduce(t *testing.T, creds credentials.TransportCredentials, addr string, node *corev3.Node, typ string) error {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(t.Context())
	if err != nil {
		return err
	}
	_ = stream.Send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typ, ResourceNames: []string{"*"}}) // Recv tells
	_, err = stream.Recv()
	return err
}

func node(t *testing.T, id string, metadata map[string]any) *corev3.Node {
	t.Helper()
	md, err := structpb.NewStruct(metadata)
	if err != nil {
		t.Fatal(err)
	}
	return &corev3.Node{Id: id, Metadata: md}
}

const webNode = "sidecar~10.0.0.1~web.apps~apps.svc.cluster.local"

// TestNoCredentials: a caller without credentials is refused before the server keeps
// anything.
func TestNoCredentials(t *testing.T) {
	var log text
	s := start(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	cfg := clientTLS(t, s)
	cfg.Certificates = nil
	before := metrics(t, s)
	for range 50 {
		err := introduce(t, credentials.NewTLS(cfg), s.secure.Addr().String(), node(t, webNode, nil), xdswire.ClusterType)
		if st := status.Convert(err); st.Code() != codes.Unauthenticated || st.Message() != "request authenticate failure" {
			t.Fatalf("error is %v", err)
		}
	}
	after := metrics(t, s)
	if n := after["meshctl_xds_rejected_streams_total"] - before["meshctl_xds_rejected_streams_total"]; n != 50 {
		t.Errorf("%v streams are counted as refused, want 50", n)
	}
	if after["meshctl_xds_streams"] != 0 || after["meshctl_xds_waiting_streams"] != 0 {
		t.Errorf("streams %v, waiting %v, want none", after["meshctl_xds_streams"], after["meshctl_xds_waiting_streams"])
	}
	if !strings.Contains(log.String(), "none presented") {
		t.Error("the log does not say what was tried")
	}
}

// TestPlaintext: without TLS there are no identities, so no secrets and no certificates.
func TestPlaintext(t *testing.T) {
	s := start(t, nil)
	addr := s.plain.Addr().String()
	if err := introduce(t, insecure.NewCredentials(), addr, node(t, webNode, nil), xdswire.ClusterType); err != nil {
		t.Errorf("configuration: %v", err)
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = securityv1alpha1.NewIstioCertificateServiceClient(conn).CreateCertificate(t.Context(), &securityv1alpha1.IstioCertificateRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("a certificate: %v, want no such service", err)
	}
	if _, _, err := fetch(t, conn, "", "ROOTCA"); status.Code(err) != codes.Unimplemented {
		t.Errorf("roots: %v", err)
	}
	// On the network it is logged.
	var log text
	open := start(t, func(c *Config) {
		c.GRPCAddr, c.Log = ":0", slog.New(slog.NewTextHandler(&log, nil))
	})
	if !strings.Contains(log.String(), "plaintext xDS is open to the network") || open.plain == nil {
		t.Error("nothing warns of plaintext xDS on the network")
	}
	if strings.Contains(log.String(), "BEGIN") {
		t.Error("the log has keys or certificates")
	}
}

// TestNodeOfAnother: a workload cannot claim to be another one.
func TestNodeOfAnother(t *testing.T) {
	refusesClaims(t, map[string]*corev3.Node{
		"matched prod/":       node(t, "sidecar~10.0.0.1~web.prod~prod.svc.cluster.local", nil),
		"matched apps/admin":  node(t, webNode, map[string]any{"SERVICE_ACCOUNT": "admin"}),
		"not of trust domain": node(t, webNode, map[string]any{"TRUST_DOMAIN": "b.example"}),
	})
}

// TestClusterOfAnother: a workload cannot claim to be in another cluster.
func TestClusterOfAnother(t *testing.T) {
	refusesClaims(t, map[string]*corev3.Node{
		"not of cluster": node(t, webNode, map[string]any{"CLUSTER_ID": "cluster2"}),
	})
}

// refusesClaims checks that a workload is refused as each of the nodes, and that this is
// counted and logged with the text of the key.
func refusesClaims(t *testing.T, nodes map[string]*corev3.Node) {
	t.Helper()
	var log text
	s := start(t, func(c *Config) {
		c.RemoteDirs = []ClusterDir{{"cluster2", t.TempDir()}}
		c.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	for told, n := range nodes {
		before := metrics(t, s)["meshctl_xds_rejected_streams_total"]
		for _, typ := range []string{xdswire.ClusterType, xdswire.SecretType} {
			err := introduce(t, credentials.NewTLS(clientTLS(t, s)), s.secure.Addr().String(), n, typ)
			if status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s: %v", told, err)
			}
		}
		if got := metrics(t, s)["meshctl_xds_rejected_streams_total"] - before; got != 2 {
			t.Errorf("%s: %v are counted, want 2", told, got)
		}
		if !strings.Contains(log.String(), told) {
			t.Errorf("the log has nothing of %q", told)
		}
	}
	wantServed(t, s)
}

// TestNodeIDs: invalid node ids are refused.
func TestNodeIDs(t *testing.T) {
	s := start(t, nil)
	for name, id := range map[string]string{
		"empty":              "",
		"empty namespace":    "sidecar~10.0.0.1~web.~.svc.cluster.local",
		"no namespace":       "sidecar~10.0.0.1~web~svc.cluster.local",
		"three parts":        "sidecar~10.0.0.1~web.apps",
		"five parts":         webNode + "~x",
		"64 KB":              "sidecar~10.0.0.1~" + strings.Repeat("a", 64<<10) + ".apps~apps.svc.cluster.local",
		"NUL":                "sidecar~10.0.0.1~web.ap\x00ps~apps.svc.cluster.local",
		"type":               "godmode~10.0.0.1~web.apps~apps.svc.cluster.local",
		"address":            "sidecar~10.0.0~web.apps~apps.svc.cluster.local",
		"namespace of dots":  "sidecar~10.0.0.1~web..~apps.svc.cluster.local",
		"namespace in upper": "sidecar~10.0.0.1~web.APPS~apps.svc.cluster.local",
	} {
		err := introduce(t, credentials.NewTLS(clientTLS(t, s)), s.secure.Addr().String(), &corev3.Node{Id: id}, xdswire.ClusterType)
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantServed(t, s)
}

// TestOwnCertificate: the secure port has the certificate of files, and of the files that
// replace them. Callers still have certificates of the CA.
func TestOwnCertificate(t *testing.T) {
	t.Parallel()
	web := certstest.NewRoot(t)
	dir := t.TempDir()
	put := func() *tls.Certificate {
		key, err := certs.GenerateKey(certs.ECDSAP256)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := web.SignServer(key.Public(), []string{"mesh.example.com"}, time.Hour, time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		pem, err := certs.EncodeKey(key)
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir, "tls.key", string(pem))
		write(t, dir, "tls.crt", string(certs.EncodeCerts(leaf)))
		return &tls.Certificate{Leaf: leaf}
	}
	first := put()
	write(t, dir, "ca.crt", string(certs.EncodeCerts(web.Cert)))
	path := func(name string) string { return filepath.Join(dir, name) }
	s := start(t, func(c *Config) { c.Own = OwnFiles{path("tls.crt"), path("tls.key"), path("ca.crt")} })
	shows := func() *tls.Config {
		cfg := clientTLS(t, s)
		cfg.RootCAs, cfg.ServerName = certs.Pool(web.Roots), "mesh.example.com"
		return cfg
	}
	state, err := shake(t, s, shows())
	if err != nil || !state.PeerCertificates[0].Equal(first.Leaf) {
		t.Fatalf("%v, shows another certificate", err)
	}
	if _, err := dialSecure(t, s, shows()); err != nil {
		t.Error(err)
	}
	second := put()
	waitFor(t, "new certificate", func() bool {
		state, err := shake(t, s, shows())
		return err == nil && state.PeerCertificates[0].Equal(second.Leaf)
	})
	write(t, dir, "tls.crt", "junk")
	waitFor(t, "note", func() bool {
		code, text := page(t, s.http, "/ready?verbose")
		return code == http.StatusOK && strings.Contains(text, "serving certificate")
	})
	if p := s.caPage(); p.Serving == nil || p.Serving.SHA256 != certs.Fingerprint(second.Leaf) || p.ServingSigner != nil {
		t.Errorf("the page has %+v", p.Serving)
	}
}

// TestServingNames: the certificate of the CA has the configured names.
func TestServingNames(t *testing.T) {
	s := start(t, func(c *Config) { c.ServingNames = []string{"mesh.example.com"} })
	for _, name := range []string{"mesh.example.com", "istiod.istio-system.svc"} {
		cfg := clientTLS(t, s)
		cfg.ServerName = name
		if _, err := shake(t, s, cfg); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
