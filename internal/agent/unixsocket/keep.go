package unixsocket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	// keepInterval is the interval between looks at the path of a socket. The agent does not watch
	// the directory: a node allows few watches to each user, and many agents have the same user.
	keepInterval = time.Second
	// nextName is the name of a socket before it takes its place. It is short, because the path
	// of a socket is.
	nextName = ".s"
)

var (
	errRemoved  = errors.New("the socket was removed")
	errReplaced = errors.New("something else is in the place of the socket")
)

// Keep puts the socket back to its path whenever it was removed or replaced, until ctx ends: a
// listener of Envoy at the same path, for example, removes the socket, and would then answer in
// the place of the agent. Open connections are not affected.
func (l *Listener) Keep(ctx context.Context) error {
	tick := time.NewTicker(keepInterval)
	defer tick.Stop()
	reported := ""
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		problem, err := l.restore()
		switch {
		case problem == nil:
			reported = ""
		case err == nil:
			l.takenBack.Add(1)
			l.log.Error("another process took the place of a socket of the agent, the agent took it back: "+
				"does an object of the mesh name this path?", "socket", l.path, "found", problem)
		case err.Error() != reported:
			reported = err.Error()
			l.log.Error("a socket of the agent is not in its place, and cannot be put back; the agent tries again",
				"socket", l.path, "found", problem, "error", err)
		}
	}
}

// TakenBack returns how often Keep put the socket back.
func (l *Listener) TakenBack() uint64 { return l.takenBack.Load() }

// inPlace returns why the file at the path is not the socket, or nil.
func (l *Listener) inPlace() error {
	info, err := os.Lstat(l.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errRemoved
	case err != nil:
		return err
	case !os.SameFile(info, l.now.file):
		return fmt.Errorf("%w: %s", errReplaced, info.Mode())
	}
	return nil
}

// restore returns the problem of the path, nil without one, and why it stays. A new socket takes
// the place of whatever is there in one step, so that no other can come between.
func (l *Listener) restore() (problem, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil
	}
	if problem = l.inPlace(); problem == nil {
		return nil, nil
	}
	next := filepath.Join(filepath.Dir(l.path), nextName)
	if err := os.MkdirAll(filepath.Dir(l.path), 0o700); err != nil {
		return problem, err
	}
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return problem, err
	}
	made, err := bind(next, l.mode)
	if err != nil {
		return problem, err
	}
	if err := os.Rename(next, l.path); err != nil {
		return problem, errors.Join(err, made.Close(), os.Remove(next))
	}
	before := l.now
	l.now = made
	return problem, before.Close()
}
