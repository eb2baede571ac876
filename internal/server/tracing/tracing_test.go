package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/meshctl/meshctl/internal/server/xds/history"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func at(seconds int) time.Time { return time.Unix(1_700_000_000+int64(seconds), 0) }

// traced runs a tracer and returns the spans that it made, those of a name first
// made first.
func traced(t *testing.T, with func(*Tracer)) map[string][]tracetest.SpanStub {
	t.Helper()
	exporter := tracetest.NewInMemoryExporter()
	tracer := newTracer(&keep{exporter}, resource.Empty())
	with(tracer)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tracer.Run(ctx); err != nil {
		t.Fatal(err)
	}
	out := make(map[string][]tracetest.SpanStub)
	for _, s := range exporter.GetSpans() {
		out[s.Name] = append(out[s.Name], s)
	}
	return out
}

// keep does not forget its spans at the end.
type keep struct{ *tracetest.InMemoryExporter }

func (keep) Shutdown(context.Context) error { return nil }

func rounds(t *Tracer) (first, newest *history.Round) {
	out := make([]*history.Round, 2)
	for i := range out {
		out[i] = &history.Round{Snapshot: uint64(i), Arrived: at(i), Taken: at(i + 1), Built: at(i + 2), Started: at(i + 3), Generated: at(i + 4)}
		out[i].Trace = t.Published(out[i])
	}
	return out[0], out[1]
}

func TestPushes(t *testing.T) {
	spans := traced(t, func(tracer *Tracer) {
		first, newest := rounds(tracer)
		info := history.Info{Proxy: "p.ns", Stream: "p.ns-1", Ended: at(20)}
		tracer.Answered(info, history.Push{Type: "CDS", Queued: at(5), Sent: at(6), Written: at(7), Answered: at(8), Answer: "ACK"}, newest, first)
		tracer.Answered(info, history.Push{Type: "EDS", Sent: at(6), Answered: at(8), Answer: "NACK", Error: "no good", Refused: []string{"x"}}, newest, newest)
		tracer.Answered(info, history.Push{Type: "LDS", Sent: at(6)}, newest, newest)
	})
	changes := spans["change"]
	if len(changes) != 2 || !changes[1].StartTime.Equal(at(1)) || !changes[1].EndTime.Equal(at(5)) {
		t.Fatalf("changes %+v", changes)
	}
	cds := spans["xds.push CDS"][0]
	if cds.Parent.SpanID() != changes[1].SpanContext.SpanID() || len(cds.Links) != 1 || cds.Links[0].SpanContext.TraceID() != changes[0].SpanContext.TraceID() {
		t.Errorf("a response of two changes: parent %v, links %v", cds.Parent, cds.Links)
	}
	if !cds.StartTime.Equal(at(5)) || !cds.EndTime.Equal(at(8)) || cds.Status.Code == codes.Error {
		t.Errorf("accepted: %+v", cds)
	}
	if eds := spans["xds.push EDS"][0]; eds.Status.Description != "no good" || len(eds.Links) != 0 || !eds.StartTime.Equal(at(6)) {
		t.Errorf("refused: %+v", eds)
	}
	if lds := spans["xds.push LDS"][0]; lds.Status.Code != codes.Error || !lds.EndTime.Equal(at(20)) {
		t.Errorf("not answered: %+v", lds)
	}
	if len(spans["proxy.answer"]) != 2 || len(spans["xds.send"]) != 1 || len(spans["registry.snapshot"]) != 2 {
		t.Errorf("stages %v", spans)
	}
}

// TestManyPushes: a change that concerns every proxy does not fill the queue.
func TestManyPushes(t *testing.T) {
	spans := traced(t, func(tracer *Tracer) {
		_, newest := rounds(tracer)
		for i := range 10 * maxPushes {
			tracer.Answered(history.Info{Stream: fmt.Sprint(i)}, history.Push{Type: "CDS", Sent: at(6), Answered: at(8)}, newest, newest)
		}
	})
	if n := len(spans["xds.push CDS"]); n != maxPushes {
		t.Errorf("%d spans of pushes, want %d", n, maxPushes)
	}
}

func TestSampledAway(t *testing.T) {
	t.Setenv("OTEL_TRACES_SAMPLER", "always_off")
	spans := traced(t, func(tracer *Tracer) {
		if _, newest := rounds(tracer); newest.Trace != nil {
			t.Error("pushes of a change that is not sampled are told")
		}
	})
	if len(spans) != 0 {
		t.Errorf("spans %v", spans)
	}
}

type broken struct {
	sdktrace.SpanExporter
	err error
}

func (b *broken) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return b.err }

func TestFailuresAreLogged(t *testing.T) {
	var log strings.Builder
	b := &broken{err: errors.New("no collector")}
	e := &told{SpanExporter: b, log: slog.New(slog.NewTextHandler(&log, nil))}
	for _, step := range []struct {
		err  error
		want string
	}{{b.err, "no collector"}, {nil, "sent again"}, {nil, ""}} {
		log.Reset()
		b.err = step.err
		if err := e.ExportSpans(t.Context(), nil); err != nil || !strings.Contains(log.String(), step.want) || step.want == "" && log.Len() > 0 {
			t.Errorf("%v: %v, logged %q, want %q", step.err, err, log.String(), step.want)
		}
	}
}

func TestBadEndpoint(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "no equals sign")
	if _, err := New(t.Context(), Config{Endpoint: "http://127.0.0.1:1/v1/traces"}); err == nil || !strings.Contains(err.Error(), "OTEL_RESOURCE_ATTRIBUTES") {
		t.Errorf("error %v", err)
	}
}
