package agent

import (
	"context"
	"crypto/rand"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/agent/sds"
	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/test/harness"
)

// TestCertificateOfOthers: Envoy proves itself to the control plane with the certificate of
// another SPIFFE agent, or in files, where Istio's agent finds them. The agent needs no token
// and requests no certificate.
func TestCertificateOfOthers(t *testing.T) {
	for name, provide := range map[string]func(*testing.T, string, sds.Secrets){
		"socket": func(t *testing.T, dir string, secrets sds.Secrets) {
			t.Helper()
			log := slog.New(slog.NewTextHandler(t.Output(), nil))
			other := sds.New(log)
			if err := other.Update(secrets); err != nil {
				t.Fatal(err)
			}
			l, err := sds.Listen(filepath.Join(dir, "var/run/secrets/workload-spiffe-uds/socket"), log)
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
			ended := make(chan error, 1)
			go func() { ended <- other.Serve(ctx, l) }()
			t.Cleanup(func() {
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		},
		"files": func(t *testing.T, dir string, secrets sds.Secrets) {
			t.Helper()
			at := filepath.Join(dir, "etc/certs")
			if err := os.MkdirAll(at, 0o700); err != nil {
				t.Fatal(err)
			}
			for file, data := range map[string][]byte{"cert-chain.pem": secrets.Chain, "key.pem": secrets.Key, "root-cert.pem": secrets.Roots} {
				if err := os.WriteFile(filepath.Join(at, file), data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ca, plane := certstest.NewIstioCA(t), &controlPlane{}
			ca.Serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, plane) })
			key, err := certs.GenerateKey(certs.ECDSAP256)
			if err != nil {
				t.Fatal(err)
			}
			leaf, err := ca.Authority.SignLeaf(key.Public(), mesh.Caller{Identity: certstest.Identity(), Cluster: "cluster1"}, time.Hour, time.Now(), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			keyPEM, err := certs.EncodeKey(key)
			if err != nil {
				t.Fatal(err)
			}
			dir := harness.ShortDir(t)
			provide(t, dir, sds.Secrets{
				Chain: certs.EncodeCerts(leaf, ca.Authority.Cert), Key: keyPEM, Roots: certs.EncodeCerts(ca.Root.Cert),
			})
			flags := flagsFor(t, ca, dir)
			flags.Token = filepath.Join(dir, "none")
			run(t, flags, dir)
			if got, want := plane.peerURI(), certstest.Identity().String(); got != want {
				t.Errorf("the control plane saw %q, want %q", got, want)
			}
			if n := len(ca.Requests()); n != 0 {
				t.Errorf("%d requests for certificates", n)
			}
		})
	}
}
