package source

import (
	"runtime"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// TestCostOfDecoding: to decode an object takes memory in proportion to its text, however its values
// nest and however long its names are. It is not parallel: it counts all that the process allocates.
func TestCostOfDecoding(t *testing.T) {
	const most = 100 // bytes for each byte of the text
	nested := func(depth int, inner string) string {
		return strings.Repeat(`{"k":`, depth) + inner + strings.Repeat("}", depth)
	}
	items := `[` + strings.Repeat(`[{"a":1},{"a":1}],`, 2000) + `1]`
	name := strings.Repeat("n", 100_000)
	values := map[string]string{
		"deep":                    nested(9000, "1"),
		"deep lists":              strings.Repeat("[", 9000) + strings.Repeat("]", 9000),
		"long name above others":  `{"` + name + `":` + nested(85, items) + `}`,
		"long names in one":       nested(20, `{"`+name+`":{"`+name+`":{"`+name+`":`+items+`}}}`),
		"long text below":         nested(85, `"`+name+`"`),
		"messages of any type":    strings.Repeat(`{"@type":"type.googleapis.com/google.protobuf.Struct","value":{"x":`, 40) + `"` + name + `"` + strings.Repeat("}}", 40),
		"structures of any type":  strings.Repeat(`{"a":`, 40) + `{"@type":"type.googleapis.com/xds.type.v3.TypedStruct","type_url":"type.googleapis.com/google.protobuf.Struct","value":{"x":"` + name + `"}}` + strings.Repeat("}", 40),
		"messages in one another": strings.Repeat(`{"@type":"type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig","name":"y","typed_config":`, 20) + `{"@type":"type.googleapis.com/google.protobuf.Struct","value":{"a":"` + name + `"}}` + strings.Repeat("}", 20),
	}
	objects := map[string]string{
		"WasmPlugin":          `"apiVersion":"extensions.istio.io/v1alpha1","spec":{"url":"https://a.example/x.wasm","pluginConfig":`,
		"TrafficExtension":    `"apiVersion":"extensions.istio.io/v1alpha1","spec":{"wasm":{"url":"https://a.example/x.wasm","pluginConfig":`,
		"EnvoyFilter":         `"apiVersion":"networking.istio.io/v1alpha3","spec":{"configPatches":[{"applyTo":"CLUSTER","patch":{"operation":"ADD","value":{"name":"x","connect_timeout":"5m","metadata":{"filter_metadata":{"x":`,
		"Telemetry":           `"apiVersion":"telemetry.istio.io/v1","spec":{"metrics":[{"overrides":[{"tagOverrides":`,
		"Gateway":             `"apiVersion":"networking.istio.io/v1","spec":{"nosuch":`,
		"AuthorizationPolicy": `"apiVersion":"security.istio.io/v1","spec":{"nosuch":`,
		"Sidecar":             `"apiVersion":"networking.istio.io/v1","metadata":{"annotations":`,
	}
	const meta = `"metadata":{"name":"a","namespace":"b"},`
	for kind, begin := range objects {
		for shape, value := range values {
			text := `{"kind":"` + kind + `",` + begin + value
			if !strings.Contains(begin, "metadata\":{\"annotations") {
				text = strings.Replace(text, `"spec"`, meta+`"spec"`, 1)
			}
			if kind == "EnvoyFilter" && shape != "deep" && shape != "deep lists" { // also a patch of any filter
				text = strings.Replace(text, "CLUSTER", "HTTP_FILTER", 1)
			}
			text = closed(text)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := (&Converter{Cluster: "c", RefuseLocal: true}).DecodeJSON([]byte(text))
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > most*uint64(len(text)) {
				t.Errorf("%s with %s: %d bytes for %d; %.200v", kind, shape, used, len(text), err)
			}
			if strings.HasPrefix(shape, "deep") && (err == nil || !strings.Contains(err.Error(), "nest more than 100 deep")) {
				t.Errorf("%s with %s: %.200v, want a fault of the depth", kind, shape, err)
			}
		}
	}
}

// TestHugeQuantities: an amount that takes hours to parse is refused before.
func TestHugeQuantities(t *testing.T) {
	t.Parallel()
	const node = `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"},"status":{"capacity":{"cpu":"1e-999999999"}}}`
	if _, err := (&Converter{}).DecodeJSON([]byte(node)); err == nil || !strings.Contains(err.Error(), "is not an amount") {
		t.Errorf("JSON: %v", err)
	}
	v, err := yamldoc.ParseOnly([]byte(node))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (&Converter{}).Decode(v, snapshot.Place{}); err == nil || !strings.Contains(err.Error(), "is not an amount") {
		t.Errorf("YAML: %v", err)
	}
}

// closed ends the lists and mappings that a JSON text begins.
func closed(text string) string {
	var ends []byte
	quoted := false
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{':
			ends = append(ends, '}')
		case c == '[':
			ends = append(ends, ']')
		case c == '}', c == ']':
			ends = ends[:len(ends)-1]
		}
	}
	for i := len(ends); i > 0; i-- {
		text += string(ends[i-1])
	}
	return text
}
