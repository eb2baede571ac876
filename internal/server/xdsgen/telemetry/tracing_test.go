package telemetry

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// TestTracingOf: entries of Telemetries, the more specific last, choose the tracing of
// listeners for clients.
func TestTracingOf(t *testing.T) {
	t.Parallel()
	const own = "mesh 1"
	for name, tt := range map[string]struct {
		defaults []string
		entries  string
		want     string // the collector and the sampling, or "off"
	}{
		"nothing":              {nil, `[]`, own},
		"default":              {[]string{"a", "b"}, `[]`, "a 1"},
		"unknown default":      {[]string{"x"}, `[]`, "off"},
		"provider":             {nil, `[{"providers": [{"name": "A"}, {"name": "b"}]}]`, "a 1"},
		"unknown provider":     {nil, `[{"providers": [{"name": "x"}]}]`, "off"},
		"absent service":       {nil, `[{"providers": [{"name": "absent"}]}]`, "off"},
		"no provider":          {nil, `[{"randomSamplingPercentage": 5}]`, "off"},
		"sampling":             {[]string{"a"}, `[{"randomSamplingPercentage": 5}]`, "a 5"},
		"no sampling":          {[]string{"a"}, `[{"randomSamplingPercentage": 0}]`, "a 0"},
		"field by field":       {[]string{"a"}, `[{"randomSamplingPercentage": 5}, {"providers": [{"name": "b"}]}]`, "b 5"},
		"disabled":             {[]string{"a"}, `[{"disableSpanReporting": true}]`, "off"},
		"enabled again":        {[]string{"a"}, `[{"disableSpanReporting": true}, {"disableSpanReporting": false}]`, "a 1"},
		"for servers":          {[]string{"a"}, `[{"match": {"mode": "SERVER"}, "disableSpanReporting": true}]`, "a 1"},
		"only for servers":     {nil, `[{"match": {"mode": "SERVER"}, "providers": [{"name": "b"}]}]`, own},
		"for clients":          {[]string{"a"}, `[{"match": {"mode": "CLIENT"}, "providers": [{"name": "b"}]}]`, "b 1"},
		"private to namespace": {nil, `[{"providers": [{"name": "private"}]}]`, "off"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := &telemetryv1alpha1.Telemetry{}
			if err := protojson.Unmarshal([]byte(`{"tracing": `+tt.entries+`}`), spec); err != nil {
				t.Fatal(err)
			}
			services := make(map[string]*snapshot.MeshService)
			for _, host := range []string{"a", "b", "private"} {
				services[host] = &snapshot.MeshService{Key: host, Host: host, Namespace: "ns", Ports: []snapshot.ServicePort{{Number: 80}}}
			}
			services["private"].ExportTo = []string{"elsewhere"}
			s := &snapshot.Snapshot{Services: (*snapshot.Table[string, snapshot.MeshService])(nil).With(services), Mesh: &snapshot.Mesh{
				Tracers:       map[string]snapshot.Collector{},
				TraceDefaults: tt.defaults,
			}}
			s.Mesh.Listeners.Tracing = snapshot.Tracing{On: true, Sampling: 1}
			for _, host := range []string{"a", "b", "private", "absent"} {
				s.Mesh.Tracers[host] = snapshot.Collector{Service: host, Port: 80}
			}
			got := tracingOf(s, proxy.Node{Namespace: "client"}, nil, proxy.Scope{Namespace: "client"}, spec.GetTracing(), telemetryv1alpha1.WorkloadMode_CLIENT)
			text := "off"
			if got.On {
				text = fmt.Sprint(map[bool]string{true: "mesh ", false: got.Host + " "}[got.Cluster == ""], got.Sampling)
			}
			if text != tt.want {
				t.Errorf("got %s, want %s", text, tt.want)
			}
		})
	}
}
