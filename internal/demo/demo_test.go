package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/mesh"
)

func TestAddressesAreUnique(t *testing.T) {
	t.Parallel()
	seen := map[netip.AddrPort]string{}
	for _, c := range newClusters() {
		for _, e := range c.endpoints() {
			if other, ok := seen[e.addr]; ok {
				t.Errorf("%s is for %s and for %s", e.addr, other, e.who)
			}
			seen[e.addr] = e.who
		}
	}
	if want := 2 * (4 + 3*5); len(seen) != want {
		t.Errorf("%d addresses, want %d", len(seen), want)
	}
}

func TestCheckPorts(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).AddrPort()

	err = checkPorts(t.Context(), []endpoint{{taken, "the gateway of cluster1, for traffic"}})
	want := taken.String() + " is in use, but the gateway of cluster1, for traffic needs it"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	free := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 0)
	if err := checkPorts(t.Context(), []endpoint{{free, "a test"}}); err != nil {
		t.Errorf("a free port: %v", err)
	}
}

func TestPeerURI(t *testing.T) {
	t.Parallel()
	const id = "spiffe://cluster.local/ns/sample/sa/client"
	tests := []struct{ name, header, want string }{
		{"none", "", ""},
		{"Envoy's", `By=spiffe://cluster.local/ns/sample/sa/helloworld;Hash=ab12;Subject="";URI=` + id, id},
		{"the last hop counts", "URI=spiffe://cluster.local/ns/evil/sa/evil,By=x;URI=" + id, id},
		{"a subject with separators", `Subject="CN=a,O=b;URI=spiffe://evil/ns/a/sa/b";URI=` + id, id},
		{"a subject with an escaped quote", `Subject="a\",URI=evil";URI=` + id, id},
		{"an open quote", `Subject="a;URI=` + id, ""},
		{"the last hop without an id", "URI=" + id + ",By=x", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := peerURI(test.header); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func FuzzPeerURI(f *testing.F) {
	f.Add(`By=a;Subject="b,c";URI=spiffe://d/ns/e/sa/f`)
	f.Add(`"\`)
	f.Fuzz(func(t *testing.T, header string) {
		if uri := peerURI(header); !strings.Contains(header, uri) {
			t.Errorf("%q is not in %q", uri, header)
		}
	})
}

// goodResult is what a client of a mesh that works sees.
func goodResult() Result {
	peer := clientIdentity().String()
	return Result{
		Client:   "cluster1",
		Requests: 200,
		Tally: Tally{Answers: map[Answer]int{
			{Version: "v1", Cluster: "cluster1", Peer: peer}: 98,
			{Version: "v2", Cluster: "cluster2", Peer: peer}: 102,
		}},
		Local:         netip.MustParseAddrPort("127.1.0.11:5000"),
		Gateway:       netip.MustParseAddrPort("127.2.0.3:15443"),
		LocalRequests: 98, GatewayRequests: 102,
		GatewayConnections: 1, GatewayBytes: 4096,
	}
}

func TestProblems(t *testing.T) {
	t.Parallel()
	peer := clientIdentity().String()
	v1, v2 := Answer{"v1", "cluster1", peer}, Answer{"v2", "cluster2", peer}
	tests := []struct {
		name   string
		change func(*Result)
		want   []string // parts of the problems, in order
	}{
		{"none", func(*Result) {}, nil},
		{"the widest share", func(r *Result) {
			r.Tally.Answers, r.GatewayRequests = map[Answer]int{v1: 70, v2: 130}, 130
		}, nil},
		{"just over it", func(r *Result) {
			r.Tally.Answers, r.GatewayRequests = map[Answer]int{v1: 69, v2: 131}, 131
		}, []string{"v1 answered 69 of 200 requests, want 35% to 65%", "v2 answered 131"}},
		{"one version only", func(r *Result) {
			r.Tally.Answers, r.GatewayRequests = map[Answer]int{v1: 200}, 0
		}, []string{"v1 answered 200", "v2 answered 0"}},
		{"a failed request", func(r *Result) {
			r.Tally.Answers[v1]--
			r.Tally.Failed = []error{errors.New("boom")}
		}, []string{"1 of 200 requests failed, the first: boom"}},
		{"no identity", func(r *Result) {
			r.Tally.Answers[v1]--
			r.Tally.Answers[Answer{"v1", "cluster1", ""}] = 1
		}, []string{"1 answers of v1 carry no identity"}},
		{"another identity", func(r *Result) {
			r.Tally.Answers[v2]--
			r.Tally.Answers[Answer{"v2", "cluster2", "spiffe://cluster.local/ns/a/sa/b"}] = 1
		}, []string{"1 answers of v2 name the caller spiffe://cluster.local/ns/a/sa/b"}},
		{
			"past the gateway", func(r *Result) { r.GatewayRequests = 101 },
			[]string{"102 answers came from the other cluster, but its Envoy sent 101 requests to the gateway 127.2.0.3:15443"},
		},
		{
			"an idle gateway", func(r *Result) { r.GatewayConnections, r.GatewayBytes = 0, 0 },
			[]string{"counts no connection", "counts no bytes"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := goodResult()
			test.change(&r)
			got := r.Problems()
			if len(got) != len(test.want) {
				t.Fatalf("problems %v, want %d", got, len(test.want))
			}
			for i, want := range test.want {
				if !strings.Contains(got[i].Error(), want) {
					t.Errorf("problem %q, want %q in it", got[i], want)
				}
			}
		})
	}
}

func TestShowResults(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if err := showResults(&out, "http://helloworld.sample:5000/hello", []Result{goodResult()}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"200 requests from each client to http://helloworld.sample:5000/hello",
		"cluster1     v1          98          49.0%     local 127.1.0.11:5000       spiffe://cluster.local/ns/sample/sa/client\n",
		"cluster1     v2          102         51.0%     gateway 127.2.0.3:15443     spiffe://cluster.local/ns/sample/sa/client\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in\n%s", want, out.String())
		}
	}
}

func TestLiveLine(t *testing.T) {
	t.Parallel()
	tallies := newTallies(2)
	tallies[0].Answers[Answer{Version: "v1"}] = 4
	tallies[0].Answers[Answer{Version: "v2"}] = 6
	tallies[1].Failed = []error{errors.New("boom")}
	got := liveLine([]mesh.ClusterID{"cluster1", "cluster2"}, tallies)
	want := "cluster1:  4 v1,  6 v2   cluster2:  0 v1,  0 v2, 1 failed (boom)"
	if got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestHostRequests(t *testing.T) {
	t.Parallel()
	const page = `{"cluster_statuses": [
	  {"name": "other", "host_statuses": [{"address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}}}]},
	  {"name": "outbound|5000||helloworld.sample.svc.cluster.local", "host_statuses": [
	    {"address": {"socket_address": {"address": "127.1.0.11", "port_value": 5000}},
	     "stats": [{"name": "cx_total", "value": "3"}, {"name": "rq_total", "value": "98"}]},
	    {"address": {"socket_address": {"address": "127.2.0.3", "port_value": 15443}}, "stats": [{"name": "rq_total"}]}]}]}`
	got, err := parseHostRequests([]byte(page), target().String())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]uint64{"127.1.0.11:5000": 98, "127.2.0.3:15443": 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := parseHostRequests([]byte("<html>"), ""); err == nil {
		t.Error("a page that is not JSON: no error")
	}
}

func TestPassed(t *testing.T) {
	t.Parallel()
	const page = `{"stats": [
	  {"name": "tcp.x.downstream_cx_total", "value": 2},
	  {"name": "tcp.x.downstream_cx_rx_bytes_total", "value": 100},
	  {"name": "tcp.x.downstream_cx_tx_bytes_total", "value": 11},
	  {"name": "tcp.y.downstream_cx_total", "value": 7},
	  {"histograms": {}}]}`
	got, err := parsePassed([]byte(page), "tcp.x.")
	if err != nil {
		t.Fatal(err)
	}
	if want := (passed{connections: 2, bytes: 111}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestEnvoyVersion(t *testing.T) {
	t.Parallel()
	for out, want := range map[string]string{
		"envoy  version: 0123abc/1.40.0/Clean/RELEASE/BoringSSL":    "1.40.0",
		"envoy  version: 0123abc/1.36.0-dev/Clean/RELEASE/OpenSSL":  "1.36.0-dev",
		"envoy  version: 0123abc/2.0.1/Modified/RELEASE/BoringSSL":  "2.0.1",
		"envoy  version: 0123abc/1.35.9/Clean/RELEASE/BoringSSL":    "",
		"envoy, an electronic message standard for the 90s, v0.1\n": "",
	} {
		got, err := checkEnvoyVersion(out)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v; want %q", out, got, err, want)
		}
	}
}

// envoys stands in for the Envoys between a client and an application.
type envoys struct{ http.Transport }

func (e *envoys) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set(headerXFCC, "By=x;URI="+clientIdentity().String())
	return e.Transport.RoundTrip(r)
}

func TestApp(t *testing.T) {
	t.Parallel()
	a, err := startApp(newCluster(2))
	if err != nil {
		t.Fatal(err)
	}
	c := &Client{Cluster: "cluster1", url: "http://" + a.addr + "/hello", http: &http.Client{Transport: &envoys{}}}
	tally := c.send(t.Context(), 10)
	c.http.CloseIdleConnections()
	want := Tally{Answers: map[Answer]int{{Version: "v2", Cluster: "cluster2", Peer: clientIdentity().String()}: 10}}
	if diff := cmp.Diff(want, tally); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := a.close(); err != nil {
		t.Error(err)
	}
	if tally := c.send(t.Context(), 3); len(tally.Failed) != 3 {
		t.Errorf("%d of 3 requests to a closed application failed", len(tally.Failed))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if tally := c.send(ctx, 3); len(tally.Failed)+len(tally.Answers) != 0 {
		t.Errorf("requests were sent after the end of the context: %v", tally)
	}
}

func TestLastWords(t *testing.T) {
	t.Parallel()
	for log, want := range map[string]string{
		"":                       "",
		"one\n\ntwo\n\n":         "two",
		"Error: no\nbye\n":       "Error: no",
		"a\n" + "level=ERROR b":  "level=ERROR b",
		strings.Repeat("a", 600): strings.Repeat("a", 500) + "…",
		strings.Repeat("line\n", 100_000) + "end\n": "end",
	} {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastWords(path); got != want {
			t.Errorf("log of %d bytes: got %q, want %q", len(log), got, want)
		}
	}
}

func TestQuote(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":               "''",
		"127.1.0.1:1500": "127.1.0.1:1500",
		"outbound|1||a":  "'outbound|1||a'",
		"it's":           `'it'\''s'`,
	} {
		if got := quote(in); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
}

func TestDirMustBeEmpty(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m := &Mesh{opts: Options{Dir: dir}}
	if err := m.makeDirs(); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("error %v, want one about a directory that is not empty", err)
	}
}

func ExampleMesh_commandLine() {
	m := &Mesh{opts: Options{Program: "/usr/bin/meshctl"}}
	fmt.Println(m.commandLine("pc", "endpoints", "--cluster", target().String()))
	// Output: /usr/bin/meshctl pc endpoints --cluster 'outbound|5000||helloworld.sample.svc.cluster.local'
}
