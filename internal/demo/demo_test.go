package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
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

	free := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 0)
	gateway := endpoint{taken, "the gateway of cluster1", "traffic", false}
	if err := checkPorts(t.Context(), []endpoint{{free, "a test", "tests", false}}); err != nil {
		t.Errorf("a free port: %v", err)
	}
	err = checkPorts(t.Context(), []endpoint{gateway, {free, "a test", "tests", true}, gateway})
	want := taken.String() + " is in use, but the gateway of cluster1 needs it for traffic\n"
	if want = want + want + "see who"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	control := endpoint{taken, "the control plane of cluster1", "xDS", true}
	err = checkPorts(t.Context(), []endpoint{control, gateway, {free, "a test", "tests", false}})
	want = "another demo seems to run on this machine: stop it first (2 of 3 addresses are in use"
	if err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := checkPorts(ctx, []endpoint{gateway}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
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
		}, []string{"v1 answered 69 of 200 requests, want 70 to 130", "v2 answered 131"}},
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
		}, []string{"1 answer of v1 without the caller's identity"}},
		{"another identity", func(r *Result) {
			r.Tally.Answers[v2]--
			r.Tally.Answers[Answer{"v2", "cluster2", "spiffe://cluster.local/ns/a/sa/b"}] = 1
		}, []string{"1 answer of v2 to the caller spiffe://cluster.local/ns/a/sa/b"}},
		{
			"past the gateway", func(r *Result) { r.GatewayRequests = 101 },
			[]string{"the other cluster answered 102 times, but the client's Envoy counts 101 at the gateway 127.2.0.3:15443"},
		},
		{
			"an idle gateway", func(r *Result) { r.GatewayConnections, r.GatewayBytes = 0, 0 },
			[]string{"counts no connection", "counts no bytes"},
		},
		{"one request, to its own pod", func(r *Result) {
			r.Requests, r.Tally.Answers = 1, map[Answer]int{v1: 1}
			r.GatewayRequests, r.GatewayBytes = 0, 0
		}, nil},
		{"one request that failed", func(r *Result) {
			r.Requests, r.Tally.Answers, r.Tally.Failed = 1, nil, []error{errors.New("boom")}
			r.GatewayRequests, r.GatewayBytes = 0, 0
		}, []string{"1 of 1 request failed, the first: boom"}},
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

func TestFairAnswers(t *testing.T) {
	t.Parallel()
	for n, want := range map[int][2]int{
		1: {0, 1}, 2: {0, 2}, 18: {0, 18}, 19: {1, 18}, 20: {1, 19}, 100: {29, 71}, 200: {70, 130}, 201: {71, 130},
		1_000_000: {497_879, 502_121},
	} {
		if least, most := fairAnswers(n); least != want[0] || most != want[1] {
			t.Errorf("%d requests: %d to %d, want %v", n, least, most, want)
		}
	}
}

func TestShares(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ counts, want string }{
		{"[98 102]", "[49.0% 51.0%]"},
		{"[1]", "[100.0%]"},
		{"[1 1 1]", "[33.4% 33.3% 33.3%]"},
		{"[1 1999]", "[0.1% 99.9%]"},
		{"[1 2 4]", "[14.3% 28.6% 57.1%]"},
		{"[0 0]", "[- -]"},
		{"[]", "[]"},
	} {
		var counts []int
		for word := range strings.FieldsSeq(strings.Trim(test.counts, "[]")) {
			n, err := strconv.Atoi(word)
			if err != nil {
				t.Fatal(err)
			}
			counts = append(counts, n)
		}
		if got := fmt.Sprint(shares(counts)); got != test.want {
			t.Errorf("%s: got %s, want %s", test.counts, got, test.want)
		}
	}
}

func TestShowResults(t *testing.T) {
	t.Parallel()
	other := goodResult()
	other.Client, other.Tally.Failed = "cluster2", []error{errors.New("boom")}
	var out strings.Builder
	if err := showResults(&out, "http://helloworld.sample:5000/hello", []Result{goodResult(), other}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"200 requests from each client to http://helloworld.sample:5000/hello",
		"cluster1     v1          98          49.0%     local 127.1.0.11:5000\n",
		"cluster1     v2          102         51.0%     gateway 127.2.0.3:15443\n",
		"cluster2     none        1           0.5%      failed\n",
		"saw each of these requests come from\nspiffe://cluster.local/ns/sample/sa/client.\n",
		"CLIENT       TO ITS POD     TO GATEWAY     CONNECTIONS     BYTES\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in\n%s", want, out.String())
		}
	}
	fitsPage(t, out.String())

	other = goodResult()
	other.Client = "cluster2"
	other.Tally.Answers[Answer{Version: "v1", Cluster: "cluster1"}] = 1
	out.Reset()
	if err := showResults(&out, "", []Result{goodResult(), other}); err != nil {
		t.Fatal(err)
	}
	want := "cluster2  v1       1        unknown\ncluster2  v1       98       spiffe://cluster.local/ns/sample/sa/client\n"
	if !strings.Contains(out.String(), want) {
		t.Errorf("want %q in\n%s", want, out.String())
	}
	fitsPage(t, out.String())
}

// fitsPage fails when a line is longer than 80 columns.
func fitsPage(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("a line of %d columns: %s", n, line)
		}
	}
}

func TestLiveLine(t *testing.T) {
	t.Parallel()
	tallies := []Tally{{Answers: map[Answer]int{{Version: "v1"}: 4, {Version: "v2"}: 6}}, {}}
	clients := []*Client{{Cluster: "cluster1"}, {Cluster: "cluster2"}}
	const before = "cluster1:  4 v1,  6 v2   cluster2:  0 v1,  0 v2"
	if got := liveLine(clients, tallies); got != before {
		t.Errorf("got  %q\nwant %q", got, before)
	}
	for _, test := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("GET: %w", &statusError{"503 Service Unavailable"}), "503 Service Unavailable"},
		{fmt.Errorf("GET: %w", syscall.ECONNREFUSED), "connection refused"},
		{&url.Error{Op: "Get", Err: context.DeadlineExceeded}, "no answer in time"},
		{errors.New("a\nb"), `a\nb`},
	} {
		tallies[1].Failed = []error{errors.New("earlier"), test.err}
		if got, want := liveLine(clients, tallies), before+", 2 failed   ("+test.want+")"; got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

func TestFit(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		line    string
		columns int
		want    string
	}{
		{"abcdef", 0, "abcdef"},
		{"abcdef", 7, "abcdef"},
		{"abcdef", 6, "abcd…"},
		{"äöüäöü", 4, "äö…"},
		{"abcdef", 2, "…"},
		{"abcdef", 1, ""},
	} {
		if got := fit(test.line, test.columns); got != test.want {
			t.Errorf("%q in %d columns: got %q, want %q", test.line, test.columns, got, test.want)
		}
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	told := make(chan string)
	var calls atomic.Int32
	stop := watch(time.Millisecond, func() string {
		return fmt.Sprintf("%d ready", calls.Add(1)/10) // each text ten times
	}, func(text string) { told <- text })
	for _, want := range []string{"0 ready", "1 ready"} {
		if got := <-told; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	}
	go func() {
		for range told { // of what is told until the stop
		}
	}()
	stop()
	close(told)
}

func TestHostRequests(t *testing.T) {
	t.Parallel()
	const page = `other::127.0.0.1:1::rq_total::7
outbound|5000||helloworld.sample.svc.cluster.local::observability_name::outbound|5000||helloworld.sample.svc.cluster.local
outbound|5000||helloworld.sample.svc.cluster.local::127.1.0.11:5000::cx_total::3
outbound|5000||helloworld.sample.svc.cluster.local::127.1.0.11:5000::rq_total::98
outbound|5000||helloworld.sample.svc.cluster.local::127.2.0.3:15443::rq_total::0
`
	got, err := parseHostRequests([]byte(page), target().String())
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]uint64{"127.1.0.11:5000": 98, "127.2.0.3:15443": 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := parseHostRequests([]byte("a::b::rq_total::x"), "a"); err == nil {
		t.Error("a counter that is no number: no error")
	}
}

func TestPassed(t *testing.T) {
	t.Parallel()
	const page = `tcp.x.downstream_cx_total: 2
tcp.x.downstream_cx_rx_bytes_total: 100
tcp.x.downstream_cx_tx_bytes_total: 11
tcp.y.downstream_cx_total: 7
tcp.x.cx_length_ms: No recorded values
`
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
	var sent atomic.Int64
	tally := c.send(t.Context(), 10, &sent)
	c.http.CloseIdleConnections()
	if n := sent.Load(); n != 10 {
		t.Errorf("%d requests counted, want 10", n)
	}
	want := Tally{Answers: map[Answer]int{{Version: "v2", Cluster: "cluster2", Peer: clientIdentity().String()}: 10}}
	if diff := cmp.Diff(want, tally); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := a.close(); err != nil {
		t.Error(err)
	}
	if tally := c.send(t.Context(), 3, &sent); len(tally.Failed) != 3 {
		t.Errorf("%d of 3 requests to a closed application failed", len(tally.Failed))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if tally := c.send(ctx, 3, &sent); len(tally.Failed)+len(tally.Answers) != 0 {
		t.Errorf("requests were sent after the end of the context: %v", tally)
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

func TestCommandLine(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "meshctl")
	if err := os.WriteFile(program, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	m := &Mesh{opts: Options{Program: program}}
	args := []string{"pc", "endpoints", "--envoy-cluster", target().String()}
	const after = " pc endpoints --envoy-cluster 'outbound|5000||helloworld.sample.svc.cluster.local'"
	for path, want := range map[string]string{t.TempDir(): program, dir: "meshctl"} {
		t.Setenv("PATH", path)
		if got := m.commandLine(args...); got != want+after {
			t.Errorf("PATH=%s: got  %s\nwant %s", path, got, want+after)
		}
	}
}
