// Package process starts programs and ends them. No program outlives the process
// that started it, and no child of a program outlives that program.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// killWait bounds the wait for output after a process has ended: one of its
// children may hold the pipe.
const killWait = 2 * time.Second

// Command is a program to start.
type Command struct {
	Name string // for errors
	Path string
	Args []string // without the program's name
	Env  []string
	Dir  string // empty is the current directory
	// Stdout and Stderr receive the output, unless LogFile names a file that it is
	// appended to.
	Stdout, Stderr io.Writer
	LogFile        string
	// DeathSignal is the signal that Linux sends to the process when this process
	// dies; 0 is SIGKILL.
	DeathSignal syscall.Signal
}

// Process is a started program.
type Process struct {
	name    string
	cmd     *exec.Cmd
	logFile string
	tail    *tail // nil with a log file
	done    chan struct{}
	err     error // valid once done is closed
}

// Start starts the command; the end of ctx kills it. The process leads its own process
// group, so that Ctrl-C in a terminal reaches this process alone.
func Start(ctx context.Context, c Command) (*Process, error) {
	p := &Process{name: c.Name, logFile: c.LogFile, done: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, c.Path, c.Args...)
	p.cmd.Env, p.cmd.Dir = c.Env, c.Dir
	if c.LogFile != "" {
		log, err := os.OpenFile(c.LogFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", c.Name, err)
		}
		defer log.Close() // the process has its own descriptor
		p.cmd.Stdout, p.cmd.Stderr = log, log
	} else {
		p.tail = &tail{out: c.Stderr}
		p.cmd.Stdout, p.cmd.Stderr = reopenable(c.Stdout), p.tail
	}
	p.cmd.SysProcAttr = attributes(c.DeathSignal)
	p.cmd.WaitDelay = killWait

	started := make(chan error)
	go func() {
		// The kernel sends the death signal when the thread that started the process
		// ends, so this thread must live as long as the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		awaitExit(p.cmd.Process.Pid)
		_ = killGroup(p.cmd.Process.Pid) // fails if the process left no children
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Name, err)
	}
	return p, nil
}

// Isolate puts the command, which has not started, into its own process group. The end of
// the command's context kills the group.
func Isolate(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error {
		if err := killGroup(cmd.Process.Pid); err != nil {
			return os.ErrProcessDone
		}
		return nil
	}
	cmd.WaitDelay = killWait
}

func killGroup(leader int) error { return syscall.Kill(-leader, syscall.SIGKILL) }

// Done returns a channel that is closed when the process and its group have ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID returns the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Err reports how the process ended, with the most telling line of its output. It
// returns nil for status 0. Call it only after Done is closed.
func (p *Process) Err() error {
	var exit *exec.ExitError
	if !errors.As(p.err, &exit) {
		if p.err != nil {
			return fmt.Errorf("%s ended: %w", p.name, p.err)
		}
		return nil
	}
	how := exit.String() // "exit status 1" or "signal: killed"
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
		how += ", perhaps by the kernel because memory ran out"
	}
	if last := p.lastWords(); last != "" {
		how += "; its last words: " + last
	}
	return fmt.Errorf("%s ended: %s", p.name, how)
}

// Stop asks the process to end and waits until it has. It kills the process, and reports
// that, after the grace period or as soon as ctx ends.
func (p *Process) Stop(ctx context.Context, grace time.Duration) (killed bool, err error) {
	err = p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return false, err
	case <-ctx.Done():
	case <-time.After(grace):
	}
	err = errors.Join(err, p.signal(syscall.SIGKILL))
	<-p.done
	return true, err
}

func (p *Process) signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to %s: %w", s, p.name, err)
	}
	return nil
}

// Bounds of the kept output and of the quoted line, in bytes.
const (
	tailSize = 16 << 10
	maxQuote = 500
)

// tail passes output on and keeps its end.
type tail struct {
	out io.Writer

	mu  sync.Mutex
	buf []byte
}

// Write keeps the end of the output even if passing it on fails.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	t.buf = append(t.buf, b[max(0, len(b)-tailSize):]...)
	t.buf = t.buf[max(0, len(t.buf)-tailSize):]
	t.mu.Unlock()
	return t.out.Write(b)
}

// lastWords returns the last line of the output that reports an error, else the last line.
func (p *Process) lastWords() string {
	var text []byte
	if p.tail != nil {
		p.tail.mu.Lock()
		defer p.tail.mu.Unlock()
		text = p.tail.buf
	} else {
		text = endOf(p.logFile)
	}
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	last := lines[len(lines)-1]
	for _, line := range slices.Backward(lines) {
		if slices.ContainsFunc(errorMarks, func(mark string) bool { return bytes.Contains(line, []byte(mark)) }) {
			last = line
			break
		}
	}
	if len(last) > maxQuote {
		return strings.ToValidUTF8(string(last[:maxQuote]), "") + "…"
	}
	return string(last)
}

// errorMarks are parts of lines in which meshctl, Envoy and Go report errors.
var errorMarks = []string{"Error:", "level=ERROR", "\tcritical\t", "[critical]", "\terror\t", "panic:"}

// endOf returns the end of a file, empty if it cannot be read.
func endOf(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	text, _ := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-tailSize), tailSize)) // a part is better than nothing
	return text
}
