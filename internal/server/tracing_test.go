package server

import (
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/server/tracing"
)

// collector is an OTLP receiver.
type collector struct {
	*httptest.Server
	mu    sync.Mutex
	spans []*tracev1.Span
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var request collectorv1.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &request)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("request to %s: %v", r.URL.Path, err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, of := range request.ResourceSpans {
			for _, scope := range of.ScopeSpans {
				c.spans = append(c.spans, scope.Spans...)
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(c.Close)
	return c
}

// span is the first of the name with the attribute, nil if there is none.
func (c *collector) span(name, key, value string) *tracev1.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.Name == name && (key == "" || strings.Contains(attribute(s, key), value)) {
			return s
		}
	}
	return nil
}

func attribute(s *tracev1.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key != key {
			continue
		}
		text := a.Value.GetStringValue()
		for _, v := range a.Value.GetArrayValue().GetValues() {
			text += v.GetStringValue() + " "
		}
		return text
	}
	return ""
}

// TestTraces follows a change from the first event to the proxy's answer.
func TestTraces(t *testing.T) {
	c := newCollector(t)
	tracer, err := tracing.New(t.Context(), tracing.Config{
		Endpoint: c.URL + "/v1/traces", Client: c.Client(), Replica: "r1", Version: "test",
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	var dir string
	s, stop, done := launch(t, func(cfg *Config) {
		dir, cfg.Tracer = cfg.ConfigDir, tracer
		write(t, dir, "service.yaml", serviceYAML(7))
	})
	waitFor(t, "readiness", s.ready.Load)
	p := connect(t, s, "web")
	var before string
	acked := func() bool {
		types := s.hub.Proxies()[0].Types["CDS"]
		return types.Acked != before && types.Sent == types.Acked && !types.Awaited
	}
	p.next(t)
	waitFor(t, "the first answer", acked)
	before = s.hub.Proxies()[0].Types["CDS"].Acked
	write(t, dir, "service8.yaml", serviceYAML(8))
	p.next(t)
	waitFor(t, "the answer", acked)
	stop() // and what waits is sent
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	change := c.span("change", "meshctl.causes", "svc-8")
	if change == nil || len(change.ParentSpanId) != 0 {
		t.Fatalf("the change is told as %v", change)
	}
	for _, stage := range []struct{ name, parent string }{
		{"registry.batch", "change"},
		{"registry.snapshot", "change"},
		{"xds.wait", "change"},
		{"xds.generate", "change"},
		{"xds.generate CDS", "xds.generate"},
		{"xds.push CDS", "change"},
		{"xds.send", "xds.push CDS"},
		{"proxy.answer", "xds.push CDS"},
	} {
		found := c.of(change.TraceId, stage.name)
		parent := c.of(change.TraceId, stage.parent)
		if found == nil || parent == nil || hex.EncodeToString(found.ParentSpanId) != hex.EncodeToString(parent.SpanId) {
			t.Errorf("%s is no child of %s: %v", stage.name, stage.parent, found)
			continue
		}
		if found.EndTimeUnixNano < found.StartTimeUnixNano || found.StartTimeUnixNano < change.StartTimeUnixNano {
			t.Errorf("%s lasts from %d to %d", stage.name, found.StartTimeUnixNano, found.EndTimeUnixNano)
		}
	}
	push := c.of(change.TraceId, "xds.push CDS")
	if attribute(push, "meshctl.proxy") != "web.apps" || attribute(push, "meshctl.answer") != "ACK" {
		t.Errorf("the push is told as %v", push)
	}
}

// of is the first span of the name in the trace.
func (c *collector) of(trace []byte, name string) *tracev1.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.spans {
		if s.Name == name && string(s.TraceId) == string(trace) {
			return s
		}
	}
	return nil
}

// TestTracesNobodyTakes: a collector that does not answer keeps no proxy waiting.
func TestTracesNobodyTakes(t *testing.T) {
	release := make(chan struct{})
	stuck := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	t.Cleanup(stuck.Close)
	t.Cleanup(func() { close(release) })
	tracer, err := tracing.New(t.Context(), tracing.Config{
		Endpoint: stuck.URL + "/v1/traces", Client: &http.Client{Timeout: time.Second}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	var dir string
	s := start(t, func(cfg *Config) { dir, cfg.Tracer = cfg.ConfigDir, tracer })
	p := connect(t, s, "web")
	p.next(t)
	for i := range 30 {
		write(t, dir, "service.yaml", serviceYAML(i))
		p.next(t)
	}
}
