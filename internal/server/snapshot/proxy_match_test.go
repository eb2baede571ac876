package snapshot

import (
	"os"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
)

// TestProxyVersions: a proxy of meshctl is matched by its own version, and by the version of Istio
// with which it is compatible.
func TestProxyVersions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, version string
		want             bool
	}{
		{"", "", true},
		{"^1\\.31.*", "meshctl-0.9.0", true},
		{"^1\\.(2[0-9]|3[0-9]).*", "meshctl-0.9.0", true},
		{"^1\\.18.*", "meshctl-0.9.0", false},
		{"^meshctl-0", "meshctl-0.9.0", true},
		{"^meshctl-1", "meshctl-0.9.0", false},
		{"^1\\.31.*", "1.18.2", false},
		{"^1\\.18.*", "1.18.2", true},
		{"^1\\.31.*", "", false},
	} {
		m, err := NewProxyMatch(c.pattern, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Matches(c.version, nil); got != c.want {
			t.Errorf("%q matches %q: %t, want %t", c.pattern, c.version, got, c.want)
		}
	}
}

// TestIstioVersion: the version of Istio is the one whose API is built in.
func TestIstioVersion(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"go.mod": "\tistio.io/api v" + mesh.IstioVersion + "\n", "docs/envoyfilter.md": "Istio " + mesh.IstioVersion + ",", "docs/agent.md": "Istio " + mesh.IstioVersion + ".",
	} {
		text, err := os.ReadFile("../../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), want) {
			t.Errorf("%s does not have %q", file, want)
		}
	}
}
