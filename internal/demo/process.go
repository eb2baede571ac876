package demo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// stopTimeout is how long a child may take to end before it is killed.
const stopTimeout = 10 * time.Second

// process is a child that runs until it is stopped.
type process struct {
	role string // for messages
	pid  int
	log  string        // path of what it prints
	done chan struct{} // closed when it and all of its group have ended
	err  error         // how it ended; valid after done
}

// command is what a process is started from.
type command struct {
	role string
	args []string // without the program
	env  []string
	dir  string
	log  string
}

// starter starts children from one thread that lives as long as they do: the
// kernel ties the signal that a child gets when its parent dies to the thread
// that started it.
type starter struct {
	program string
	starts  chan func()
}

func newStarter(program string) *starter {
	s := &starter{program: program, starts: make(chan func())}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for start := range s.starts {
			start()
		}
	}()
	return s
}

// close ends the thread; all children must have ended.
func (s *starter) close() { close(s.starts) }

// start starts the child and a goroutine that waits for its end and calls
// ended.
func (s *starter) start(c command, ended func(*process)) (*process, error) {
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start the %s: %w", c.role, err)
	}
	defer log.Close()                         // the child has its own
	cmd := exec.Command(s.program, c.args...) //nolint:noctx // stop ends it in order
	cmd.Env, cmd.Dir = c.env, c.dir
	cmd.Stdout, cmd.Stderr = log, log
	isolate(cmd)

	result := make(chan error)
	s.starts <- func() { result <- cmd.Start() }
	if err := <-result; err != nil {
		return nil, fmt.Errorf("start the %s: %w", c.role, err)
	}
	p := &process{role: c.role, pid: cmd.Process.Pid, log: c.log, done: make(chan struct{})}
	go func() {
		waitExited(p.pid)
		killGroup(p.pid) // nothing that it started outlives it
		p.err = cmd.Wait()
		close(p.done)
		ended(p)
	}()
	return p, nil
}

// stop asks the process to end, and kills it when it does not, or as soon as
// ctx ends.
func (p *process) stop(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	terminate(p.pid)
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		killGroup(p.pid)
		<-p.done
		return nil
	case <-timer.C:
		killGroup(p.pid)
		<-p.done
		return fmt.Errorf("the %s did not end within %s and was killed; its log: %s", p.role, stopTimeout, p.log)
	}
}

// cause says how the process ended and what it said last. The path of its log
// is in the error.
func (p *process) cause() error {
	how := "ended without an error"
	var exit *exec.ExitError
	switch {
	case errors.As(p.err, &exit):
		how = "ended: " + exit.String()
	case p.err != nil:
		how = "ended: " + p.err.Error()
	}
	last := lastWords(p.log)
	if last == "" {
		last = "it printed nothing"
	}
	return fmt.Errorf("the %s %s: %s (log: %s)", p.role, how, last, p.log)
}

// Bounds of what is quoted from a log, in bytes.
const (
	maxLogTail  = 64 << 10
	maxLogQuote = 500
)

// lastWords returns the line of a log that most likely says why its process
// ended: the last that reports an error, else the last.
func lastWords(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > maxLogTail {
		if _, err := f.Seek(-maxLogTail, io.SeekEnd); err != nil {
			return ""
		}
	}
	var last, lastError string
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 2*maxLogTail)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" {
			continue
		}
		last = line
		for _, mark := range []string{"Error:", "level=ERROR", "\tcritical\t", "\terror\t", "panic:"} {
			if strings.Contains(line, mark) {
				lastError = line
			}
		}
	}
	if lastError != "" {
		last = lastError
	}
	if len(last) > maxLogQuote {
		last = strings.ToValidUTF8(last[:maxLogQuote], "") + "…"
	}
	return last
}
