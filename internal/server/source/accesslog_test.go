package source_test

import (
	"fmt"
	"strings"
	"testing"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// TestAccessLogSettings: valid settings are kept, and invalid ones are replaced by their
// defaults with a warning.
func TestAccessLogSettings(t *testing.T) {
	for name, tt := range map[string]struct {
		encoding, format, warning string
	}{
		"none":              {"TEXT", ``, ``},
		"text":              {"TEXT", `%START_TIME(%Y-%m-%d)% 100%% %REQ(X-A?:PATH):10% %DYNAMIC_METADATA(a.b:c)%`, ``},
		"text and newline":  {"TEXT", `%PROTOCOL%\n`, ``},
		"unknown":           {"TEXT", `a %PROTOCOLL% b`, `data.mesh: accessLogFormat: "%PROTOCOLL% b" does not begin with an operator`},
		"without argument":  {"TEXT", `%REQ%`, `"%REQ%" does not begin`},
		"with argument":     {"TEXT", `%DURATION(x)%`, `"%DURATION(x)%" does not begin`},
		"single percent":    {"TEXT", `100% of it`, `"% of it" does not begin`},
		"of Istio":          {"TEXT", `%REQ_WITHOUT_QUERY(:PATH)%`, `"%REQ_WITHOUT_QUERY(:PATH)%" does not begin`},
		"JSON":              {"JSON", `{\"a\": \"%PROTOCOL%\", \"b\": {\"c\": [\"%DURATION%\", 1]}}`, ``},
		"text for JSON":     {"JSON", `%PROTOCOL%`, `it is not a JSON object`},
		"list":              {"JSON", `[]`, `it is not a JSON object`},
		"unknown in JSON":   {"JSON", `{\"b\": {\"c\": [\"%NO%\"]}}`, `key "b": key "c": "%NO%" does not begin`},
		"too long":          {"TEXT", strings.Repeat("x", 20<<10), `it has 20480 bytes, at most 16384 are accepted`},
		"too long for JSON": {"JSON", strings.Repeat("x", 20<<10), `it has 20480 bytes`},
	} {
		t.Run(name, func(t *testing.T) {
			m, warnings := meshConfig(t, fmt.Sprintf("accessLogFile: /dev/stdout\naccessLogEncoding: %s\naccessLogFormat: \"%s\"\n", tt.encoding, tt.format))
			switch {
			case tt.warning == "" && (len(warnings) > 0 || tt.format != "" && m.GetAccessLogFormat() == ""):
				t.Errorf("format %q, warnings %q", m.GetAccessLogFormat(), warnings)
			case tt.warning != "" && (len(warnings) != 1 || !strings.Contains(warnings[0], tt.warning) || m.GetAccessLogFormat() != ""):
				t.Errorf("format %q, warnings %q, want the default and one of %q", m.GetAccessLogFormat(), warnings, tt.warning)
			}
			if m.GetAccessLogFile() != "/dev/stdout" {
				t.Errorf("file %q", m.GetAccessLogFile())
			}
		})
	}
	if m, warnings := meshConfig(t, `accessLogFile: "/var/log/\0"`); m.GetAccessLogFile() != "" || len(warnings) != 1 {
		t.Errorf("file %q, warnings %q", m.GetAccessLogFile(), warnings)
	}
}

// meshConfig converts a MeshConfig and returns the result and the warnings.
func meshConfig(t *testing.T, text string) (m *meshv1alpha1.MeshConfig, warnings []string) {
	t.Helper()
	doc := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    " +
		strings.ReplaceAll(text, "\n", "\n    ") + "\n"
	r, err := (&source.Converter{Cluster: "c"}).Decode(objects(t, doc)[0], snapshot.Place{File: "in.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range r.Warnings {
		warnings = append(warnings, w.Error())
	}
	return r.Object.(*snapshot.MeshSettings).Mesh, warnings
}
