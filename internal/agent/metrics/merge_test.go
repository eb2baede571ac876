package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshctl/meshctl/internal/serving"
)

// source is a server of an application's metrics.
func source(t *testing.T, handler http.HandlerFunc) url.URL {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL + "/metrics?all=1")
	if err != nil {
		t.Fatal(err)
	}
	return *u
}

func text(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = io.WriteString(w, body)
	}
}

// scrapeWith returns the merged metrics, without the help texts of the agent.
func scrapeWith(t *testing.T, m *Merger, accept string) (contentType, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/stats/prometheus?usedonly", http.NoBody)
	r.Header.Set("Accept", accept)
	m.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	var lines []string
	for line := range strings.Lines(w.Body.String()) {
		if !strings.Contains(line, "istio_agent_scrape") || strings.HasPrefix(line, "istio_agent_scrape_failures_total{") {
			lines = append(lines, line)
		}
	}
	return w.Header().Get("Content-Type"), strings.Join(lines, "")
}

func merger(t *testing.T, envoy string, apps ...url.URL) *Merger {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "own"}, func() float64 { return 1 }))
	return New(Merger{
		Envoy: func(_ context.Context, query string) (io.ReadCloser, error) {
			if envoy == "" {
				return nil, errors.New("envoy is away")
			}
			return io.NopCloser(strings.NewReader(strings.ReplaceAll(envoy, "QUERY", query))), nil
		},
		Applications: apps, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}, registry)
}

const (
	ownText     = "# HELP own \n# TYPE own gauge\nown 1\n"
	envoyText   = "# TYPE envoy_x counter\nenvoy_x{q=\"QUERY\"} 1\n\n# of no kind\nenvoy_y 2\n"
	prometheus3 = "application/openmetrics-text;version=1.0.0;q=0.6,application/vnd.google.protobuf;q=0.7,text/plain;version=0.0.4;q=0.4"
	openMetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8"
)

// TestMerge: the sources follow each other in the format of the application, and one that
// fails breaks no other.
func TestMerge(t *testing.T) {
	plain := text("text/plain; version=0.0.4", "app 3\napp_last 4")
	open := text(openMetrics, "# TYPE app counter\napp_total 3 # {trace_id=\"a\"} 1\n# EOF\n")
	envoyIn := "# TYPE envoy_x counter\nenvoy_x{q=\"usedonly\"} 1\n# of no kind\nenvoy_y 2\n"
	envoyOpen := "# TYPE envoy_x counter\nenvoy_x{q=\"usedonly\"} 1\nenvoy_y 2\n"
	for name, tc := range map[string]struct {
		envoy, accept string
		apps          []http.HandlerFunc
		wantType      string
		want          string
		failures      string
	}{
		"no application":      {envoyText, prometheus3, nil, textType, ownText + envoyIn, ""},
		"text":                {envoyText, "*/*", []http.HandlerFunc{plain}, textType, ownText + envoyIn + "app 3\napp_last 4\n", ""},
		"open metrics":        {envoyText, prometheus3, []http.HandlerFunc{open}, openMetrics, ownText + envoyOpen + "# TYPE app counter\napp_total 3 # {trace_id=\"a\"} 1\n# EOF\n", ""},
		"unwanted open":       {envoyText, "text/plain", []http.HandlerFunc{open}, textType, ownText + envoyIn, "application"},
		"several":             {envoyText, prometheus3, []http.HandlerFunc{plain, open, plain}, textType, ownText + envoyIn + strings.Repeat("app 3\napp_last 4\n", 2), "application"},
		"no envoy":            {"", "*/*", []http.HandlerFunc{plain}, textType, ownText + "app 3\napp_last 4\n", "envoy"},
		"application fails":   {envoyText, "*/*", []http.HandlerFunc{http.NotFound}, textType, ownText + envoyIn, "application"},
		"protobuf":            {envoyText, "*/*", []http.HandlerFunc{text("application/vnd.google.protobuf", "\x01")}, textType, ownText + envoyIn, "application"},
		"HTML":                {envoyText, "*/*", []http.HandlerFunc{text("text/html; charset=utf-8", "app 3\n")}, textType, ownText + envoyIn, "application"},
		"HTML as text":        {envoyText, "*/*", []http.HandlerFunc{text("text/plain", "app 3\n<html>\nlogin 1\n")}, textType, ownText + envoyIn + "app 3\n", "application"},
		"JSON":                {envoyText, "*/*", []http.HandlerFunc{text("application/json", "{\"app\": 3}\n")}, textType, ownText + envoyIn, "application"},
		"metrics as JSON":     {envoyText, "*/*", []http.HandlerFunc{text("application/json", "app 3\n")}, textType, ownText + envoyIn + "app 3\n", ""},
		"octets":              {envoyText, "*/*", []http.HandlerFunc{text("application/octet-stream", "app 3\n")}, textType, ownText + envoyIn + "app 3\n", ""},
		"no media type":       {envoyText, "*/*", []http.HandlerFunc{text(";;", "app 3\n")}, textType, ownText + envoyIn + "app 3\n", ""},
		"no content type":     {envoyText, "*/*", []http.HandlerFunc{text("", "app 3\n")}, textType, ownText + envoyIn + "app 3\n", ""},
		"redirect":            {envoyText, "*/*", []http.HandlerFunc{http.RedirectHandler("http://203.0.113.1/", http.StatusFound).ServeHTTP}, textType, ownText + envoyIn, "application"},
		"breaks off":          {envoyText, "*/*", []http.HandlerFunc{breaksOff}, textType, ownText + envoyIn + "whole 1\n", "application"},
		"endless":             {"", "*/*", []http.HandlerFunc{endless}, textType, "", "application"},
		"a line without end":  {envoyText, "*/*", []http.HandlerFunc{text("text/plain", "a 1\n"+strings.Repeat("x", 2*maxLine))}, textType, ownText + envoyIn + "a 1\n", "application"},
		"carriage and spaces": {"a 1\r\n\r\nb 2\n", prometheus3, []http.HandlerFunc{text(openMetrics, "c 3\n# EOF")}, openMetrics, ownText + "a 1\nb 2\nc 3\n# EOF\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var apps []url.URL
			for _, a := range tc.apps {
				apps = append(apps, source(t, a))
			}
			m := merger(t, tc.envoy, apps...)
			contentType, body := scrapeWith(t, m, tc.accept)
			if tc.want != "" && body != tc.want || contentType != tc.wantType {
				t.Errorf("got %s\n%s\nwant %s\n%s", contentType, body, tc.wantType, tc.want)
			}
			if len(body) > maxApplication+1<<20 {
				t.Errorf("%d bytes", len(body))
			}
			_, again := scrapeWith(t, m, tc.accept)
			if counted := strings.Contains(again, fmt.Sprintf("istio_agent_scrape_failures_total{type=%q} 1\n", tc.failures)); counted != (tc.failures != "") {
				t.Errorf("failures of %q are counted: %v\n%.1000s", tc.failures, counted, again)
			}
		})
	}
}

func breaksOff(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "1000")
	_, _ = io.WriteString(w, "whole 1\npart")
}

func endless(w http.ResponseWriter, r *http.Request) {
	line := []byte("a{x=\"" + strings.Repeat("y", 1000) + "\"} 1\n")
	for r.Context().Err() == nil {
		if _, err := w.Write(line); err != nil {
			return
		}
	}
}

// TestScrapeTimeout: a scrape waits as long as Prometheus, within bounds.
func TestScrapeTimeout(t *testing.T) {
	for header, want := range map[string]string{"": "10s", "2.5": "2.5s", "0": "10s", "-1": "10s", "NaN": "10s", "1e9": "1m0s", "x": "10s"} {
		if got := scrapeTimeout(header).String(); got != want {
			t.Errorf("%q: %s, want %s", header, got, want)
		}
	}
	hangs := source(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	m := merger(t, envoyText, hangs)
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	r.Header.Set(timeoutHeader, "0.05")
	m.ServeHTTP(w, r)
	if !strings.Contains(w.Body.String(), "own 1\n") {
		t.Errorf("an application that hangs hides the agent's metrics: %s", w.Body)
	}
}

// TestScrapesAreBounded: the scrapes of one address wait for each other, and leave room for those of
// another address. A scrape without a turn in its time is refused.
func TestScrapesAreBounded(t *testing.T) {
	m := merger(t, envoyText)
	leave, err := m.running.Enter(t.Context(), serving.Caller{Source: "192.0.2.1/32"})
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	for from, want := range map[string]int{"192.0.2.1:5": http.StatusServiceUnavailable, "192.0.2.2:5": http.StatusOK} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		r.RemoteAddr = from
		if want != http.StatusOK {
			r.Header.Set(timeoutHeader, "0.05")
		}
		if m.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%s: status %d, want %d", from, w.Code, want)
		}
	}
}
