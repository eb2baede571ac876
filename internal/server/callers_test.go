package server

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

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

// TestClusterOfAnotherCA: the intermediate of another cluster cannot prove that a workload is of this
// cluster, whose keys and WorkloadEntries it would have.
func TestClusterOfAnotherCA(t *testing.T) {
	spec := certs.CASpec{Algorithm: certs.ECDSAP256, Organization: "x", CommonName: "ca", TTL: time.Hour}
	made := func(a *certs.Authority, err error) *certs.Authority {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	root := made(certs.NewRoot(spec, time.Now(), rand.Reader))
	intermediate := func(c mesh.ClusterID) *certs.Authority {
		return made(root.NewIntermediate(c, spec, time.Now(), rand.Reader))
	}
	own, before, other, stranger := intermediate("cluster1"), intermediate("cluster1"), intermediate("cluster2"), intermediate("cluster3")
	dir := t.TempDir()
	if _, err := store.SaveIntermediates(dir, []store.Intermediate{{Cluster: "cluster1", Authority: own}}, false); err != nil {
		t.Fatal(err)
	}
	s := start(t, func(c *Config) {
		c.CADir = filepath.Join(dir, "cluster1")
		c.RemoteDirs = []ClusterDir{{"cluster2", t.TempDir()}}
	})
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name        string
		ca          *certs.Authority
		named, want mesh.ClusterID
	}{
		{"ours", own, "cluster1", "cluster1"},
		{"ours, for a cluster without a control plane", own, "cluster4", "cluster4"},
		{"our earlier one", before, "cluster1", "cluster1"},
		{"the root", root, "cluster1", "cluster1"},
		{"of another cluster", other, "cluster1", ""},
		{"of a cluster that is not known", stranger, "cluster1", ""},
		{"of another cluster, for itself", other, "cluster2", "cluster2"},
		{"of another cluster, for a cluster without a control plane", other, "cluster4", "cluster4"},
	} {
		who := mesh.Caller{Identity: mesh.Identity{TrustDomain: "cluster.local", Namespace: "apps", ServiceAccount: "gateway"}, Cluster: tc.named}
		leaf, err := tc.ca.SignLeaf(key.Public(), who, time.Hour, time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		state := tls.ConnectionState{HandshakeComplete: true, PeerCertificates: append([]*x509.Certificate{leaf}, tc.ca.Chain...)}
		got, err := s.authenticate(peer.NewContext(t.Context(), &peer.Peer{AuthInfo: credentials.TLSInfo{State: state}}))
		if who.Cluster = tc.want; err != nil || got != who {
			t.Errorf("%s: %+v, %v, want %+v", tc.name, got, err, who)
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
