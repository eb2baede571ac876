// Package e2e runs the whole product with real Envoys.
package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/test/harness"
)

// deadline is how long anything may take on a slow machine.
const deadline = 2 * time.Minute

// meshctl is the path of the program under test, built once.
var meshctl string

// envMeshctl is the environment variable by which a test that starts itself
// again hands meshctl on.
const envMeshctl = "E2E_MESHCTL"

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if target := os.Getenv(envTarget); target != "" {
		return callHealth(target)
	}
	if meshctl = os.Getenv(envMeshctl); meshctl != "" {
		return m.Run()
	}
	return harness.Main(m, &meshctl)
}

// eventually waits until condition returns nil.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	harness.Eventually(t, deadline, what, condition)
}

// processesIn returns the processes whose working directory is dir or below:
// that is where the demo runs its children.
func processesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, proc := range entries {
		cwd, err := os.Readlink(filepath.Join(proc, "cwd"))
		if err != nil || cwd != dir && !strings.HasPrefix(cwd, dir+"/") {
			continue // it ended, or is another's
		}
		line, err := os.ReadFile(filepath.Join(proc, "cmdline"))
		if err != nil || len(line) == 0 {
			continue // it ended
		}
		out[filepath.Base(proc)] = string(bytes.ReplaceAll(line, []byte{0}, []byte(" ")))
	}
	return out
}

// noProcessesIn fails when a process of dir is left.
func noProcessesIn(t *testing.T, dir string) {
	t.Helper()
	for pid, line := range processesIn(t, dir) {
		t.Errorf("process %s is left: %s", pid, line)
	}
}

// emptyDir fails when something is left in dir.
func emptyDir(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("%s is left", filepath.Join(dir, e.Name()))
	}
}
