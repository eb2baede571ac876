package server

import (
	"crypto/rand"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
)

// meshOf returns a MeshConfig with a trust domain.
func meshOf(domain string) string {
	return `apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    trustDomain: ` + domain + "\n"
}

// constrained returns a CA that may sign for one trust domain.
func constrained(t *testing.T, domain string) *certs.Authority {
	t.Helper()
	root, err := certs.NewRoot(certs.CASpec{
		Algorithm: certs.ECDSAP256, CommonName: "Root CA", TTL: 24 * time.Hour,
		PermittedURIDomains: []string{domain}, PermittedDNSDomains: []string{"svc"},
	}, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return certstest.NewIntermediate(t, root)
}

// TestCAThatDoesNotFitIsRefusedAtTheStart: with a CA that does not fit MeshConfig, nothing
// is served until one of them changes.
func TestCAThatDoesNotFitIsRefusedAtTheStart(t *testing.T) {
	for name, repair := range map[string]func(t *testing.T, config, ca string){
		"the CA is right later": func(t *testing.T, _, ca string) { saveCA(t, ca, constrained(t, "other.example")) },
		"MeshConfig is right later": func(t *testing.T, config, _ string) {
			write(t, config, "mesh.yaml", meshOf("cluster.local"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cluster1")
			saveCA(t, dir, constrained(t, "cluster.local"))
			var config string
			s, stop, done := launch(t, func(c *Config) {
				c.CADir, config = dir, c.ConfigDir
				write(t, config, "mesh.yaml", meshOf("other.example"))
			})
			defer func() {
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}()
			waitFor(t, "a refusal", func() bool {
				code, text := page(t, s.http, "/ready")
				return code == http.StatusServiceUnavailable && strings.Contains(text, "does not fit the mesh")
			})
			repair(t, config, dir)
			waitFor(t, "readiness", func() bool { return s.ready.Load() })
		})
	}
}

// TestCAThatDoesNotFitAnyMoreSignsNothing: after a change of the trust domain the CA signs
// nothing, and all other functions go on.
func TestCAThatDoesNotFitAnyMoreSignsNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "cluster1")
	signer := constrained(t, "cluster.local")
	saveCA(t, dir, signer)
	var config string
	s := start(t, func(c *Config) {
		c.CADir, config = dir, c.ConfigDir
		write(t, config, "mesh.yaml", meshOf("cluster.local"))
	})
	w := workloadOf(t, signer)
	if _, err := w.ask(t, s); err != nil {
		t.Fatal(err)
	}
	aliased := strings.TrimSuffix(meshOf("other.example"), "\n") + "\n    trustDomainAliases: [cluster.local]\n"
	write(t, config, "mesh.yaml", aliased)
	waitFor(t, "the trust domain", func() bool { return s.fit.get() != nil })
	if _, err := w.ask(t, s); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "does not fit") {
		t.Errorf("error is %v", err)
	}
	if code, _ := page(t, s.http, "/ready"); code != http.StatusOK {
		t.Errorf("/ready answers %d", code)
	}
	waitFor(t, "a problem", func() bool {
		_, text := page(t, s.http, "/ready?verbose")
		return strings.Contains(text, "nothing is signed")
	})
	write(t, config, "mesh.yaml", meshOf("cluster.local"))
	waitFor(t, "the trust domain", func() bool { return s.fit.get() == nil })
	if _, err := w.ask(t, s); err != nil {
		t.Error(err)
	}
}
