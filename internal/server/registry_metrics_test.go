package server

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// computed returns how often the registry computed values of tables since an earlier result,
// by table. Tables without any are missing.
func computed(t *testing.T, s *Server, before map[string]float64) map[string]float64 {
	t.Helper()
	out := make(map[string]float64)
	for name, n := range metrics(t, s) {
		table, ok := strings.CutPrefix(name, `meshctl_registry_computed_total{table="`)
		if table = strings.TrimSuffix(table, `"}`); ok && n > before[table] {
			out[table] = n - before[table]
		}
	}
	return out
}

// TestNewClusterComputesItsHosts: the objects of a new cluster, which arrive at once, compute
// and generate only the services that it has.
func TestNewClusterComputesItsHosts(t *testing.T) {
	const services = 20
	remote, root := t.TempDir(), t.TempDir()
	s := start(t, func(c *Config) {
		c.RemoteDirs = []ClusterDir{{Cluster: "remote", Dir: remote}}
		for i := range services {
			write(t, c.ConfigDir, fmt.Sprintf("service-%d.yaml", i), serviceYAML(i))
			write(t, c.ConfigDir, fmt.Sprintf("slice-%d.yaml", i), sliceYAML(i, "10.1.0.1"))
		}
	})
	p := connect(t, s, "p")
	p.subscribeAll(t)
	counted, made := computed(t, s, nil), generated(t, s, nil)

	added := filepath.Join(root, "added")
	if err := os.Mkdir(added, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, added, "namespace.yaml", "{apiVersion: v1, kind: Namespace, metadata: {name: ns-7, labels: {another: label}}}")
	for _, i := range []int{7, 8} {
		write(t, added, fmt.Sprintf("service-%d.yaml", i), serviceYAML(i))
		write(t, added, fmt.Sprintf("slice-%d.yaml", i), sliceYAML(i, "10.2.0.1"))
	}
	if err := os.Rename(added, filepath.Join(remote, "added")); err != nil {
		t.Fatal(err)
	}
	if r := p.next(t); r.GetTypeUrl() != xdswire.EndpointType || len(r.GetResources()) != 2 {
		t.Errorf("sent %d resources of %s, want two assignments", len(r.GetResources()), r.GetTypeUrl())
	}
	got := computed(t, s, counted)
	for table, want := range map[string]float64{"endpoints": 2, "services": 2} {
		if got[table] != want {
			t.Errorf("%s were computed %v times, want %v, one for each service of the cluster: %v", table, got[table], want, got)
		}
	}
	if got := generated(t, s, made); !maps.Equal(got, map[string]float64{"CDS": 2, "EDS": 2, "LDS": 1, "RDS": 1}) {
		t.Errorf("generated %v, want the resources of two services and of their port", got)
	}
}
