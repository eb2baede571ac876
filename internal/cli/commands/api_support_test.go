package commands

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/server/source"
)

// TestHelpListsKindsWithoutEffect: the help and the first screen of the README list the
// Istio kinds without effect, and name the page with all kinds.
func TestHelpListsKindsWithoutEffect(t *testing.T) {
	t.Parallel()
	texts := make(map[string]string)
	for _, args := range []string{"--help", "serve --help"} {
		var stdout bytes.Buffer
		if code := Run(t.Context(), &cli.Env{
			Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stdout, Now: time.Now,
			LookupEnv: func(string) (string, bool) { return "", false },
		}, strings.Fields(args)); code != cli.ExitOK {
			t.Fatalf("%s: exit code %d: %s", args, code, stdout.String())
		}
		texts[args] = stdout.String()
	}
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	screen := strings.Split(string(readme), "\n")[:30]
	texts["README.md"] = strings.Join(screen, "\n")
	for name, text := range texts {
		for _, want := range append(source.IstioKindsWithoutEffect(), "docs/api-support.md") {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not name %s", name, want)
			}
		}
	}
}
