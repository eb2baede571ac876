package process

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// parentEnv makes the test binary start a process, print its ID and wait to be killed.
const parentEnv = "MESHCTL_TEST_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(parentEnv) != "" {
		p, err := Start(context.Background(), Command{Name: "envoy", Path: "/bin/sh", Args: []string{"-c", "exec sleep 600"}, Stdout: io.Discard, Stderr: io.Discard})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.PID())
		<-p.Done()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

const deadline = 2 * time.Minute

// run starts a shell script.
func run(t *testing.T, script string) (p *Process, stdout, stderr *bytes.Buffer) {
	t.Helper()
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	p, err := Start(context.WithoutCancel(t.Context()), Command{
		Name: "envoy", Path: "/bin/sh", Args: []string{"-c", script}, Env: []string{"GREETING=hello"},
		Stdout: stdout, Stderr: stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	return p, stdout, stderr
}

func ended(t *testing.T, p *Process) {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(deadline):
		t.Fatal("the process does not end")
	}
}

func TestOutputAndEnd(t *testing.T) {
	for name, tc := range map[string]struct{ script, want string }{
		"good":     {"echo $GREETING; echo bye >&2; exit 0", ""},
		"status":   {"echo $GREETING; echo bye >&2; exit 7", "exit status 7; its last words: bye"},
		"silent":   {"echo $GREETING; exit 3", "envoy ended: exit status 3"},
		"signal":   {"echo $GREETING; kill -SEGV $$", "signal: segmentation fault"},
		"killed":   {"echo $GREETING; kill -KILL $$", "memory ran out"},
		"critical": {`echo $GREETING; echo "now [critical] broken" >&2; echo exiting >&2; exit 1`, "last words: now [critical] broken"},
	} {
		t.Run(name, func(t *testing.T) {
			p, stdout, stderr := run(t, tc.script)
			ended(t, p)
			if stdout.String() != "hello\n" {
				t.Errorf("stdout %q", stdout)
			}
			if strings.Contains(tc.script, ">&2") && !strings.HasSuffix(stderr.String(), "\n") {
				t.Errorf("stderr %q", stderr)
			}
			switch err := p.Err(); {
			case tc.want == "" && err != nil:
				t.Errorf("got %v, want nil", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestStart(t *testing.T) {
	_, err := Start(t.Context(), Command{Name: "envoy", Path: "/no/such/envoy", Stdout: io.Discard, Stderr: io.Discard})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that the file does not exist", err)
	}
}

// started waits until the script has written something.
func started(t *testing.T, script string) *Process {
	t.Helper()
	r, w := io.Pipe()
	p, err := Start(context.WithoutCancel(t.Context()), Command{Name: "envoy", Path: "/bin/sh", Args: []string{"-c", script}, Stdout: w, Stderr: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, r) }()
	t.Cleanup(func() {
		<-p.Done()
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestStop(t *testing.T) {
	t.Run("polite", func(t *testing.T) {
		p := started(t, `trap "exit 0" TERM; echo x; while :; do sleep 0.01; done`)
		if killed, err := p.Stop(t.Context(), deadline); killed || err != nil {
			t.Errorf("killed %v, %v", killed, err)
		}
		if err := p.Err(); err != nil {
			t.Errorf("got %v: it was killed, or not asked", err)
		}
	})
	t.Run("stubborn", func(t *testing.T) {
		p := started(t, `trap "" TERM; echo x; while :; do sleep 0.01; done`)
		if killed, err := p.Stop(t.Context(), 10*time.Millisecond); !killed || err != nil {
			t.Errorf("killed %v, %v", killed, err)
		}
		if err := p.Err(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("got %v, want killed", err)
		}
	})
	t.Run("hurried", func(t *testing.T) {
		p := started(t, `trap "" TERM; echo x; while :; do sleep 0.01; done`)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if killed, err := p.Stop(ctx, deadline); !killed || err != nil {
			t.Errorf("killed %v, %v", killed, err)
		}
	})
	t.Run("gone", func(t *testing.T) {
		p, _, _ := run(t, "exit 0")
		ended(t, p)
		if killed, err := p.Stop(t.Context(), deadline); killed || err != nil {
			t.Errorf("killed %v, %v", killed, err)
		}
	})
}

func TestOwnProcessGroup(t *testing.T) {
	p := started(t, `trap "exit 0" TERM; echo x; while :; do sleep 0.01; done`)
	group, err := syscall.Getpgid(p.PID())
	if err != nil || group != p.PID() {
		t.Errorf("group %d, %v, want its own (%d): Ctrl-C would end it before it drains", group, err, p.PID())
	}
	if _, err := p.Stop(t.Context(), deadline); err != nil {
		t.Error(err)
	}
}

func TestDiesWithTheAgent(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	agent := exec.CommandContext(t.Context(), self)
	agent.Env = append(os.Environ(), parentEnv+"=1")
	out, err := agent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := agent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(line)
	}
	if err := agent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := agent.Wait(); err == nil {
		t.Error("the agent was not killed")
	}
	awaitDeath(t, pid)
}

func awaitDeath(t *testing.T, pid int) {
	t.Helper()
	timeout := time.After(deadline)
	for alive(pid) {
		select {
		case <-timeout:
			t.Fatalf("process %d lives on", pid)
		case <-time.After(time.Millisecond):
		}
	}
}

// alive reports whether a process runs; one that nobody has waited for does
// not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// TestTail: output passes whole, and only its end is kept.
func TestTail(t *testing.T) {
	var out bytes.Buffer
	p := &Process{tail: &tail{out: &out}}
	long := strings.Repeat("x", 3*tailSize) + "\nend\n"
	for _, part := range []string{long, "", "\n"} {
		if _, err := p.tail.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if out.String() != long+"\n" {
		t.Error("output is not passed on whole")
	}
	if last := p.lastWords(); last != "end" || len(p.tail.buf) > tailSize {
		t.Errorf("kept %d bytes, last line %q", len(p.tail.buf), last)
	}
}

// TestLastWords: the line of a log file that explains the end of its process.
func TestLastWords(t *testing.T) {
	for log, want := range map[string]string{
		"":                       "",
		"one\n\ntwo\n\n":         "two",
		"Error: no\nbye\n":       "Error: no",
		"a\n" + "level=ERROR b":  "level=ERROR b",
		strings.Repeat("a", 600): strings.Repeat("a", 500) + "…",
		strings.Repeat("line\n", 100_000) + "end\n": "end",
	} {
		p := &Process{logFile: filepath.Join(t.TempDir(), "log")}
		if err := os.WriteFile(p.logFile, []byte(log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := p.lastWords(); got != want {
			t.Errorf("log of %d bytes: got %q, want %q", len(log), got, want)
		}
	}
}

// TestChildrenEndWithTheProcess: the group of a process is killed when it has ended.
func TestChildrenEndWithTheProcess(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	p, err := Start(t.Context(), Command{Name: "sh", Path: "/bin/sh", Args: []string{"-c", "sleep 1000 & echo $!"}, LogFile: log})
	if err != nil {
		t.Fatal(err)
	}
	ended(t, p)
	line, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(line)))
	if err != nil {
		t.Fatal(err)
	}
	awaitDeath(t, child)
}
