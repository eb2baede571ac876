package demo

import (
	"bufio"
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

// startShell starts a shell with a script, and returns it with the channel
// that hears of its end.
func startShell(t *testing.T, s *starter, script string) (*process, chan *process) {
	t.Helper()
	ended := make(chan *process, 1)
	p, err := s.start(command{
		role: "shell", args: []string{"-c", script}, log: filepath.Join(t.TempDir(), "log"),
	}, func(p *process) { ended <- p })
	if err != nil {
		t.Fatal(err)
	}
	return p, ended
}

// firstLine waits for the first line of the process's log.
func firstLine(t *testing.T, p *process) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		f, err := os.Open(p.log)
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(f).ReadString('\n')
		f.Close()
		if err == nil {
			return strings.TrimSpace(line)
		}
	}
	t.Fatal("the process printed nothing")
	return ""
}

func TestProcessTakesItsChildrenAlong(t *testing.T) {
	t.Parallel()
	s := newStarter("/bin/sh")
	defer s.close()
	p, ended := startShell(t, s, "sleep 1000 & echo $!; wait")
	child, err := strconv.Atoi(firstLine(t, p))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-ended
	for deadline := time.Now().Add(time.Minute); running(child); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the child %d of the process outlived it", child)
		}
	}
}

// running says whether a process exists and is not just waiting to be reaped.
func running(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestProcessCause(t *testing.T) {
	t.Parallel()
	s := newStarter("/bin/sh")
	defer s.close()
	for script, want := range map[string]string{
		"echo 'Error: no room' >&2; exit 3": "the shell ended: exit status 3: Error: no room (log: ",
		"true":                              "the shell ended without an error: it printed nothing (log: ",
		"kill -KILL $$":                     "the shell ended: signal: killed: it printed nothing (log: ",
	} {
		p, ended := startShell(t, s, script)
		<-ended
		if got := p.cause().Error(); !strings.HasPrefix(got, want) || !strings.Contains(got, p.log) {
			t.Errorf("%s: got %q, want %q", script, got, want)
		}
		if err := p.stop(t.Context()); err != nil {
			t.Errorf("stop after the end: %v", err)
		}
	}
}

func TestStartNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	s := newStarter("/does/not/exist")
	defer s.close()
	_, err := s.start(command{role: "control plane of cluster1", log: filepath.Join(t.TempDir(), "log")}, nil)
	if err == nil || !strings.Contains(err.Error(), "start the control plane of cluster1") {
		t.Errorf("error %v, want one that names the role", err)
	}
}

func TestMeshFailsWhenAProcessEnds(t *testing.T) {
	t.Parallel()
	s := newStarter("/bin/sh")
	defer s.close()
	m := &Mesh{failed: make(chan struct{})}
	ctx, cancel := m.bind(t.Context())
	defer cancel()
	p, err := s.start(command{role: "shell", args: []string{"-c", "exit 1"}, log: filepath.Join(t.TempDir(), "log")}, m.ended)
	if err != nil {
		t.Fatal(err)
	}
	<-p.done
	<-m.Failed()
	<-ctx.Done()
	if err := m.Err(); err == nil || !strings.Contains(err.Error(), "exit status 1") {
		t.Errorf("error %v, want one with the exit status", err)
	}
}

func TestProcessIsKilledInAHurry(t *testing.T) {
	t.Parallel()
	s := newStarter("/bin/sh")
	defer s.close()
	p, ended := startShell(t, s, "trap '' TERM; echo ready; while :; do sleep 1000; done")
	firstLine(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.stop(ctx); err != nil {
		t.Error(err)
	}
	if got := (<-ended).cause().Error(); !strings.Contains(got, "killed") {
		t.Errorf("it ended as %q, want it killed", got)
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
