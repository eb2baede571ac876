package metrics

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

// TestSharesOfAScrape: a source that hangs uses its share of the time, and the metrics of all other
// sources arrive before Prometheus gives up.
func TestSharesOfAScrape(t *testing.T) {
	hangs := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	hangsLater := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begun 1\nhalf")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	good := text(textType, "good 1\n")
	late := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(5 * time.Second)
		good(w, r)
	}
	for name, tc := range map[string]struct {
		envoy    http.HandlerFunc
		apps     []http.HandlerFunc
		want     []string
		failures string
		takes    time.Duration
	}{
		"all answer":                 {text(textType, "envoy_x 1\n"), []http.HandlerFunc{good}, []string{"envoy_x 1", "good 1"}, "", 0},
		"an application is slow":     {text(textType, "envoy_x 1\n"), []http.HandlerFunc{late}, []string{"envoy_x 1", "good 1"}, "", 5 * time.Second},
		"an application hangs":       {text(textType, "envoy_x 1\n"), []http.HandlerFunc{hangs, good}, []string{"envoy_x 1", "good 1"}, "application", 6 * time.Second},
		"all applications hang":      {text(textType, "envoy_x 1\n"), []http.HandlerFunc{hangs, hangs, hangs}, []string{"envoy_x 1"}, "application", 6 * time.Second},
		"an application hangs later": {text(textType, "envoy_x 1\n"), []http.HandlerFunc{hangsLater, good}, []string{"envoy_x 1", "begun 1", "good 1"}, "application", 8750 * time.Millisecond},
		"Envoy hangs":                {hangs, []http.HandlerFunc{good}, []string{"good 1"}, "envoy", 8 * time.Second},
		"Envoy hangs later":          {hangsLater, []http.HandlerFunc{good}, []string{"begun 1", "good 1"}, "envoy", 8 * time.Second},
		"all hang":                   {hangsLater, []http.HandlerFunc{hangs, hangsLater}, []string{"begun 1"}, "application", 9500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				at := map[string]*harness.Pipes{}
				var servers []*http.Server
				ended := make(chan struct{}, 10)
				serve := func(host string, h http.HandlerFunc) {
					l := harness.NewPipes()
					at[host+":80"] = l
					s := &http.Server{ReadHeaderTimeout: time.Hour, Handler: h}
					servers = append(servers, s)
					go func() { _ = s.Serve(l); ended <- struct{}{} }()
				}
				client := dial.HTTPClientVia(0, func(_ context.Context, _, address string) (net.Conn, error) { return at[address].Dial(), nil })
				serve("envoy", tc.envoy)
				var apps []url.URL
				for i, h := range tc.apps {
					host := string(rune('a' + i))
					serve(host, h)
					apps = append(apps, url.URL{Scheme: "http", Host: host, Path: "/metrics"})
				}
				registry := prometheus.NewRegistry()
				m := New(Merger{
					Envoy: func(ctx context.Context, _ string) (io.ReadCloser, error) {
						req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://envoy/", http.NoBody)
						if err != nil {
							return nil, err
						}
						resp, err := client.Do(req)
						if err != nil {
							return nil, err
						}
						return resp.Body, nil
					},
					Applications: apps, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
				}, registry)
				m.client = client
				w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", http.NoBody)
				r.Header.Set(timeoutHeader, "10")
				began := time.Now()
				m.ServeHTTP(w, r)
				if took := time.Since(began); took != tc.takes {
					t.Errorf("took %v, want %v", took, tc.takes)
				}
				for _, line := range tc.want {
					if !strings.Contains("\n"+w.Body.String(), "\n"+line+"\n") {
						t.Errorf("the metrics lack %q: %s", line, w.Body)
					}
				}
				if strings.Contains(w.Body.String(), "half") {
					t.Error("the metrics have a line without its end")
				}
				all, err := registry.Gather()
				if err != nil {
					t.Fatal(err)
				}
				counted := false
				for _, f := range all {
					for _, metric := range f.GetMetric() {
						if f.GetName() == "istio_agent_scrape_failures_total" && metric.GetLabel()[0].GetValue() == tc.failures && metric.GetCounter().GetValue() > 0 {
							counted = true
						}
					}
				}
				if counted != (tc.failures != "") {
					t.Errorf("failures of %q are counted: %v", tc.failures, counted)
				}
				client.CloseIdleConnections()
				for _, s := range servers {
					_ = s.Close()
					<-ended
				}
			})
		})
	}
}

// TestIsMetric: lines of the text formats pass, and what would make Prometheus refuse the whole
// response does not.
func TestIsMetric(t *testing.T) {
	for _, line := range []string{
		"", "  ", "# a comment", "#", "# HELP a text", "# HELP a", "# TYPE a counter", "# TYPE a unknown", `# TYPE "a.b" gauge`, "# EOF", "# UNIT a seconds",
		"a 1", "a_b:c 1.5e3 1712345678000", "a NaN", "a +Inf", "a -Inf", "a{} 1", `a{b="c"} 1`, `a{b="c",} 1`, `a { b = "c" , d="e" } 1 2`,
		`a{b="c}\"{,"} 1`, `a{b="c"} 1 # {trace_id="a"} 1`, `a_total 3 # {trace_id="a"} 1`, `{"a.b"} 1`, `{"a.b",c="d"} 1`, `{"a.b","c.d"="e"} 1`, `a{b="é"} 1`, "a\t1", `a{b="c"}1`, " a 1",
	} {
		if !isMetric([]byte(line)) {
			t.Errorf("%q is refused", line)
		}
	}
	for _, line := range []string{
		"<html>", "<!DOCTYPE html>", `{"a": 1}`, "{", "}", "a", "a b", "a 1 2 3", "1 2", "a{b} 1", `a{b=c} 1`, `a{b="c} 1`, `a{b="c"`, `a{b="c" d="e"} 1`, `{} 1`, `{b="c"} 1`,
		"# TYPE a", "# TYPE a b", "# TYPE 1 counter", "# HELP", "404 page not found", "a-b 1", "body { color: red }", "a 1,5", "\x01\x02", `a{"b"="c} 1`,
	} {
		if isMetric([]byte(line)) {
			t.Errorf("%q passes", line)
		}
	}
}

// FuzzIsMetric: no line makes the check fail.
func FuzzIsMetric(f *testing.F) {
	for _, line := range []string{`a{b="c\\"} 1 2`, `{"a",b="c"} 1 # {x="y"} 2`, "# TYPE a counter"} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if isMetric(line) && len(line) > 0 && strings.ContainsAny(strings.TrimSpace(string(line))[:min(1, len(strings.TrimSpace(string(line))))], "<[") {
			t.Errorf("%q passes", line)
		}
	})
}
