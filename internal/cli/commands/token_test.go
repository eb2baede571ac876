package commands

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/clitest"
)

// TestWithoutToken: the error of a control plane that needs a token shows how to get one.
func TestWithoutToken(t *testing.T) {
	m := clitest.StartMesh(t, groups()...)
	m.Home = t.TempDir()
	for _, args := range [][]string{
		{"ps"},
		{"ps", "--fail"},
		{"explain", "endpoints", "web.apps", "--from", "client-1.apps"},
		{"log-level"},
		{"remote-clusters"},
		{"gateways"},
		{"xds", "views"},
	} {
		code, stdout, stderr := m.Run(args...)
		if code != cli.ExitFailure && code != cli.ExitFindings || !strings.Contains(stderr, "401 Unauthorized") || !strings.HasSuffix(stderr, "; run this as the user of the control plane on its machine, or pass --token-file token with a token from its cluster:\n  (umask 077 && kubectl create token default --audience istio-ca -n istio-system > token)\n") || strings.Contains(stderr, "--server") {
			t.Errorf("%v: exit code %d: %s%s", args, code, stdout, stderr)
		}
	}
}

// TestTokenFileOfOthers: a token file that other users can read causes one warning.
func TestTokenFileOfOthers(t *testing.T) {
	m := clitest.StartMesh(t, groups()...)
	m.Eventually("SYNCED", "ps")
	operator, err := filepath.Glob(filepath.Join(m.Home, ".local/state/meshctl/run/*"))
	if err != nil || len(operator) != 1 {
		t.Fatal(operator, err)
	}
	text, err := os.ReadFile(operator[0])
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	m.Home = t.TempDir()
	if code, _, stderr := m.Run("ps", "--token-file", file); code != 0 || stderr != "" {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	want := "Warning: token file " + file + ": its mode 0644 gives other users access; run chmod 600 on it\n"
	if code, stdout, stderr := m.Run("ps", "--server", m.Debug, "--token-file", file); code != 0 || !strings.Contains(stdout, "client-1.apps") || stderr != want {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}
