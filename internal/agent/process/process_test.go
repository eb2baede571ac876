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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The test's own program can play the agent that dies: it starts a process,
// prints its number and waits to be killed.
const parentEnv = "MESHCTL_TEST_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(parentEnv) != "" {
		p, err := Start(context.Background(), Command{Path: "/bin/sh", Args: []string{"-c", "exec sleep 600"}, Stdout: io.Discard, Stderr: io.Discard})
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

const deadline = 30 * time.Second

// run starts a shell script.
func run(t *testing.T, script string) (p *Process, stdout, stderr *bytes.Buffer) {
	t.Helper()
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	p, err := Start(context.WithoutCancel(t.Context()), Command{
		Path: "/bin/sh", Args: []string{"-c", script}, Env: []string{"GREETING=hello"},
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
	_, err := Start(t.Context(), Command{Path: "/no/such/envoy", Stdout: io.Discard, Stderr: io.Discard})
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want that the file does not exist", err)
	}
}

// started waits until the script has written something.
func started(t *testing.T, script string) *Process {
	t.Helper()
	r, w := io.Pipe()
	p, err := Start(context.WithoutCancel(t.Context()), Command{Path: "/bin/sh", Args: []string{"-c", script}, Stdout: w, Stderr: io.Discard})
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
		if err := p.Stop(deadline); err != nil {
			t.Error(err)
		}
		if err := p.Err(); err != nil {
			t.Errorf("got %v: it was killed, or not asked", err)
		}
	})
	t.Run("stubborn", func(t *testing.T) {
		p := started(t, `trap "" TERM; echo x; while :; do sleep 0.01; done`)
		if err := p.Stop(10 * time.Millisecond); err != nil {
			t.Error(err)
		}
		if err := p.Err(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("got %v, want killed", err)
		}
	})
	t.Run("gone", func(t *testing.T) {
		p, _, _ := run(t, "exit 0")
		ended(t, p)
		if err := p.Stop(0); err != nil {
			t.Error(err)
		}
	})
}

func TestOwnProcessGroup(t *testing.T) {
	p := started(t, `trap "exit 0" TERM; echo x; while :; do sleep 0.01; done`)
	group, err := syscall.Getpgid(p.PID())
	if err != nil || group != p.PID() {
		t.Errorf("group %d, %v, want its own (%d): Ctrl-C would end it before it drains", group, err, p.PID())
	}
	if err := p.Stop(deadline); err != nil {
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
	timeout := time.After(deadline)
	for alive(pid) {
		select {
		case <-timeout:
			t.Fatalf("process %d outlives the agent", pid)
		case <-time.After(5 * time.Millisecond):
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

func TestTail(t *testing.T) {
	var out bytes.Buffer
	tl := &tail{out: &out}
	long := strings.Repeat("x", 3*tailSize) + "\nend\n"
	for _, part := range []string{long, "", "\n"} {
		if _, err := tl.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if out.String() != long+"\n" {
		t.Error("output is not passed on whole")
	}
	if tl.last() != "end" || len(tl.buf) > tailSize {
		t.Errorf("kept %d bytes, last line %q", len(tl.buf), tl.last())
	}
}
