package proxyconfig

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestExtensionsOfUnknownTypes: an unknown extension keeps its type; one that Envoy has
// not received yet has none.
func TestExtensionsOfUnknownTypes(t *testing.T) {
	t.Parallel()
	const unknown = `{"ecds_filter": {"@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
		"name": "own", "typed_config": {"@type": "type.example/own.Filter", "some_field": 1}}}`
	dump := fmt.Sprintf(`{"configs": [{"@type": %q, "ecds_filters": [%s, {}]}]}`, extensionSection.typeURL, unknown)
	got := must[*Extensions](t)(ReadExtensions(strings.NewReader(dump)))
	if diff := cmp.Diff([]Extension{{}, {Name: "own", Type: "own.Filter"}}, got.Items); diff != "" {
		t.Error(diff)
	}
	const camel = `{"ecdsFilter": {"@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig",
		"name": "own", "typedConfig": {"@type": "type.example/own.Filter", "some_field": 1}}}`
	want := map[string]any{"ecdsFilters": []any{parsed(t, json.RawMessage(camel)), map[string]any{}}}
	if diff := cmp.Diff(want, written(t, got.Resource)); diff != "" {
		t.Error(diff)
	}
}
