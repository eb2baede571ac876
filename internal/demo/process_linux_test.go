package demo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// startShell starts a shell with a script, and returns it and a channel that receives it
// when it has ended.
func startShell(t *testing.T, script string) (*child, chan *child) {
	t.Helper()
	ended := make(chan *child, 1)
	c, err := startChild(t.Context(), "/bin/sh", command{
		role: "shell", args: []string{"-c", script}, log: filepath.Join(t.TempDir(), "log"),
	}, func(c *child) { ended <- c })
	if err != nil {
		t.Fatal(err)
	}
	return c, ended
}

// running says whether a process exists and is not just waiting to be reaped.
func running(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestChildCause(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]string{
		"echo 'Error: no room' >&2; exit 3": "the shell ended: exit status 3; its last words: Error: no room (log: ",
		"true":                              "the shell ended without an error (log: ",
	} {
		c, ended := startShell(t, script)
		<-ended
		if got := c.cause().Error(); !strings.HasPrefix(got, want) || !strings.Contains(got, c.log) {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
		if err := c.stop(t.Context()); err != nil {
			t.Errorf("stop after the end: %v", err)
		}
	}
}

func TestStartNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	_, err := startChild(t.Context(), "/does/not/exist", command{role: "control plane of cluster1", log: filepath.Join(t.TempDir(), "log")}, nil)
	if err == nil || !strings.Contains(err.Error(), "start the control plane of cluster1") {
		t.Errorf("error %v, want one that names the role", err)
	}
}

func TestMeshFailsWhenAChildEnds(t *testing.T) {
	t.Parallel()
	m := &Mesh{}
	m.failed, m.fail = context.WithCancelCause(t.Context())
	ctx, cancel := m.bind(t.Context())
	defer cancel()
	_, err := startChild(t.Context(), "/bin/sh", command{role: "shell", args: []string{"-c", "exit 1"}, log: filepath.Join(t.TempDir(), "log")}, m.ended)
	if err != nil {
		t.Fatal(err)
	}
	<-m.Failed()
	<-ctx.Done()
	if err := m.Err(); err == nil || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("error %v, want one with the exit status", err)
	}
}

// Not parallel: a program that was just written must not be open in a child
// that another test starts.
func TestHangingEnvoy(t *testing.T) {
	dir := t.TempDir()
	path, started := filepath.Join(dir, "envoy"), filepath.Join(dir, "child")
	script := "#!/bin/sh\nsleep 1000 &\necho $! > " + started + ".tmp\nmv " + started + ".tmp " + started + "\nwait\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := printVersion(ctx, path)
		result <- err
	}()
	var child int
	for deadline := time.Now().Add(time.Minute); child == 0; time.Sleep(time.Millisecond) {
		if data, err := os.ReadFile(started); err == nil {
			child, _ = strconv.Atoi(strings.TrimSpace(string(data)))
		}
		if time.Now().After(deadline) {
			t.Fatal("the program does not start")
		}
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want that of the context", err)
	}
	for deadline := time.Now().Add(time.Minute); running(child); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the child %d of the program outlived it", child)
		}
	}
}
