package telemetry

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestAccessLogsOf: Telemetries, the more specific last, choose the access logs of the
// listeners for clients.
func TestAccessLogsOf(t *testing.T) {
	t.Parallel()
	fallback := []string{"mesh.log"}
	for name, tt := range map[string]struct {
		defaults    []string
		telemetries []string // accessLogging of each
		want        []string // files, with filters
	}{
		"no Telemetry":            {nil, nil, fallback},
		"default":                 {[]string{"a"}, nil, []string{"a.log"}},
		"unknown default":         {[]string{"x"}, nil, fallback},
		"provider":                {nil, []string{`[{"providers": [{"name": "a"}]}]`}, []string{"a.log"}},
		"two providers":           {nil, []string{`[{"providers": [{"name": "b"}, {"name": "A"}]}]`}, []string{"a.log", "b.log"}},
		"unknown provider":        {nil, []string{`[{"providers": [{"name": "x"}]}]`}, fallback},
		"disabled":                {nil, []string{`[{"providers": [{"name": "a"}], "disabled": true}]`}, nil},
		"disabled default":        {[]string{"a"}, []string{`[{"disabled": true}]`}, nil},
		"disabled without one":    {nil, []string{`[{"disabled": true}]`}, fallback},
		"instead of the default":  {[]string{"a"}, []string{`[{"providers": [{"name": "b"}]}]`}, []string{"b.log"}},
		"filter of the default":   {[]string{"a"}, []string{`[{"filter": {"expression": "x"}}]`}, []string{"a.log"}},
		"filter":                  {nil, []string{`[{"providers": [{"name": "a"}], "filter": {"expression": "x"}}]`}, []string{"a.log if x"}},
		"for servers":             {nil, []string{`[{"providers": [{"name": "a"}], "match": {"mode": "SERVER"}}]`}, fallback},
		"disabled for servers":    {[]string{"a"}, []string{`[{"disabled": true, "match": {"mode": "SERVER"}}]`}, []string{"a.log"}},
		"filter of servers":       {nil, []string{`[{"providers": [{"name": "a"}], "match": {"mode": "CLIENT"}}, {"providers": [{"name": "a"}], "match": {"mode": "SERVER"}, "filter": {"expression": "x"}}]`}, []string{"a.log"}},
		"provider of servers":     {nil, []string{`[{"providers": [{"name": "a"}]}]`, `[{"providers": [{"name": "b"}], "match": {"mode": "SERVER"}}]`}, []string{"a.log"}},
		"after servers":           {nil, []string{`[{"providers": [{"name": "a"}]}, {"providers": [{"name": "b"}], "match": {"mode": "SERVER"}}, {"disabled": true}]`}, nil},
		"for clients":             {nil, []string{`[{"providers": [{"name": "a"}], "match": {"mode": "CLIENT"}}]`}, []string{"a.log"}},
		"instead of the parent":   {nil, []string{`[{"providers": [{"name": "a"}]}]`, `[{"providers": [{"name": "b"}]}]`}, []string{"b.log"}},
		"disabled by a child":     {nil, []string{`[{"providers": [{"name": "a"}]}]`, `[{"disabled": true}]`}, nil},
		"enabled by a child":      {nil, []string{`[{"providers": [{"name": "a"}], "disabled": true}]`, `[{}]`}, []string{"a.log"}},
		"filter of a child":       {nil, []string{`[{"providers": [{"name": "a"}]}]`, `[{"providers": [{"name": "a"}], "filter": {"expression": "x"}}]`}, []string{"a.log if x"}},
		"one of two disabled":     {nil, []string{`[{"providers": [{"name": "a"}, {"name": "b"}]}, {"providers": [{"name": "a"}], "disabled": true}]`}, []string{"b.log"}},
		"the entry before counts": {nil, []string{`[{"providers": [{"name": "a"}]}, {"providers": [{"name": "b"}]}, {"disabled": true}]`}, []string{"a.log"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &snapshot.Mesh{
				AccessLog: snapshot.AccessLog{File: "mesh.log"}, LogDefaults: tt.defaults,
				LogProviders: map[string]snapshot.AccessLog{"a": {File: "a.log"}, "b": {File: "b.log"}},
			}
			var telemetries [][]*telemetryv1alpha1.AccessLogging
			for _, text := range tt.telemetries {
				spec := &telemetryv1alpha1.Telemetry{}
				if err := protojson.Unmarshal([]byte(`{"accessLogging": `+text+`}`), spec); err != nil {
					t.Fatal(err)
				}
				telemetries = append(telemetries, spec.GetAccessLogging())
			}
			var got []string
			for _, log := range accessLogsOf(m, telemetries, telemetryv1alpha1.WorkloadMode_CLIENT) {
				if log.Filter != "" {
					log.File += " if " + log.Filter
				}
				got = append(got, log.File)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("access logs (-want +got):\n%s", diff)
			}
		})
	}
}
