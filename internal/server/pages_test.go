package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/server/xds"
	"github.com/meshctl/meshctl/internal/server/xds/history"
)

// TestNACKNotes: refused resources are listed, a bounded number of them.
func TestNACKNotes(t *testing.T) {
	since := time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC)
	var page xds.NACKs
	if got := nackNotes(page); len(got) != 0 {
		t.Errorf("notes of nothing: %q", got)
	}
	page.Refused = []history.QuarantinedResource{{Type: "CDS", Resource: "a", Streams: []string{"p.ns-1"}, Since: since, Error: "no\ngood"}}
	want := []string{
		"refused: 1",
		`CDS a: refused by 1 stream since 2026-05-04T03:02:01Z: "no\ngood"`,
	}
	if d := cmp.Diff(want, nackNotes(page)); d != "" {
		t.Error(d)
	}
	for i := range 2 * maxNotes {
		page.Refused = append(page.Refused, history.QuarantinedResource{Resource: fmt.Sprint(i)})
	}
	got := nackNotes(page)
	if more := "and 51 more refused resources; all are in: meshctl xds nacks -o json"; len(got) != maxNotes+2 || got[maxNotes+1] != more {
		t.Errorf("%d notes, want %q after %d: %q", len(got), more, maxNotes, got)
	}
}

// TestDuplicateExtensionsAreShown: /ready?verbose names an extension of two EnvoyFilters.
func TestDuplicateExtensionsAreShown(t *testing.T) {
	filter := func(name string) string {
		return fmt.Sprintf(`apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: %s, namespace: sample}
spec:
  configPatches:
  - applyTo: EXTENSION_CONFIG
    patch:
      operation: ADD
      value:
        name: greeting
        typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua}
`, name)
	}
	var dir string
	s := start(t, func(c *Config) {
		dir = c.ConfigDir
		write(t, dir, "a.yaml", filter("a"))
		write(t, dir, "b.yaml", filter("b"))
	})
	const want = `EnvoyFilter sample/b (cluster cluster1): proxies that EnvoyFilter sample/a (cluster cluster1) also selects get extension "greeting" from there` + "\n"
	if _, body := get(t, s, "/ready?verbose"); !strings.Contains(body, want) {
		t.Errorf("/ready?verbose says %s, want %s", body, want)
	}
	if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the end of it", func() bool {
		_, body := get(t, s, "/ready?verbose")
		return !strings.Contains(body, "greeting")
	})
}
