package telemetry

import (
	"testing"

	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// BenchmarkAccessLogs makes the log of one of many filters with the same settings.
func BenchmarkAccessLogs(b *testing.B) {
	s := Settings{accessLogs: wire.ListOf([]snapshot.AccessLog{{File: "/dev/stdout", JSON: true}})}
	g := wire.Generator{Enc: &xdswire.Encoder{}}
	for b.Loop() {
		AccessLogs(&g, s)
	}
}

// TestAccessLogsOfOneEncoder: filters with different settings get their own logs from one encoder.
func TestAccessLogsOfOneEncoder(t *testing.T) {
	t.Parallel()
	g := wire.Generator{Enc: &xdswire.Encoder{}}
	settings := func(format string) Settings {
		return Settings{accessLogs: wire.ListOf([]snapshot.AccessLog{{File: "/dev/stdout", Format: format}})}
	}
	a, b, again := AccessLogs(&g, settings("a")), AccessLogs(&g, settings("b")), AccessLogs(&g, settings("a"))
	if text := a[0].String(); text == b[0].String() || text != again[0].String() {
		t.Errorf("logs %v, %v and %v", a, b, again)
	}
	invalid := Settings{accessLogs: wire.ListOf([]snapshot.AccessLog{{File: "/dev/stdout", JSON: true, Format: "{"}})}
	for range 2 {
		g := wire.Generator{Enc: g.Enc}
		if AccessLogs(&g, invalid); g.Err == nil {
			t.Error("a format that is no JSON has no error")
		}
	}
}

// TestLogsStayAsTheyAre: what gets the logs of other filters, too, does not change them.
func TestLogsStayAsTheyAre(t *testing.T) {
	t.Parallel()
	g := wire.Generator{Enc: &xdswire.Encoder{}}
	s := Settings{
		accessLogs: wire.ListOf([]snapshot.AccessLog{{File: "/dev/stdout"}}), server: true,
		metrics: wire.ListOf([]metric{{kind: telemetryv1alpha1.MetricSelector_TCP_OPENED_CONNECTIONS}}),
	}
	before := AccessLogs(&g, s)[0].String()
	p := &tcpv3.TcpProxy{AccessLog: AccessLogs(&g, s)}
	SetConnectionMetrics(&g, p, s)
	if p.GetAccessLog()[0].GetFilter() == nil {
		t.Error("the log of the filter has no filter of its own")
	}
	RefusedConnections(&g, s)
	if after := AccessLogs(&g, s)[0].String(); after != before {
		t.Errorf("the shared log became %s, it was %s", after, before)
	}
}
