package proxystatus

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/xdswire"
)

var update = flag.Bool("update", false, "rewrite golden files")

func at(seconds int) time.Time { return time.Unix(1_700_000_000+int64(seconds), 0).UTC() }

func typ(url string, s State, sent, answered int) Type {
	t := Type{Type: ShortType(url), URL: url, State: s}
	if sent != 0 {
		t.Sent, t.SentAt = "a1", at(sent)
	}
	if answered != 0 {
		t.Acked, t.AnsweredAt = "a1", at(answered)
	}
	return t
}

// sample has a proxy that moves between replicas, one that refused a response, one that
// does not answer, and one that asks for nothing.
func sample() []Report {
	all := func(sent, answered int) []Type {
		return []Type{
			typ(xdswire.RouteType, Synced, sent, answered), typ(xdswire.EndpointType, Synced, sent, answered),
			typ(xdswire.ClusterType, Synced, sent, answered), typ(xdswire.ListenerType, Synced, sent, answered),
		}
	}
	refused := all(100, 101)
	refused[3].State, refused[3].Error, refused[3].Refused = Error, "Error adding/updating listener(s) 0.0.0.0_80: no filter chains", []string{"0.0.0.0_80"}
	slow := append(all(100, 101), typ(xdswire.SecretType, NotSent, 0, 0), typ("type.googleapis.com/istio.mesh.v1alpha1.ProxyConfig", Stale, 5000, 0))
	slow[1].State, slow[1].SentAt, slow[1].Lag = Stale, at(4960), Lag(40*time.Second)
	slow[5].Lag = Lag(500 * time.Millisecond)
	reports := []Report{
		{Replica: "istiod-a", At: at(5000), Proxies: []Proxy{
			{Name: "web-1.apps", Namespace: "apps", Stream: "web-1.apps-7", Cluster: "cluster1", Network: "network1", Kind: "sidecar", Version: "1.31.0", Envoy: "1.40.0", Identity: "spiffe://cluster.local/ns/apps/sa/web", Connected: at(100), Types: all(100, 101)},
			{Name: "gw-1.istio-system", Namespace: "istio-system", Stream: "gw-1.istio-system-2", Cluster: "cluster1", Kind: "router", Connected: at(-400_000), Types: refused},
		}},
		{Replica: "istiod-b", At: at(5000), Proxies: []Proxy{
			{Name: "web-1.apps", Namespace: "apps", Stream: "web-1.apps-1", Cluster: "cluster1", Network: "network1", Kind: "sidecar", Version: "1.31.0", Connected: at(4000), Types: all(4000, 4001)},
			{Name: "slow.apps", Namespace: "apps", Stream: "slow.apps-3", Cluster: "cluster2", Network: "network2", Kind: "sidecar", Connected: at(100), Types: slow},
			{Name: "idle.apps", Namespace: "apps", Stream: "idle.apps-4", Cluster: "cluster2", Connected: at(4999)},
		}},
	}
	for i := range reports {
		reports[i].Sort()
	}
	return reports
}

func TestTables(t *testing.T) {
	t.Parallel()
	for name, table := range map[string]func([]Report) *output.Table{"table": Table, "types": TypesTable, "wide": WideTable} {
		var got bytes.Buffer
		if err := table(sample()).Write(&got); err != nil {
			t.Fatal(err)
		}
		golden(t, name+".txt", got.Bytes())
	}
	var got bytes.Buffer
	if err := output.Write(&got, output.FormatJSON, sample()); err != nil {
		t.Fatal(err)
	}
	golden(t, "reports.json", got.Bytes())
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s (-update rewrites it):\n%s\nwant\n%s", name, got, want)
	}
}

func TestWrong(t *testing.T) {
	t.Parallel()
	reports := sample()
	reports = append(reports, Report{Replica: "istiod-c", Error: "no answer"})
	var got []string
	for i := range reports {
		got = append(got, reports[i].Wrong(30*time.Second)...)
	}
	want := []string{
		"gw-1.istio-system at istiod-a: LDS: Error adding/updating listener(s) 0.0.0.0_80: no filter chains",
		"slow.apps at istiod-b: EDS: no answer for 40s",
		"istiod-c: no answer",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if wrong := reports[1].Wrong(time.Minute); len(wrong) != 0 {
		t.Errorf("with a longer bound: %v", wrong)
	}
}

func TestShort(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0s", 1500 * time.Microsecond: "1ms", 3 * time.Minute: "3m", 61500 * time.Millisecond: "1m1s",
		11*time.Minute + 30*time.Second: "11m", 3*time.Hour + 5*time.Second: "3h", 50 * time.Hour: "50h", 300 * time.Hour: "12d",
	} {
		if got := short(d); got != want {
			t.Errorf("%v is %q, want %q", d, got, want)
		}
	}
}
