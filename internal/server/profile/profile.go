// Package profile gives the user of a process its runtime profiles over a Unix
// socket, at the paths of net/http/pprof, in the format of go tool pprof. Nobody
// else can ask, and nothing is measured while nobody does, but for the heap.
package profile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/serving"
)

const (
	// heapRate is the size of which one allocation is sampled, Go's default.
	heapRate = 512 << 10
	// maxSeconds bounds how long a profile is taken, maxTrace a trace, which grows
	// by megabytes a second.
	maxSeconds = 120
	maxTrace   = 30
	// mutexFraction is of how many waits for a lock one is sampled, blockRate of how
	// many nanoseconds of waiting.
	mutexFraction = 10
	blockRate     = 10_000
)

// Server serves profiles.
type Server struct {
	path     string
	listener *net.UnixListener
	log      *slog.Logger
	// busy has a token while a profile is taken: several would measure each other.
	busy chan struct{}
}

// Listen takes the socket, of mode 0600. A socket that nobody answers on is
// replaced; one in use, and anything that is no socket, is an error. From then on
// allocations are sampled.
func Listen(path string, log *slog.Logger) (*Server, error) {
	if err := free(path); err != nil {
		return nil, err
	}
	// It is made where nobody else can reach it until it has its mode.
	dir, err := os.MkdirTemp(filepath.Dir(path), ".pprof-")
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	defer func() { _ = os.Remove(dir) }()
	hidden := filepath.Join(dir, "s")
	if len(hidden) > serving.MaxSocketPath {
		return nil, fmt.Errorf("socket path %s is too long by %d bytes: choose a shorter directory", path, len(hidden)-serving.MaxSocketPath)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(hidden, 0o600); err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", path, err), l.Close(), os.Remove(hidden))
	}
	runtime.MemProfileRate = heapRate
	return &Server{path: path, listener: l, log: log, busy: make(chan struct{}, 1)}, nil
}

// free says why the path cannot be taken.
func free(path string) error {
	_, err := serving.ProbeSocket(path)
	switch {
	case errors.Is(err, serving.ErrNoSocket):
		return fmt.Errorf("%w: remove it or choose another path", err)
	case errors.Is(err, serving.ErrInUse):
		return fmt.Errorf("%w: choose another path", err)
	}
	return err
}

// Close gives the socket up.
func (s *Server) Close() error { return errors.Join(s.listener.Close(), os.Remove(s.path)) }

// Run serves until ctx ends, which also ends what is being taken.
func (s *Server) Run(ctx context.Context) error {
	srv := &http.Server{
		Handler: s.handler(), BaseContext: func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: (maxSeconds + 30) * time.Second,
		IdleTimeout: 10 * time.Second, MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	err := serving.HTTP(ctx, srv, s.listener)
	_ = os.Remove(s.path)
	if err != nil {
		return fmt.Errorf("serve profiles at %s: %w", s.path, err)
	}
	return nil
}

// paths are where the profiles are.
const paths = "/debug/pprof/"

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	take := func(name string, f func(w http.ResponseWriter, r *http.Request) error) {
		mux.HandleFunc("GET "+paths+name, func(w http.ResponseWriter, r *http.Request) { s.take(w, r, f) })
	}
	take("profile", cpu)
	take("trace", execution)
	take("mutex", func(w http.ResponseWriter, r *http.Request) error {
		return contention(w, r, "mutex", func() { runtime.SetMutexProfileFraction(mutexFraction) }, func() { runtime.SetMutexProfileFraction(0) })
	})
	take("block", func(w http.ResponseWriter, r *http.Request) error {
		return contention(w, r, "block", func() { runtime.SetBlockProfileRate(blockRate) }, func() { runtime.SetBlockProfileRate(0) })
	})
	names := []string{"allocs", "goroutine", "heap", "threadcreate"}
	for _, name := range names {
		take(name, func(w http.ResponseWriter, r *http.Request) error { return snapshot(w, r, name) })
	}
	list := strings.Join(append(names, "block?seconds=10", "mutex?seconds=10", "profile?seconds=30", "trace?seconds=1"), "\n") + "\n"
	mux.HandleFunc("GET "+paths+"{$}", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, list) })
	return mux
}

// usage is an error of who asks.
type usage struct{ error }

// take takes one profile at a time.
func (s *Server) take(w http.ResponseWriter, r *http.Request, f func(http.ResponseWriter, *http.Request) error) {
	select {
	case s.busy <- struct{}{}:
		defer func() { <-s.busy }()
	default:
		http.Error(w, "another profile is being taken: ask again when it is done", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Content-Type", "application/octet-stream")
	err := f(w, r)
	if _, ok := errors.AsType[usage](err); ok {
		http.Error(w, err.Error(), http.StatusBadRequest)
	} else if err != nil {
		s.log.Warn("profile not given", "path", r.URL.Path, "error", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func number(r *http.Request, name string, otherwise, least, most int) (int, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, usage{fmt.Errorf("%s=%.20q: want a whole number from %d to %d", name, text, least, most)}
	}
	return n, nil
}

// last waits while a profile is taken, no longer than its reader does.
func last(r *http.Request, seconds int) {
	t := time.NewTimer(time.Duration(seconds) * time.Second)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.Context().Done():
	}
}

func cpu(w http.ResponseWriter, r *http.Request) error {
	seconds, err := number(r, "seconds", 30, 1, maxSeconds)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(w); err != nil {
		return err
	}
	last(r, seconds)
	pprof.StopCPUProfile()
	return nil
}

func execution(w http.ResponseWriter, r *http.Request) error {
	seconds, err := number(r, "seconds", 1, 1, maxTrace)
	if err != nil {
		return err
	}
	if err := trace.Start(w); err != nil {
		return err
	}
	last(r, seconds)
	trace.Stop()
	return nil
}

// contention samples waits for as long as it is asked to. The profile is of all
// the times that it was asked for.
func contention(w http.ResponseWriter, r *http.Request, name string, on, off func()) error {
	seconds, err := number(r, "seconds", 10, 1, maxSeconds)
	if err != nil {
		return err
	}
	on()
	last(r, seconds)
	off()
	return snapshot(w, r, name)
}

// snapshot writes a profile as it is, or as text with debug=1 or 2.
func snapshot(w http.ResponseWriter, r *http.Request, name string) error {
	debug, err := number(r, "debug", 0, 0, 2)
	if err != nil {
		return err
	}
	if debug > 0 {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	if name == "heap" && r.URL.Query().Get("gc") == "1" {
		runtime.GC()
	}
	return pprof.Lookup(name).WriteTo(w, debug)
}
