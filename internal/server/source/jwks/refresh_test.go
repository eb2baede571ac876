package jwks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/keyset"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/test/harness"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// web is a web that tests change: documents by URL. A URL without one fails.
type web struct {
	mu        sync.Mutex
	documents map[string]string
	asked     map[string]int
	slow      map[string]bool // never answers
}

func (w *web) set(url, document string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.documents[url] = document
}

func (w *web) count(url string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[url]
}

func (w *web) get(ctx context.Context, url string) ([]byte, error) {
	w.mu.Lock()
	doc, slow := w.documents[url], w.slow[url]
	w.asked[url]++
	w.mu.Unlock()
	if slow {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if doc == "" {
		return nil, errors.New("no answer")
	}
	return []byte(doc), nil
}

// set returns a key set of the curve P-256.
func set(kid string) string { return strings.ReplaceAll(keyset.Nobodys, "nobody", kid) }

func wanted(urls ...string) []snapshot.WantedKeys { return wantedOf("default", urls...) }

func wantedOf(namespace string, urls ...string) []snapshot.WantedKeys {
	var out []snapshot.WantedKeys
	for _, url := range urls {
		out = append(out, snapshot.WantedKeys{KeySource: snapshot.KeySource{URL: url}, Namespace: namespace, Timeout: patience})
	}
	return out
}

// start runs a Fetcher. next waits for published key sets.
func start(t *testing.T, get func(context.Context, string) ([]byte, error), want []snapshot.WantedKeys) (f *Fetcher, next func() map[snapshot.KeySource]string, log *harness.LogBuffer) {
	t.Helper()
	return startIn(t, "", get, want)
}

// startIn is start with a directory for fetched keys.
func startIn(t *testing.T, dir string, get func(context.Context, string) ([]byte, error), want []snapshot.WantedKeys) (f *Fetcher, next func() map[snapshot.KeySource]string, log *harness.LogBuffer) {
	t.Helper()
	published := make(chan map[snapshot.KeySource]string, 1000)
	log = &harness.LogBuffer{}
	f = New(Config{
		Dir: dir, Get: get, Publish: func(m map[snapshot.KeySource]string) { published <- m }, Fetched: func(bool) {},
		Log: slog.New(slog.NewTextHandler(log, nil)), Every: 10 * time.Millisecond, Jitter: func(d time.Duration) time.Duration { return d / 2 }, Now: time.Now,
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	f.Want(want)
	return f, func() map[snapshot.KeySource]string {
		t.Helper()
		select {
		case got := <-published:
			return got
		case <-time.After(patience):
			t.Fatalf("nothing is published; the log:\n%s", log)
			return nil
		}
	}, log
}

// TestFetch: key sets are published together, and again when one changes. If a fetch fails,
// the last keys stay. A key set that is not wanted any more is forgotten.
func TestFetch(t *testing.T) {
	t.Parallel()
	w := &web{documents: map[string]string{"a": set("1"), "b": set("1")}, asked: map[string]int{}}
	f, next, log := start(t, w.get, wanted("a", "b", "missing"))
	a, b := snapshot.KeySource{URL: "a"}, snapshot.KeySource{URL: "b"}
	if got := next(); len(got) != 2 || got[a] != set("1") || got[b] != set("1") {
		t.Fatalf("published first: %v", got)
	}
	w.set("a", set("2"))
	if got := next(); got[a] != set("2") || got[b] != set("1") {
		t.Fatalf("published after a change: %v", got)
	}
	w.set("b", "")
	harness.Eventually(t, patience, "the failure is reported", func() error {
		for _, st := range f.Status() {
			if st.Source == "b" && st.Problem != "" && st.Keys == 1 {
				return nil
			}
		}
		return fmt.Errorf("%+v", f.Status())
	})
	for before := w.count("b"); w.count("b") < before+3; {
		time.Sleep(time.Millisecond)
	}
	w.set("a", set("3"))
	if got := next(); got[a] != set("3") || got[b] != set("1") {
		t.Fatalf("published after a failure: %v", got)
	}
	if n := strings.Count(log.String(), "its last keys stay"); n != 1 {
		t.Errorf("the failure is logged %d times:\n%s", n, log)
	}
	f.Want(wanted("a"))
	if got := next(); len(got) != 1 || got[a] != set("3") {
		t.Fatalf("published after b is not wanted: %v", got)
	}
}

// TestSlowServers: servers of a namespace that do not answer delay neither the first key sets of
// another namespace, nor their changes, even if they are more than fetches run at a time, and if the
// namespace needs these key sets, too.
func TestSlowServers(t *testing.T) {
	t.Parallel()
	w := &web{documents: map[string]string{"z": set("1")}, asked: map[string]int{}, slow: map[string]bool{}}
	var urls []string
	for i := range 100 {
		url := fmt.Sprintf("http://%d.example.com/slow", i)
		w.slow[url] = true
		urls = append(urls, url)
	}
	_, next, _ := start(t, w.get, append(wantedOf("slow", append(urls, "z")...), wantedOf("good", "z")...))
	a := snapshot.KeySource{URL: "z"}
	if got := next(); len(got) != 1 || got[a] != set("1") {
		t.Fatalf("published first: %v", got)
	}
	w.set("z", set("2"))
	if got := next(); got[a] != set("2") {
		t.Fatalf("published after a change: %v", got)
	}
}

// TestTurns: fetches of namespaces and hosts take turns, sources that failed come last, and every
// fetch that ends leaves its room.
func TestTurns(t *testing.T) {
	t.Parallel()
	entryOf := func(host string, failures int, namespaces ...string) *entry {
		return &entry{host: host, failures: failures, namespaces: namespaces}
	}
	many := func(n int, made func(int) *entry) (out []*entry) {
		for i := range n {
			out = append(out, made(i))
		}
		return out
	}
	for name, tc := range map[string]struct {
		due  []*entry
		want []int // the first that start
		most int
	}{
		"one namespace": {many(100, func(i int) *entry { return entryOf(fmt.Sprint(i), 0, "a") }), []int{0, 1, 2, 3}, atOnceNamespace},
		"one host":      {many(100, func(i int) *entry { return entryOf("h", 0, fmt.Sprint(i)) }), []int{0, 1, 2, 3}, atOnceHost},
		"failed":        {many(100, func(i int) *entry { return entryOf(fmt.Sprint(i), 1, fmt.Sprint(i)) }), []int{0, 1}, atOnceFailed},
		"all":           {many(100, func(i int) *entry { return entryOf(fmt.Sprint(i), 0, fmt.Sprint(i)) }), []int{0, 1}, atOnce},
		"failed last":   {[]*entry{entryOf("1", 1, "a"), entryOf("2", 0, "a"), entryOf("3", 9, "b"), entryOf("4", 0, "b")}, []int{1, 3, 0, 2}, 4},
		"turns":         {append(many(10, func(i int) *entry { return entryOf(fmt.Sprint(i), 0, "a") }), entryOf("x", 0, "b"), entryOf("y", 3, "a", "c")), []int{0, 10, 11, 1, 2}, 5},
	} {
		l := newLoad()
		var started []int
		for e := l.choose(tc.due); e != nil; e = l.choose(tc.due) {
			started = append(started, slices.Index(tc.due, e))
			e.running = true
			l.add(loadOf(e), 1)
		}
		if len(started) != tc.most || !slices.Equal(started[:len(tc.want)], tc.want) {
			t.Errorf("%s: started %v, want %d that begin with %v", name, started, tc.most, tc.want)
		}
		for _, n := range started {
			l.add(loadOf(tc.due[n]), -1)
		}
		if l.all+l.failed+len(l.hosts)+len(l.namespaces) != 0 {
			t.Errorf("%s: the end leaves %+v", name, l)
		}
	}
}

// TestDiscovery: without a URL, the issuer names it.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ issuer, config, want string }{
		"ordinary":    {"https://i/", `{"jwks_uri":"https://k/keys"}`, ""},
		"without TLS": {"https://i", `{"jwks_uri":"http://k/keys"}`, "jwks_uri is without TLS, unlike the issuer"},
		"both plain":  {"http://i", `{"jwks_uri":"http://k/keys"}`, ""},
		"file":        {"https://i", `{"jwks_uri":"file:///etc/passwd"}`, "is not a URL of http or https"},
		"user":        {"https://i", `{"jwks_uri":"https://a:b@k/keys"}`, "is not a URL of http or https"},
		"no URL":      {"https://i", `{}`, "is not a URL of http or https"},
		"no JSON":     {"https://i", `<html>`, "is not a configuration of OpenID Connect"},
		"none":        {"https://i", "", "no answer"},
	} {
		w := &web{asked: map[string]int{}, documents: map[string]string{
			strings.TrimSuffix(tc.issuer, "/") + "/.well-known/openid-configuration": tc.config, "https://k/keys": set("1"), "http://k/keys": set("1"),
		}}
		got, err := fetch(t.Context(), w.get, snapshot.KeySource{Issuer: tc.issuer})
		if tc.want == "" && (err != nil || got.text != set("1") || got.number != 1) || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, %v, want %q", name, got, err, tc.want)
		}
	}
}

// TestHostileServers: documents that are large, slow, compressed or elsewhere are refused.
func TestHostileServers(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("/good", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, set("1")) })
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, strings.Repeat(" ", 4096)); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/drip", func(w http.ResponseWriter, r *http.Request) {
		for r.Context().Err() == nil {
			if _, err := io.WriteString(w, " "); err != nil || http.NewResponseController(w).Flush() != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	mux.HandleFunc("/error", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, set("1"), http.StatusInternalServerError) })
	mux.HandleFunc("/html", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") })
	mux.Handle("/away", http.RedirectHandler("http://169.254.169.254/latest/meta-data", http.StatusFound))
	mux.Handle("/near", http.RedirectHandler("/good", http.StatusFound))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	port := server.URL[strings.LastIndex(server.URL, ":"):]
	guard := dial.Guard{Loopback: true, Refused: []netip.Prefix{netip.MustParsePrefix("127.7.0.0/16")}, Lookup: func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("169.254.169.254")}, nil
	}}
	client, err := guard.Client(patience, dial.ServerTLS{}, keyset.MaxSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	get := Getter(client)
	for url, want := range map[string]string{
		server.URL + "/good":                      "",
		server.URL + "/endless":                   "is larger than 1048576 bytes",
		server.URL + "/drip":                      "deadline exceeded",
		server.URL + "/error":                     "answers 500 Internal Server Error",
		server.URL + "/html":                      "is not a JSON Web Key Set",
		server.URL + "/away":                      "redirects to another address, which is not followed",
		server.URL + "/near":                      "redirects to another address, which is not followed",
		"http://169.254.169.254/latest/meta-data": "is link-local or a metadata service",
		"http://[fd00:ec2::254]/":                 "is link-local or a metadata service",
		"http://metadata.example.com/":            "is link-local or a metadata service",
		"http://127.7.0.1" + port + "/good":       "is in a network that is refused",
		"http://0.0.0.0" + port + "/good":         "is unspecified",
		"http://2852039166/":                      "is link-local or a metadata service", // by the lookup of the name
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if strings.HasSuffix(url, "/drip") {
			ctx, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
		}
		_, err := fetch(ctx, get, snapshot.KeySource{URL: url})
		cancel()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", url, err, want)
		}
	}
}
