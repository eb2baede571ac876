package certscmd

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/cli"
)

var update = flag.Bool("update", false, "rewrite golden files")

// TestRotateRootGolden compares the output of all commands in each phase, with a fixed
// clock. Fingerprints of new keys are numbered in the order of their appearance.
func TestRotateRootGolden(t *testing.T) {
	t.Parallel()
	const golden = "testdata/rotate-root.golden"
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	dir := t.TempDir()
	certs := filepath.Join(dir, "certs")
	var out strings.Builder
	run := func(args ...string) {
		t.Helper()
		var stderr strings.Builder
		env := &cli.Env{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &stderr,
			LookupEnv: func(string) (string, bool) { return "", false }, Now: func() time.Time { return now },
		}
		fmt.Fprintf(&out, "\n# %s: meshctl %s\n", now.Format("02 15:04"), strings.Join(args, " "))
		if code := run(t.Context(), env, args); code != cli.ExitOK {
			fmt.Fprintf(&out, "exit code %d\n", code)
		}
		out.WriteString(stderr.String())
	}
	rotate := func(command string, args ...string) {
		t.Helper()
		run(append([]string{"certs", "rotate-root", command, certs}, args...)...)
	}
	run("certs", "root-ca", "--out", certs)
	run("certs", "intermediate-ca", "--root", certs, "--out", certs, "cluster1", "cluster2")
	out.Reset()
	rotate("plan")
	rotate("plan", "-o", "json")
	rotate("status")
	for _, step := range []string{"start", "next", "finish"} {
		rotate(step)
		rotate("status")
		rotate("plan")
		now = now.Add(24*time.Hour + 10*time.Minute)
		if step == "next" {
			rotate("status", "-o", "json")
		}
	}
	rotate("start")
	if err := os.Remove(filepath.Join(certs, "cluster2", "ca-cert.pem")); err != nil {
		t.Fatal(err)
	}
	rotate("status")

	text := strings.ReplaceAll(out.String(), dir+"/", "")
	text = regexp.MustCompile(`(?m)^generating .* takes a moment\n`).ReplaceAllString(text, "") // only on a slow machine
	seen := map[string]string{}
	text = regexp.MustCompile(`([0-9A-F]{2}:){7,31}[0-9A-F]{2}`).ReplaceAllStringFunc(text, func(sum string) string {
		short := sum[:23]
		if seen[short] == "" {
			seen[short] = fmt.Sprintf("%02d", len(seen)+1)
		}
		return strings.Repeat(seen[short]+":", len(sum)/3) + seen[short]
	})
	text = regexp.MustCompile(`(\.finished-\d+)-[0-9a-f]{8}`).ReplaceAllString(text, "$1-random")
	if *update {
		if err := os.WriteFile(golden, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s (-want +got; -update rewrites it):\n%s", golden, diff)
	}
}
