package jwks

import (
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestFaults: the first problem of a key set counts, and one without a problem has no fault.
func TestFaults(t *testing.T) {
	t.Parallel()
	bad, good := snapshot.KeySource{URL: "https://bad.example"}, snapshot.KeySource{URL: "https://good.example"}
	faults := Faults([]Status{
		{Source: good.String(), Keys: 1},
		{Source: bad.String(), Keys: 2},
		{Source: bad.String(), Keys: 1, Problem: "first"},
		{Source: bad.String(), Problem: "second"},
	})
	for _, tt := range []struct {
		source snapshot.KeySource
		fault  string
		kept   bool
	}{{bad, "first", true}, {good, "", false}, {snapshot.KeySource{URL: "https://other.example"}, "", false}} {
		if fault, kept := faults(tt.source); fault != tt.fault || kept != tt.kept {
			t.Errorf("%s: %q %t, want %q %t", tt.source, fault, kept, tt.fault, tt.kept)
		}
	}
}
