// Package process runs Envoy: it starts it, passes its output on, ends it,
// and sees to it that Envoy does not outlive the agent.
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
	"sync"
	"syscall"
	"time"
)

// killWait bounds how long output is read on after the process is gone, for
// the case that a child of it holds the pipe.
const killWait = 2 * time.Second

// Command is a program to run.
type Command struct {
	Path           string
	Args           []string // without the program's name
	Env            []string
	Stdout, Stderr io.Writer
}

// Process is a program that was started.
type Process struct {
	cmd  *exec.Cmd
	tail *tail
	done chan struct{}
	err  error // valid once done is closed
}

// Start runs the command until ctx ends, which kills it. The process gets a process group of its own, so
// that Ctrl-C in a terminal reaches the agent alone, and on Linux is killed by
// the kernel when the agent dies.
func Start(ctx context.Context, c Command) (*Process, error) {
	p := &Process{tail: &tail{out: c.Stderr}, done: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, c.Path, c.Args...)
	p.cmd.Env = c.Env
	p.cmd.Stdout = reopenable(c.Stdout)
	p.cmd.Stderr = p.tail
	p.cmd.SysProcAttr = sysProcAttr()
	p.cmd.WaitDelay = killWait

	started := make(chan error)
	go func() {
		// The kernel ties a process to the thread that started it, not to
		// the agent: this thread has to live as long as the process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start envoy: %w", err)
	}
	return p, nil
}

// reopenable is a standard output that a process can open again as /dev/stdout,
// as Envoy does for access logs. Linux does not open sockets, such as the one that
// systemd gives: for these there is a pipe in between.
func reopenable(w io.Writer) io.Writer {
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeSocket != 0 {
			return struct{ io.Writer }{f}
		}
	}
	return w
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID is the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Err says how the process ended: nil for status 0, else its status or signal
// and the last it said. It may be called once Done is closed.
func (p *Process) Err() error {
	var exit *exec.ExitError
	if !errors.As(p.err, &exit) {
		if p.err != nil {
			return fmt.Errorf("envoy ended: %w", p.err)
		}
		return nil
	}
	how := exit.String() // "exit status 1" or "signal: killed"
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == syscall.SIGKILL {
		how += ", perhaps by the kernel because memory ran out"
	}
	if last := p.tail.last(); last != "" {
		return fmt.Errorf("envoy ended: %s; its last words: %s", how, last)
	}
	return fmt.Errorf("envoy ended: %s", how)
}

// Stop asks the process to end, and kills it when it has not after grace. It
// returns when the process is gone.
func (p *Process) Stop(grace time.Duration) error {
	err := p.signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return err
	case <-timer.C:
	}
	err = errors.Join(err, p.signal(syscall.SIGKILL))
	<-p.done
	return err
}

func (p *Process) signal(s os.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to envoy: %w", s, err)
	}
	return nil
}

// tail passes output on and keeps the end of it.
type tail struct {
	out io.Writer

	mu  sync.Mutex
	buf []byte
}

const tailSize = 4 << 10

// Write never fails to keep the end, even if passing on fails.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	t.buf = append(t.buf, b[max(0, len(b)-tailSize):]...)
	t.buf = t.buf[max(0, len(t.buf)-tailSize):]
	t.mu.Unlock()
	return t.out.Write(b)
}

// last returns the last line that tells of an error, else the last line.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := bytes.Split(bytes.TrimSpace(t.buf), []byte("\n"))
	for _, line := range slices.Backward(lines) {
		for _, level := range []string{"\tcritical\t", "[critical]", "\terror\t"} {
			if bytes.Contains(line, []byte(level)) {
				return string(line)
			}
		}
	}
	return string(lines[len(lines)-1])
}
