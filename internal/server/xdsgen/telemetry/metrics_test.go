package telemetry

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// TestMetricsOf: entries and overrides of metrics apply in order.
func TestMetricsOf(t *testing.T) {
	t.Parallel()
	const all = "REQUEST_COUNT REQUEST_DURATION REQUEST_SIZE RESPONSE_SIZE TCP_OPENED_CONNECTIONS TCP_CLOSED_CONNECTIONS TCP_SENT_BYTES TCP_RECEIVED_BYTES"
	for name, tt := range map[string]struct {
		defaults []string
		metrics  string
		want     string
	}{
		"off by default":         {nil, `[]`, ""},
		"default provider":       {[]string{"Prometheus"}, `[]`, all},
		"unknown default":        {[]string{"other", "stackdriver"}, `[]`, ""},
		"override alone":         {nil, `[{"overrides": [{"disabled": false}]}]`, ""},
		"provider":               {nil, `[{"providers": [{"name": "own"}]}]`, all},
		"other provider":         {[]string{"prometheus"}, `[{"providers": [{"name": "other"}]}]`, ""},
		"provider of the parent": {nil, `[{"providers": [{"name": "prometheus"}]}, {"overrides": [{"disabled": true}]}]`, ""},
		"other mode":             {[]string{"prometheus"}, `[{"overrides": [{"match": {"mode": "SERVER"}, "disabled": true}]}]`, all},
		"one on":                 {[]string{"prometheus"}, `[{"overrides": [{"disabled": true}, {"match": {"metric": "TCP_SENT_BYTES"}, "disabled": false}]}]`, "TCP_SENT_BYTES"},
		"custom metric":          {[]string{"prometheus"}, `[{"overrides": [{"match": {"customMetric": "x"}, "disabled": true}]}]`, all},
		"labels of both": {
			[]string{"prometheus"},
			`[{"overrides": [{"disabled": true}, {"match": {"metric": "REQUEST_COUNT"}, "disabled": false, "tagOverrides":
			{"a": {"value": "\"x%\""}, "b": {"value": "request.host"}, "c": {"value": "''"}, "d": {"operation": "REMOVE"}}}]},
			{"overrides": [{"tagOverrides": {"b": {"operation": "REMOVE"}, "d": {"value": "'a\"b'"}}}]}]`,
			`REQUEST_COUNT a=x%% c=%CEL('')% d=%CEL('a"b')% -b`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &snapshot.Mesh{MetricDefaults: tt.defaults, MetricProviders: map[string]bool{"prometheus": true, "own": true, "other": false}}
			spec := &telemetryv1alpha1.Telemetry{}
			if err := protojson.Unmarshal([]byte(`{"metrics": `+tt.metrics+`}`), spec); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, one := range metricsOf(m, spec.GetMetrics(), telemetryv1alpha1.WorkloadMode_CLIENT) {
				text := one.kind.String()
				for tag := range one.tags.All {
					text += fmt.Sprintf(" %s=%s", tag.label, tag.format)
				}
				if one.removed != "" {
					text += " -" + one.removed
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(tt.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("metrics (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSupportsMetrics: proxies with an agent that makes the metrics, and with a recent Envoy, count calls.
func TestSupportsMetrics(t *testing.T) {
	t.Parallel()
	for n, want := range map[*proxy.Node]bool{
		{CountsCalls: true}:                                   true,
		{CountsCalls: true, Envoy: "1.39.0"}:                  true,
		{CountsCalls: true, Envoy: "2.0.0"}:                   false,
		{CountsCalls: true, Envoy: "1.38.9"}:                  false,
		{CountsCalls: true, Envoy: "1.40.0", Proxyless: true}: false,
		{Envoy: "1.40.0"}:                                     false,
	} {
		if got := supportsMetrics(*n); got != want {
			t.Errorf("%+v: %t", *n, got)
		}
	}
}
