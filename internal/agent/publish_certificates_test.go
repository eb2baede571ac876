package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/agent/workloadcert"
	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/mesh"
)

// provesItself is a control plane that gives revocation lists to callers with a certificate.
type provesItself struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer
	lists []byte
}

func (p *provesItself) FetchSecrets(ctx context.Context, _ *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, error) {
	from, _ := peer.FromContext(ctx)
	if info, _ := from.AuthInfo.(credentials.TLSInfo); len(info.State.VerifiedChains) == 0 {
		return nil, errors.New("request authenticate failure: the token has expired")
	}
	body, err := anypb.New(&tlsv3.Secret{Name: mesh.SecretRoots, Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
		Crl: &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: p.lists}},
	}}})
	return &discoveryv3.DiscoveryResponse{VersionInfo: "1", Resources: []*anypb.Any{body}}, err
}

// TestListsAfterARestart: an agent that starts with a certificate of its last run, and a token that
// has expired, has the revocation lists when its first certificate is published.
func TestListsAfterARestart(t *testing.T) {
	plane := &provesItself{}
	a := newAgentTest(t, "sidecar", "run", func(s *grpc.Server) { secretv3.RegisterSecretDiscoveryServiceServer(s, plane) })
	ca := a.ca
	for _, authority := range []*certs.Authority{ca.Root, ca.Authority} {
		list, err := authority.SignCRL(nil, nil, 24*time.Hour, time.Now(), rand.Reader)
		check(t, err)
		plane.lists = append(plane.lists, certs.EncodeCRLs(list)...)
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	key, err := certs.GenerateKey(certs.ECDSAP256)
	check(t, err)
	leaf, err := ca.Authority.SignLeaf(key.Public(), mesh.Caller{Identity: certstest.Identity(), Cluster: "cluster1"}, time.Hour, time.Now(), rand.Reader)
	check(t, err)
	keyPEM, err := certs.EncodeKey(key)
	check(t, err)
	for name, data := range map[string][]byte{
		"cert-chain.pem": certs.EncodeCerts(leaf, ca.Authority.Cert), "key.pem": keyPEM, "root-cert.pem": certs.EncodeCerts(ca.Root.Cert),
	} {
		check(t, os.WriteFile(at(name), data, 0o600))
	}
	a.cfg.ProvisionedFiles = &workloadcert.Files{Chain: at("cert-chain.pem"), Key: at("key.pem"), Roots: at("root-cert.pem")}
	a.cfg.TokenFile, a.cfg.CRLFile = at("none"), at("none.pem")
	a.start(t)
	a.waitReady(t)
	if _, body := a.get("/metrics"); !strings.Contains(body, "\nmeshctl_agent_revocation_lists 2\n") {
		t.Errorf("the proxy is ready without the revocation lists: %s", body)
	}
}
