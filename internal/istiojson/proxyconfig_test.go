package istiojson

import (
	"runtime"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// TestAliasesOfProxyConfig: a text that aliases make much larger is refused before it is. The test is
// not parallel: it counts all that the process allocates.
func TestAliasesOfProxyConfig(t *testing.T) {
	text := `a: &a "` + strings.Repeat("x", 60_000) + "\"\nb: [" + strings.Repeat("*a,", 4000) + "]\n"
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := OverlayProxyConfig(protojson.UnmarshalOptions{DiscardUnknown: true}, &meshv1alpha1.ProxyConfig{}, text)
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "aliases add more than 1 MiB") {
		t.Errorf("error %.200v", err)
	}
	if used := after.TotalAlloc - before.TotalAlloc; used > 50<<20 {
		t.Errorf("a text of %d bytes takes %d", len(text), used)
	}
}
