package server

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// assignment waits for the next assignment of a service's endpoints.
func (p *testProxy) assignment(t *testing.T) *endpointv3.ClusterLoadAssignment {
	t.Helper()
	r := p.next(t)
	if r.GetTypeUrl() != xdswire.EndpointType || len(r.GetResources()) != 1 {
		t.Fatalf("%d resources of %s, want one assignment", len(r.GetResources()), r.GetTypeUrl())
	}
	a := &endpointv3.ClusterLoadAssignment{}
	if err := r.GetResources()[0].GetResource().UnmarshalTo(a); err != nil {
		t.Fatal(err)
	}
	return a
}

func addresses(a *endpointv3.ClusterLoadAssignment) []string {
	var out []string
	for _, l := range a.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			out = append(out, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress())
		}
	}
	return out
}

// TestEndpoints: the endpoints of a service come and go, become none, and become many.
func TestEndpoints(t *testing.T) {
	t.Parallel()
	const slicesOfMany, many = 50, 1000
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
		write(t, dir, "service.yaml", serviceYAML(7))
		write(t, dir, "slice.yaml", sliceYAML(7, "10.1.0.1"))
	})
	name := "outbound|80||svc-7.ns-7.svc.cluster.local"
	join := func(pod string) (*testProxy, *endpointv3.ClusterLoadAssignment) {
		p := connect(t, s, pod)
		p.next(t)
		p.send(t, &discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.EndpointType, ResourceNamesSubscribe: []string{name}})
		return p, p.assignment(t)
	}
	p, a := join("first")
	if got := addresses(a); !slices.Equal(got, []string{"10.1.0.1"}) {
		t.Fatalf("endpoints %v", got)
	}
	for i := range 51 { // flip-flop
		write(t, dir, "slice.yaml", sliceYAML(7, fmt.Sprintf("10.1.0.%d", 2+i%2)))
	}
	write(t, dir, "slice.yaml", sliceYAML(7, "10.1.0.9", "10.1.0.4"))
	for got := addresses(a); !slices.Equal(got, []string{"10.1.0.4", "10.1.0.9"}); got = addresses(p.assignment(t)) {
		if len(got) != 1 {
			t.Fatalf("endpoints %v in between", got)
		}
	}
	write(t, dir, "slice.yaml", sliceYAML(7))
	if got := addresses(p.assignment(t)); len(got) != 0 {
		t.Errorf("endpoints %v, want none", got)
	}

	var want []string
	folder := filepath.Join(t.TempDir(), "many")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for i := range slicesOfMany {
		var part []string
		for j := range many {
			part = append(part, fmt.Sprintf("10.%d.%d.%d", 10+i, j/250, j%250+1))
		}
		want = append(want, part...)
		write(t, folder, fmt.Sprintf("%d.yaml", i), strings.ReplaceAll(sliceYAML(7, part...), "-abc", fmt.Sprint("-", i)))
	}
	if err := os.Rename(folder, filepath.Join(dir, "many")); err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	var got []string
	for len(got) < len(want) {
		got = addresses(p.assignment(t))
	}
	_, a = join("second")
	if again := addresses(a); !slices.Equal(got, again) {
		t.Error("another proxy is sent another order")
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%d endpoints that are not the %d of the service", len(got), len(want))
	}
}

// TestRemotesDown: the server starts although remote clusters cannot be read.
func TestRemotesDown(t *testing.T) {
	t.Parallel()
	away := filepath.Join(t.TempDir(), "not", "there")
	var own string
	s := start(t, func(c *Config) {
		own = c.ConfigDir
		write(t, own, "service.yaml", serviceYAML(1))
		c.RemoteDirs = []ClusterDir{{"cluster2", away}, {"cluster3", filepath.Join(own, "service.yaml")}}
		c.RemoteTimeout = 100 * time.Millisecond
	})
	if code, body := get(t, s, "/ready"); code != http.StatusOK {
		t.Errorf("/ready says %d %s", code, body)
	}
	_, body := get(t, s, "/ready?verbose")
	if want := regexp.MustCompile(`^ready\nsigning CA: .*, valid until \d.*\ncluster cluster1: read\ncluster cluster2: not read: .*\ncluster cluster3: not read: .*\n$`); !want.MatchString(body) {
		t.Errorf("/ready?verbose says %s, want %s", body, want)
	}
	m := metrics(t, s)
	for cluster, want := range map[string]float64{"cluster1": 1, "cluster2": 0, "cluster3": 0} {
		if got, ok := m[`meshctl_cluster_synced{cluster="`+cluster+`"}`]; !ok || got != want {
			t.Errorf("the metric of %s is %v, want %v", cluster, got, want)
		}
	}
	if _, body := get(t, s, "/debug/clusters"); strings.Count(body, `"Reason"`) != 4 {
		t.Errorf("the status of the clusters is %s", body)
	}
	p := connect(t, s, "p")
	if n := clustersOf(p.next(t)); n != 1 {
		t.Errorf("%d services, want that of the own cluster", n)
	}

	if err := os.MkdirAll(away, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, away, "service.yaml", serviceYAML(2))
	if n := clustersOf(p.next(t)); n != 1 {
		t.Errorf("%d services came with the remote cluster, want 1", n)
	}
	waitFor(t, "metric of the remote cluster", func() bool {
		return metrics(t, s)[`meshctl_cluster_synced{cluster="cluster2"}`] == 1
	})
}

func clustersOf(r *discoveryv3.DeltaDiscoveryResponse) int {
	n := 0
	for _, c := range r.GetResources() {
		if strings.HasPrefix(c.GetName(), "outbound|") {
			n++
		}
	}
	return n
}
