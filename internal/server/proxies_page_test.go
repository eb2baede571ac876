package server

import (
	"crypto/x509"
	"encoding/json"
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// proxiesPage returns the page xds/proxies.
func proxiesPage(t *testing.T, s *Server) (report proxystatus.Report) {
	t.Helper()
	_, body := get(t, s, "/debug/xds/proxies")
	if err := json.Unmarshal([]byte(body), &report); err != nil {
		t.Fatal(err)
	}
	return report
}

// TestProxiesPageHasRoots: the page shows the certificate of each proxy, and the roots
// that it accepted.
func TestProxiesPageHasRoots(t *testing.T) {
	s := start(t, func(c *Config) { write(t, c.ConfigDir, "a.yaml", serviceYAML(1)) })
	connect(t, s, "plain").subscribeAll(t)
	cfg := clientTLS(t, s)
	stream, err := dialSecure(t, s, cfg)
	if err != nil {
		t.Fatal(err)
	}
	root := certs.Fingerprint(s.ca.Current().Roots[0])
	signer := certs.Fingerprint(s.ca.Current().Cert)
	leaf, err := x509.ParseCertificate(cfg.Certificates[0].Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	page := proxiesPage(t, s)
	if len(page.Proxies) != 2 || page.Proxies[0].Certificate != nil || page.Proxies[0].Roots != nil {
		t.Fatalf("%+v", page)
	}
	c := page.Proxies[1].Certificate
	if c == nil || c.Issuer != signer || !slices.Equal(c.Roots, []string{root}) || c.Serial != leaf.SerialNumber.Text(16) || !c.From.Equal(leaf.NotBefore) || !c.Until.Equal(leaf.NotAfter) {
		t.Errorf("certificate %+v, want that of %v, signed by %s", c, leaf.SerialNumber, signer)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: xdswire.ProxyConfigType}); err != nil {
		t.Fatal(err)
	}
	r, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if got := proxiesPage(t, s).Proxies[1].Roots; got != nil {
		t.Errorf("roots %v before it accepted any", got)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce()}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "accepted roots", func() bool { return slices.Equal(proxiesPage(t, s).Proxies[1].Roots, []string{root}) })
}
