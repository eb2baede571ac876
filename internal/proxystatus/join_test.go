package proxystatus

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestJoin: the streams of an Envoy and its agent become one row, others do not.
func TestJoin(t *testing.T) {
	t.Parallel()
	types := func(urls ...string) (out []Type) {
		for _, url := range urls {
			out = append(out, typ(url, Synced, 100, 101))
		}
		return out
	}
	envoy := []string{xdswire.ClusterType, xdswire.ListenerType}
	reports := []Report{
		{Replica: "a", Proxies: []Proxy{
			{Name: "vm.apps", Cluster: "c1", Stream: "vm.apps-1", Connected: at(1), Roots: []string{"r"}, Types: types(xdswire.ProxyConfigType)},
			{Name: "vm.apps", Cluster: "c1", Stream: "vm.apps-2", Connected: at(2), Envoy: "1.40.0", Types: types(envoy...)},
			{Name: "vm.apps", Cluster: "c1", Stream: "vm.apps-3", Connected: at(3)},
			{Name: "again.apps", Cluster: "c1", Stream: "again.apps-4", Connected: at(4), Types: types(envoy...)},
			{Name: "again.apps", Cluster: "c1", Stream: "again.apps-5", Connected: at(5), Types: types(envoy...)},
			{Name: "twin.apps", Cluster: "c1", Stream: "twin.apps-6", Connected: at(6), Types: types(xdswire.ClusterType)},
			{Name: "twin.apps", Cluster: "c2", Stream: "twin.apps-7", Connected: at(7), Types: types(xdswire.ListenerType)},
			{Name: "forged.apps", Cluster: "c1", Stream: "forged.apps-8", Identity: "spiffe://x/ns/apps/sa/a", Types: types(xdswire.ClusterType)},
			{Name: "forged.apps", Cluster: "c1", Stream: "forged.apps-9", Identity: "spiffe://x/ns/apps/sa/b", Types: types(xdswire.ListenerType)},
		}},
		{Replica: "b", Proxies: []Proxy{{Name: "vm.apps", Cluster: "c1", Stream: "vm.apps-1", Types: types(xdswire.EndpointType)}}},
		{Replica: "c", Error: "no answer"},
	}
	var got []string
	for _, r := range Join(reports) {
		for _, p := range r.Proxies {
			text := r.Replica + " " + p.Stream
			for _, name := range p.subscribed() {
				text += " " + name
			}
			got = append(got, text+" "+p.Envoy)
		}
	}
	want := []string{
		"a again.apps-4 CDS LDS ", "a again.apps-5 CDS LDS ", "a forged.apps-8 CDS ", "a forged.apps-9 LDS ",
		"a twin.apps-6 CDS ", "a twin.apps-7 LDS ", "a vm.apps-2 CDS LDS PCDS 1.40.0", "b vm.apps-1 EDS ",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if len(reports[0].Proxies) != 9 || len(reports[0].Proxies[1].Types) != 2 {
		t.Error("the reports were changed")
	}
}
