package commands

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestVersionReportsFIPS: meshctl reports FIPS 140-3 when the module is on, and only then.
func TestVersionReportsFIPS(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]bool{"off": false, "on": true, "only": true} {
		cmd := exec.CommandContext(t.Context(), "meshctl", "version")
		cmd.Env = append(os.Environ(), "GODEBUG=fips140="+mode)
		out, err := cmd.CombinedOutput()
		if err != nil || strings.Contains(string(out), "FIPS") != want {
			t.Errorf("fips140=%s: got %v, %s, want FIPS: %v", mode, err, out, want)
		}
	}
}
