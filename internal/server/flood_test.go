package server

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/mesh"
)

// TestFloodOverConnections: over several connections, one identity gets its share. Further
// requests are refused with a reason and counted, and other callers are served.
func TestFloodOverConnections(t *testing.T) {
	t.Parallel()
	dir, root := filepath.Join(t.TempDir(), "cluster1"), certstest.NewRoot(t)
	signer := certstest.NewIntermediate(t, root)
	saveCA(t, dir, signer)
	now := time.Now()
	s := start(t, func(c *Config) {
		c.CADir, c.Now = dir, func() time.Time { return now } // no bucket fills up
		c.Signing.PerIdentity = 1
	})
	flooding, calm := workloadOf(t, signer), workloadAs(t, signer, "calm")
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := certs.NewCSR(key, mesh.Identity{})
	if err != nil {
		t.Fatal(err)
	}
	const conns, callers, each = 3, 4, 25
	results := make(chan error, conns*callers*each)
	var wg sync.WaitGroup
	for range conns {
		client := securityv1alpha1.NewIstioCertificateServiceClient(flooding.dial(t, s))
		for range callers {
			wg.Go(func() {
				for range each {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					_, err := client.CreateCertificate(ctx, &securityv1alpha1.IstioCertificateRequest{Csr: string(csr)})
					cancel()
					results <- err
				}
			})
		}
	}
	for range 5 {
		if _, err := calm.ask(t, s); err != nil {
			t.Errorf("another identity: %v", err)
		}
	}
	wg.Wait()
	close(results)
	given, refused := 0, 0
	for err := range results {
		switch {
		case err == nil:
			given++
		case status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "more than 1 certificate requests a second of spiffe://cluster.local/ns/apps/sa/web"):
			refused++
		default:
			t.Error(err)
		}
	}
	if counted := metrics(t, s)["meshctl_ca_limited_requests_total"]; given != 10 || refused != conns*callers*each-10 || counted != float64(refused) {
		t.Errorf("given %d, refused %d, counted %v", given, refused, counted)
	}
}
