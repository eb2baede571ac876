package agent

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/agent/sds"
	"github.com/meshctl/meshctl/internal/agent/unixsocket"
	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/test/harness"
)

// TestCertificateOfOthers: Envoy proves itself to the control plane with the certificate of
// another SPIFFE agent, or in files, where Istio's agent finds them. The agent needs no token
// and requests no certificate.
func TestCertificateOfOthers(t *testing.T) {
	serve := func(path string) func(*testing.T, string, sds.Secrets) {
		return func(t *testing.T, dir string, secrets sds.Secrets) {
			t.Helper()
			log := slog.New(slog.NewTextHandler(t.Output(), nil))
			other := sds.New(log)
			if err := other.Update(secrets); err != nil {
				t.Fatal(err)
			}
			l, err := unixsocket.Listen(filepath.Join(dir, path), log)
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
			ended := make(chan error, 1)
			go func() { ended <- other.Serve(ctx, l, nil) }()
			t.Cleanup(func() {
				stop()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		}
	}
	const place = "var/run/secrets/workload-spiffe-uds"
	for name, provide := range map[string]func(*testing.T, string, sds.Secrets){
		"socket": serve(place + "/socket"),
		"link to the socket of SPIRE": func(t *testing.T, dir string, secrets sds.Secrets) { // as the chart of SPIRE
			t.Helper()
			serve("run/spire/spire-agent.sock")(t, dir, secrets)
			if err := os.MkdirAll(filepath.Join(dir, place), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(filepath.Join(dir, "run/spire/spire-agent.sock"), filepath.Join(dir, place, "socket")); err != nil {
				t.Fatal(err)
			}
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

// TestUnusableSocketOfOthers: a socket of a SPIFFE agent that no process serves ends the agent. It
// does not ask another authority for a certificate.
func TestUnusableSocketOfOthers(t *testing.T) {
	ca := certstest.NewIstioCA(t)
	ca.Serve(t)
	dir := harness.ShortDir(t)
	place := filepath.Join(dir, "var/run/secrets/workload-spiffe-uds")
	if err := os.MkdirAll(place, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("none", filepath.Join(place, "socket")); err != nil {
		t.Fatal(err)
	}
	flags := flagsFor(t, ca, dir)
	cmd := exec.CommandContext(t.Context(), meshctl, "agent", "--pod-name", "client", "--pod-namespace", "sample", "--service-account", "client",
		"--bind-address", bind, "--discovery-address", ca.Addr, "--token", ca.TokenFile, "--root-ca", ca.RootFile, "--config-path", flags.ConfigPath, "--envoy", flags.Envoy)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 2 || !strings.Contains(string(out), "the socket of a SPIFFE agent cannot be used") {
		t.Errorf("the agent ended with %v: %s", err, out)
	}
	if n := len(ca.Requests()); n != 0 {
		t.Errorf("%d requests for certificates", n)
	}
}

// ends is a control plane that records the certificates of proxies, and ends streams.
type ends struct {
	controlPlane
	streams chan *x509.Certificate
	end     chan struct{}
}

func (e *ends) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	p, _ := peer.FromContext(stream.Context())
	info, _ := p.AuthInfo.(credentials.TLSInfo)
	var leaf *x509.Certificate
	if len(info.State.VerifiedChains) > 0 {
		leaf = info.State.PeerCertificates[0]
	}
	e.streams <- leaf
	ended := make(chan error, 1)
	go func() { ended <- e.controlPlane.DeltaAggregatedResources(stream) }()
	select {
	case err := <-ended:
		return err
	case <-e.end:
		return status.Error(codes.Unavailable, "the control plane restarts")
	}
}

// TestRelayWithCertificateOfOthers: the agent relays Envoy's stream with the certificate of another
// SPIFFE agent, without a root file, and with the next certificate once there is one, also after
// that agent was away. Envoy's stream stays open.
func TestRelayWithCertificateOfOthers(t *testing.T) {
	ca := certstest.NewIstioCA(t)
	plane := &ends{streams: make(chan *x509.Certificate, 10), end: make(chan struct{})}
	ca.Serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, plane) })
	dir := harness.ShortDir(t)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	issue := func() (sds.Secrets, *x509.Certificate) {
		t.Helper()
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
		return sds.Secrets{Chain: certs.EncodeCerts(leaf, ca.Authority.Cert), Key: keyPEM, Roots: certs.EncodeCerts(ca.Root.Cert)}, leaf
	}
	serve := func(secrets sds.Secrets) (other *sds.Server, stop func()) {
		t.Helper()
		other = sds.New(log)
		if err := other.Update(secrets); err != nil {
			t.Fatal(err)
		}
		l, err := unixsocket.Listen(filepath.Join(dir, "var/run/secrets/workload-spiffe-uds/socket"), log)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		ended := make(chan error, 1)
		go func() { ended <- other.Serve(ctx, l, nil) }()
		return other, sync.OnceFunc(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
	first, firstLeaf := issue()
	other, stop := serve(first)
	defer func() { stop() }()
	flags := flagsFor(t, ca, dir)
	flags.Token, flags.RootCA = filepath.Join(dir, "none"), ""
	p := run(t, flags, dir)
	proved := func(want *x509.Certificate) {
		t.Helper()
		select {
		case got := <-plane.streams:
			if !got.Equal(want) {
				t.Fatal("the stream has another certificate than the last one")
			}
		case <-time.After(deadline):
			t.Fatal("no stream came")
		}
	}
	uses := func(n int) {
		t.Helper()
		p.wait(t, "use of the certificate", func() bool { return strings.Count(p.log.String(), "using the certificate of the SPIFFE agent") >= n })
	}
	proved(firstLeaf)
	second, secondLeaf := issue()
	if err := other.Update(second); err != nil {
		t.Fatal(err)
	}
	uses(2)
	plane.end <- struct{}{}
	proved(secondLeaf)

	stop()
	p.wait(t, "a warning", func() bool {
		return strings.Contains(p.log.String(), "no certificates from the SPIFFE agent at the moment")
	})
	plane.end <- struct{}{}
	proved(secondLeaf)
	third, thirdLeaf := issue()
	_, stop = serve(third)
	uses(3)
	plane.end <- struct{}{}
	proved(thirdLeaf)
	if got := p.get(t, 15000, "/stats?filter=^cluster.xds-grpc;.upstream_rq_total"); strings.Contains(got, ": 2") {
		t.Errorf("Envoy opened another stream: %s", got)
	}
	if n := len(ca.Requests()); n != 0 {
		t.Errorf("%d requests for certificates", n)
	}
}
