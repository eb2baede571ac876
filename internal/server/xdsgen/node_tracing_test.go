package xdsgen

import (
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// TestLargeTracingOfNode: the tags of a proxy's own tracing, which each of its listeners has, do not
// become large.
func TestLargeTracingOfNode(t *testing.T) {
	t.Parallel()
	for size, want := range map[int]int{1000: 1, 100_000: 0} {
		metadata, err := structpb.NewStruct(map[string]any{"PROXY_CONFIG": map[string]any{"tracing": map[string]any{
			"sampling": 5, "customTags": map[string]any{"a": map[string]any{"literal": map[string]any{"value": strings.Repeat("x", size)}}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		n, err := proxy.ParseNode(&corev3.Node{Id: "sidecar~10.0.0.1~a.b~b.svc.cluster.local", Metadata: metadata}, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if n.Tracing.GetSampling() != 5 || len(n.Tracing.GetCustomTags()) != want {
			t.Errorf("%d bytes: sampling %v and %d tags, want 5 and %d", size, n.Tracing.GetSampling(), len(n.Tracing.GetCustomTags()), want)
		}
	}
}
