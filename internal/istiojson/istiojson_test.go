package istiojson

import (
	"testing"

	_ "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// TestUnmarshal: durations in any unit of Go mean the same as in seconds, in fields, lists and
// messages of a type by name. Other values do not change.
func TestUnmarshal(t *testing.T) {
	for name, tc := range map[string]struct {
		into       proto.Message
		text, same string
	}{
		"field": {
			&networkingv1alpha3.DestinationRule{},
			`{"host":"a","trafficPolicy":{"outlierDetection":{"interval":"5m","base_ejection_time":"1h30m"}}}`,
			`{"host":"a","trafficPolicy":{"outlierDetection":{"interval":"300s","baseEjectionTime":"5400s"}}}`,
		},
		"list": {
			&networkingv1alpha3.VirtualService{},
			`{"http":[{"name":"5m<","timeout":"100ms"},{"timeout":"-0.5ms"}]}`,
			`{"http":[{"name":"5m<","timeout":"0.1s"},{"timeout":"-0.0005s"}]}`,
		},
		"any": {
			&corev3.TypedExtensionConfig{},
			`{"typedConfig":{"@type":"type.googleapis.com/envoy.config.cluster.v3.Cluster","connectTimeout":"2m"}}`,
			`{"typedConfig":{"@type":"type.googleapis.com/envoy.config.cluster.v3.Cluster","connectTimeout":"120s"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := tc.into.ProtoReflect().New().Interface()
			if err := protojson.Unmarshal([]byte(tc.same), want); err != nil {
				t.Fatal(err)
			}
			if err := Unmarshal(protojson.UnmarshalOptions{}, []byte(tc.text), tc.into); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(tc.into, want) {
				t.Errorf("got %v, want %v", tc.into, want)
			}
		})
	}
	for _, text := range []string{`{"http":[{"timeout":"soon"}]}`, `{"http":[{"timeout":"5m","other":1}]}`, `{"http":[{"timeout":5}]}`} {
		if err := Unmarshal(protojson.UnmarshalOptions{}, []byte(text), &networkingv1alpha3.VirtualService{}); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}
