// Package tracing tells an OpenTelemetry collector how changes reach proxies:
// a trace for each change, from the first event to the last answer. It observes
// what package history records, so nothing is measured twice and a server that
// does not trace pays nothing.
//
// Spans are made when their time is over. They wait in a queue of fixed length
// for a goroutine that sends them; what does not fit is dropped and counted, and
// nobody waits.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/meshctl/meshctl/internal/server/xds/history"
)

// Bounds of what is told.
const (
	maxQueue  = 4096             // spans that wait
	maxPushes = 100              // spans of responses in a trace; their number is an attribute of the change
	maxEnd    = 3 * time.Second  // to send the rest when the server stops
	maxSend   = 10 * time.Second // one request to the collector
	every     = 2 * time.Second  // at the latest spans are sent
)

// Config says where spans go and who they are of.
type Config struct {
	// Endpoint is the URL that takes OTLP over HTTP, with its path. Headers of
	// requests are those of OTEL_EXPORTER_OTLP_HEADERS.
	Endpoint string
	// Client sends them. Its timeout bounds a request.
	Client *http.Client
	// Replica and Version are who tells. OTEL_SERVICE_NAME and
	// OTEL_RESOURCE_ATTRIBUTES win over them.
	Replica, Version string
	Log              *slog.Logger
}

// Tracer makes spans of what it observes.
type Tracer struct {
	tracer   trace.Tracer
	provider *sdktrace.TracerProvider
}

// New prepares a tracer. It connects to nobody yet. What is sampled is
// OTEL_TRACES_SAMPLER's, by default everything.
func New(ctx context.Context, cfg Config) (*Tracer, error) {
	exporter, err := otlptracehttp.New(ctx,
		otlptracehttp.WithEndpointURL(cfg.Endpoint),
		otlptracehttp.WithHTTPClient(cfg.Client),
		otlptracehttp.WithTimeout(maxSend),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{}), // what is lost is lost
	)
	if err != nil {
		return nil, fmt.Errorf("traces to %s: %w", cfg.Endpoint, err)
	}
	of, err := resource.New(ctx,
		resource.WithAttributes(
			attribute.String("service.name", "meshctl"), attribute.String("service.version", cfg.Version),
			attribute.String("service.instance.id", cfg.Replica),
		),
		resource.WithFromEnv(),
	)
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return newTracer(&told{SpanExporter: exporter, log: cfg.Log}, of), nil
}

func newTracer(exporter sdktrace.SpanExporter, of *resource.Resource) *Tracer {
	provider := sdktrace.NewTracerProvider(sdktrace.WithResource(of), sdktrace.WithBatcher(exporter,
		sdktrace.WithMaxQueueSize(maxQueue), sdktrace.WithMaxExportBatchSize(maxQueue/8),
		sdktrace.WithBatchTimeout(every), sdktrace.WithExportTimeout(maxSend),
	))
	return &Tracer{tracer: provider.Tracer("github.com/meshctl/meshctl"), provider: provider}
}

// Run ends when ctx does, and has the rest sent for at most 3 seconds.
func (t *Tracer) Run(ctx context.Context) error {
	<-ctx.Done()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxEnd)
	defer cancel()
	_ = t.provider.Shutdown(end) // what could not be sent was logged
	return nil
}

// told logs what could not be sent, in place of the SDK's own log.
type told struct {
	sdktrace.SpanExporter
	log    *slog.Logger
	failed atomic.Bool
}

func (e *told) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	switch before := e.failed.Swap(err != nil); {
	case err != nil:
		e.log.Warn("traces were not sent and are lost", "spans", len(spans), "error", err)
	case before:
		e.log.Info("traces are sent again")
	}
	return nil
}

// round is what is kept of a round's trace.
type round struct {
	trace.SpanContext
	pushes atomic.Int64
}

// Published implements history.Observer: the change, how its events became a
// snapshot, and how that became resources.
func (t *Tracer) Published(r *history.Round) any {
	began := r.Arrived
	if began.IsZero() {
		began = r.Started
	}
	causes := make([]string, len(r.Causes))
	for i, c := range r.Causes {
		causes[i] = c.String()
	}
	ctx, root := t.tracer.Start(context.Background(), "change", trace.WithTimestamp(began), trace.WithNewRoot(), trace.WithAttributes( //nolint:forbidigo // a trace begins here, of nobody's request
		attribute.Int64("meshctl.snapshot", int64(r.Snapshot)), attribute.Int("meshctl.events", r.Events),
		attribute.Int("meshctl.resources", r.Resources), attribute.StringSlice("meshctl.causes", causes),
	))
	defer root.End(trace.WithTimestamp(r.Generated))
	if !root.SpanContext().IsSampled() {
		return nil
	}
	t.span(ctx, "registry.batch", r.Arrived, r.Taken)
	t.span(ctx, "registry.snapshot", r.Taken, r.Built)
	t.span(ctx, "xds.wait", r.Built, r.Started)
	ctx, generate := t.tracer.Start(ctx, "xds.generate", trace.WithTimestamp(r.Started))
	defer generate.End(trace.WithTimestamp(r.Generated))
	for _, g := range r.Types {
		t.span(ctx, "xds.generate "+g.Type, g.Began, g.Ended, attribute.String("meshctl.type", g.Type), attribute.Int("meshctl.units", g.Units))
	}
	return &round{SpanContext: root.SpanContext()}
}

// span makes a span of a stage that is over. One that did not happen has none.
func (t *Tracer) span(ctx context.Context, name string, from, to time.Time, attrs ...attribute.KeyValue) {
	if from.IsZero() || to.IsZero() {
		return
	}
	_, span := t.tracer.Start(ctx, name, trace.WithTimestamp(from), trace.WithAttributes(attrs...))
	span.End(trace.WithTimestamp(to))
}

// Answered implements history.Observer: a response, from when it could have been
// sent to the proxy's answer. It is part of the newest change that it carries
// and linked to the oldest.
func (t *Tracer) Answered(of history.Info, p history.Push, newest, first *history.Round) {
	parent, ok := newest.Trace.(*round)
	if !ok || parent.pushes.Add(1) > maxPushes {
		return
	}
	began := p.Queued
	if began.IsZero() {
		began = p.Sent
	}
	options := []trace.SpanStartOption{
		trace.WithTimestamp(began), trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
			attribute.String("meshctl.proxy", of.Proxy), attribute.String("meshctl.stream", of.Stream),
			attribute.String("meshctl.type", p.Type), attribute.String("meshctl.version", p.Version),
			attribute.Int("meshctl.resources", p.Resources), attribute.Int("meshctl.removed", p.Removed),
			attribute.Int("meshctl.bytes", p.Bytes), attribute.String("meshctl.answer", p.Answer),
		),
	}
	if oldest, ok := first.Trace.(*round); ok && first != newest {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: oldest.SpanContext}))
	}
	ctx := trace.ContextWithSpanContext(context.Background(), parent.SpanContext) //nolint:forbidigo // the span's parent alone
	ctx, span := t.tracer.Start(ctx, "xds.push "+p.Type, options...)
	ended := p.Answered
	switch {
	case p.Answered.IsZero():
		span.SetStatus(codes.Error, "the stream ended before the proxy answered")
		ended = of.Ended
	case p.Error != "":
		span.SetStatus(codes.Error, p.Error)
		span.SetAttributes(attribute.StringSlice("meshctl.refused", p.Refused))
	}
	t.span(ctx, "xds.send", p.Sent, p.Written)
	t.span(ctx, "proxy.answer", p.Sent, p.Answered)
	span.End(trace.WithTimestamp(ended))
}
