package server

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestTrustBundle: proxies of all kinds get the roots of the mesh and their changes: the CA's
// and those added by MeshConfig, but none of other trust domains.
func TestTrustBundle(t *testing.T) {
	var dir string
	s := start(t, func(c *Config) { dir = c.ConfigDir })
	pem := func(a *certs.Authority) string { return string(certs.EncodeCerts(a.Cert)) }
	own := string(certs.EncodeCerts(s.ca.Current().Roots...))
	added, federated := certstest.NewRoot(t), certstest.NewRoot(t)
	indent := func(text string) string {
		return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n        ") + "\n"
	}
	settings := `apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    caCertificates:
    - trustDomains: [b.example]
      pem: |
        ` + indent(pem(federated))

	bundle := func(c *wireClient) []string {
		messages := c.next()
		if len(messages) != 1 {
			t.Fatalf("%d resources, want 1", len(messages))
		}
		var m meshv1alpha1.ProxyConfig
		if err := proto.Unmarshal(messages[0], &m); err != nil {
			t.Fatal(err)
		}
		return m.GetCaCertificatesPem()
	}
	var clients []*wireClient
	for _, v := range []xdswire.Variant{xdswire.SotW, xdswire.Delta} {
		for _, node := range []string{"sidecar", "router"} {
			c := dialWire(t, s, true, v, node, xdswire.ProxyConfigType)
			if got := bundle(c); !slices.Equal(got, []string{own}) {
				t.Errorf("%v %s: %q, want the root of the CA", v, node, got)
			}
			clients = append(clients, c)
		}
	}
	write(t, dir, "mesh.yaml", settings)
	waitFor(t, "federation", func() bool { return s.trust.Foreign("b.example") })
	write(t, dir, "mesh.yaml", settings+"    - pem: |\n        "+indent(pem(added)))
	want := []string{own, pem(added)}
	slices.Sort(want)
	for _, c := range clients {
		if got := bundle(c); !slices.Equal(got, want) {
			t.Errorf("%q, want the root of the CA and the added one", got)
		}
	}
}
