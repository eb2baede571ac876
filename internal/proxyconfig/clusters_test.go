package proxyconfig

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestUnknownExtensionsAreKept: an extension that this build does not know is shown as
// Envoy wrote it.
func TestUnknownExtensionsAreKept(t *testing.T) {
	t.Parallel()
	clusters := must[[]Cluster](t)(ReadClusters(strings.NewReader(clustersOf(
		`{"name": "a", "new_field": {"some_name": 1}, "connect_timeout": "1s", "transport_socket": {"typed_config": {"@type": "type.googleapis.com/acme.Socket", "deep_name": {"x_y": [1, null]}}}}`)),
		ClusterFilter{}, true))
	want := parsed(t, []byte(`{"name": "a", "new_field": {"some_name": 1}, "connectTimeout": "1s",
		"transportSocket": {"typedConfig": {"@type": "type.googleapis.com/acme.Socket", "deep_name": {"x_y": [1, null]}}}}`))
	if diff := cmp.Diff(want, parsed(t, clusters[0].JSON)); diff != "" {
		t.Error(diff)
	}
}
