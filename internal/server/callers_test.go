package server

import (
	"crypto/rand"
	"crypto/x509"
	"path/filepath"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/mesh"
)

// TestIssuerCluster: a leaf without a cluster belongs to the cluster whose intermediate
// signed it, and to none if a root did.
func TestIssuerCluster(t *testing.T) {
	spec := certs.CASpec{Algorithm: certs.ECDSAP256, Organization: "x", CommonName: "ca", TTL: time.Hour}
	root, err := certs.NewRoot(spec, time.Now(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	intermediate := func(c mesh.ClusterID) *certs.Authority {
		a, err := root.NewIntermediate(c, spec, time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	own, other, stranger := intermediate("cluster1"), intermediate("cluster2"), intermediate("cluster3")
	dir := t.TempDir()
	if _, err := store.SaveIntermediates(dir, []store.Intermediate{{Cluster: "cluster1", Authority: own}}, false); err != nil {
		t.Fatal(err)
	}
	s := start(t, func(c *Config) {
		c.CADir = filepath.Join(dir, "cluster1")
		c.RemoteDirs = []ClusterDir{{"cluster2", t.TempDir()}}
	})
	for _, tc := range []struct {
		name string
		ca   *x509.Certificate
		want mesh.ClusterID
	}{
		{"our intermediate", own.Cert, "cluster1"},
		{"that of a known cluster", other.Cert, "cluster2"},
		{"that of an unknown cluster", stranger.Cert, ""},
		{"the root", root.Cert, ""},
	} {
		if got := s.issuerCluster(tc.ca); got != tc.want {
			t.Errorf("%s: bound to %q, want %q", tc.name, got, tc.want)
		}
	}
}

func TestConfigIsChecked(t *testing.T) {
	good := func() Config {
		return Config{ClusterID: "c1", ConfigDir: "a", StateDir: "state", SecureGRPCAddr: ":15012"}
	}
	for _, tc := range []struct {
		name   string
		change func(*Config)
		ok     bool
	}{
		{"good", func(*Config) {}, true},
		{"Istio's default cluster id", func(c *Config) { c.ClusterID = "Kubernetes" }, true},
		{"no directory", func(c *Config) { c.ConfigDir = "" }, false},
		{"cluster id", func(c *Config) { c.ClusterID = "a/b" }, false},
		{"remote is the own cluster", func(c *Config) { c.RemoteDirs = []ClusterDir{{"c1", "b"}} }, false},
		{"remote twice", func(c *Config) { c.RemoteDirs = []ClusterDir{{"c2", "b"}, {"c2", "d"}} }, false},
		{"token issuer of a stranger", func(c *Config) { c.TokenIssuers = []ClusterDir{{"c9", "b"}} }, false},
		{"nothing to connect to", func(c *Config) { c.SecureGRPCAddr = "" }, false},
		{"network", func(c *Config) { c.Network = "a b" }, false},
		{"trust domain", func(c *Config) { c.TrustDomain = "Not Good" }, false},
		{"state within the configuration", func(c *Config) { c.StateDir = "a/state" }, false},
		{"state is the configuration", func(c *Config) { c.StateDir = "a" }, false},
		{"state within a remote's", func(c *Config) { c.RemoteDirs = []ClusterDir{{"c2", "b"}}; c.StateDir = "b/x" }, false},
		{"state beside", func(c *Config) { c.StateDir = "ab" }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := good()
			tc.change(&c)
			err := c.Validate()
			if err == nil {
				err = c.ValidateStateDir()
			}
			if (err == nil) != tc.ok {
				t.Errorf("got %v", err)
			}
		})
	}
}
