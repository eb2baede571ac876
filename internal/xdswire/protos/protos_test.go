package protos

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// TestAllLinked: every package of version 3 of the Envoy API is linked.
func TestAllLinked(t *testing.T) {
	t.Parallel()
	linked := list(t, "-deps", ".")
	for _, name := range list(t, "github.com/envoyproxy/go-control-plane/envoy/...") {
		if strings.HasSuffix(name, "/v3") && !slices.Contains(linked, name) {
			t.Errorf("not linked: import %s in protos.go", name)
		}
	}
}

// list returns the packages that go list prints.
func list(t *testing.T, args ...string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(out))
}
