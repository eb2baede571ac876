package certstest

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	securityv1 "istio.io/api/security/v1alpha1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

// ServerName is the name in the certificate of an IstioCA.
const ServerName = "istiod.istio-system.svc"

// Identity returns the identity in every certificate that an IstioCA signs.
func Identity() mesh.Identity {
	return mesh.Identity{TrustDomain: "cluster.local", Namespace: "sample", ServiceAccount: "client"}
}

// IstioCA is a CA that speaks Istio's protocol over TLS. It signs with an
// intermediate.
type IstioCA struct {
	securityv1.UnimplementedIstioCertificateServiceServer

	Root, Authority *certs.Authority
	RootFile        string // the root, PEM
	TokenFile       string // with the token "token"
	// Addr is set by Serve.
	Addr string
	// Answer, if set, replaces the certificates of every answer.
	Answer func(chain []string) ([]string, error)
	// KeyExchanges, if set, are the key exchanges that Serve accepts.
	KeyExchanges []tls.CurveID

	mu       sync.Mutex
	requests []Request
}

// Request is one request to an IstioCA.
type Request struct {
	Authorization, Cluster string
	TTL                    time.Duration
	Peer                   string // URI of the client's certificate
}

// NewIstioCA makes a CA; Serve starts it.
func NewIstioCA(t testing.TB) *IstioCA {
	t.Helper()
	root := NewRoot(t)
	dir := t.TempDir()
	ca := &IstioCA{
		Root: root, Authority: NewIntermediate(t, root),
		RootFile:  filepath.Join(dir, "root-cert.pem"),
		TokenFile: filepath.Join(dir, "token"),
	}
	check(t, os.WriteFile(ca.RootFile, certs.EncodeCerts(root.Cert), 0o600))
	check(t, os.WriteFile(ca.TokenFile, []byte("token\n"), 0o600))
	return ca
}

// Serve answers on a free port of 127.0.0.1 until the test ends. register adds
// services to the same server.
func (ca *IstioCA) Serve(t testing.TB, register ...func(*grpc.Server)) {
	t.Helper()
	key, err := certs.GenerateKey(certs.ECDSAP256)
	check(t, err)
	leaf, err := ca.Authority.SignServer(key.Public(), []string{ServerName}, time.Hour, time.Now(), rand.Reader)
	check(t, err)
	clients := x509.NewCertPool()
	clients.AddCert(ca.Root.Cert)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		MinVersion:       tls.VersionTLS13,
		CurvePreferences: ca.KeyExchanges,
		ClientAuth:       tls.VerifyClientCertIfGiven,
		ClientCAs:        clients,
		Certificates:     []tls.Certificate{{PrivateKey: key, Certificate: [][]byte{leaf.Raw, ca.Authority.Cert.Raw}}},
	})), grpc.WaitForHandlers(true),
		// Agents ping every 30 s, and an Envoy without a relay does, too.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
	securityv1.RegisterIstioCertificateServiceServer(server, ca)
	for _, r := range register {
		r(server)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	check(t, err)
	ca.Addr = listener.Addr().String()
	var done sync.WaitGroup
	done.Go(func() {
		// A test may end before the server starts.
		if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() {
		server.Stop()
		done.Wait()
	})
}

// Requests returns all requests so far.
func (ca *IstioCA) Requests() []Request {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	return slices.Clone(ca.requests)
}

// CreateCertificate records the request and signs it.
func (ca *IstioCA) CreateCertificate(ctx context.Context, req *securityv1.IstioCertificateRequest) (*securityv1.IstioCertificateResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	got := Request{
		Authorization: strings.Join(md.Get("authorization"), ","),
		Cluster:       strings.Join(md.Get("clusterid"), ","),
		TTL:           time.Duration(req.GetValidityDuration()) * time.Second,
	}
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
			got.Peer = info.State.PeerCertificates[0].URIs[0].String()
		}
	}
	ca.mu.Lock()
	ca.requests = append(ca.requests, got)
	ca.mu.Unlock()
	if got.Authorization == "" && got.Peer == "" {
		return nil, errors.New("request authenticate failure")
	}
	chain, err := ca.Chain(req.GetCsr(), got.TTL)
	if err == nil && ca.Answer != nil {
		chain, err = ca.Answer(chain)
	}
	return &securityv1.IstioCertificateResponse{CertChain: chain}, err
}

// Chain signs a request for Identity and returns the certificates of an answer:
// leaf, intermediate, root.
func (ca *IstioCA) Chain(csr string, ttl time.Duration) ([]string, error) {
	parsed, err := certs.ParseCSR([]byte(csr))
	if err != nil {
		return nil, err
	}
	leaf, err := ca.Authority.SignLeaf(parsed.PublicKey, mesh.Caller{Identity: Identity(), Cluster: "cluster1"}, ttl, time.Now(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return []string{
		string(certs.EncodeCerts(leaf)),
		string(certs.EncodeCerts(ca.Authority.Cert)),
		string(certs.EncodeCerts(ca.Root.Cert)),
	}, nil
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
