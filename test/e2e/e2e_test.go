// Package e2e runs the whole product with real Envoys.
package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// deadline is how long anything may take on a slow machine.
const deadline = time.Minute

// meshctl is the path of the program under test, built once.
var meshctl string

// envMeshctl is the environment variable by which a test that starts itself
// again hands meshctl on.
const envMeshctl = "E2E_MESHCTL"

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	if meshctl = os.Getenv(envMeshctl); meshctl != "" {
		return m.Run()
	}
	meshctl = filepath.Join(dir, "meshctl")
	build := exec.Command("go", "build", "-o", meshctl, "./cmd/meshctl")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build meshctl: %v\n%s", err, out)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

// eventually waits until condition returns nil.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	timeout := time.NewTimer(deadline)
	defer timeout.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-timeout.C:
			t.Fatalf("%s: not after %s: %v", what, deadline, err)
		}
	}
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
