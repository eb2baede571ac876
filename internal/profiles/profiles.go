// Package profiles serves the runtime profiles of this process.
package profiles

import (
	"fmt"
	"net/http"
	"net/http/pprof" // it registers on http.DefaultServeMux, which no server uses (internal/arch)
	"runtime"
	"strconv"
	"time"
)

// Path is the path below which Handler serves profiles.
const Path = "/debug/pprof/"

const (
	heapRate      = 512 << 10 // bytes allocated per sample, Go's default
	mutexFraction = 10        // contended locks per sample
	blockRate     = 10_000    // nanoseconds of waiting per sample
	// maxProfile bounds the time for one profile, maxTrace for an execution trace,
	// which grows by megabytes a second.
	maxProfile = 120 * time.Second
	maxTrace   = 30 * time.Second
)

// Handler serves the profiles of net/http/pprof to all callers. It takes one profile at a time, as
// several would measure each other. Allocations are sampled from this call on, waits only while a
// profile of them is taken.
func Handler() http.Handler {
	runtime.MemProfileRate = heapRate
	mux := http.NewServeMux()
	mux.HandleFunc(Path, pprof.Index) // goroutine, heap, allocs and threadcreate, too
	mux.HandleFunc(Path+"profile", pprof.Profile)
	mux.HandleFunc(Path+"trace", pprof.Trace)
	sampled := func(name string, setRate func(int), rate int) {
		mux.HandleFunc(Path+name, func(w http.ResponseWriter, r *http.Request) {
			if query := r.URL.Query(); !query.Has("seconds") {
				query.Set("seconds", "10")
				r.URL.RawQuery = query.Encode()
			}
			setRate(rate)
			defer setRate(0)
			pprof.Handler(name).ServeHTTP(w, r)
		})
	}
	sampled("mutex", func(rate int) { runtime.SetMutexProfileFraction(rate) }, mutexFraction)
	sampled("block", runtime.SetBlockProfileRate, blockRate)
	busy := make(chan struct{}, 1)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := checkSeconds(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case busy <- struct{}{}:
			defer func() { <-busy }()
		default:
			http.Error(w, "another profile is being taken: ask again when it is done", http.StatusServiceUnavailable)
			return
		}
		// The server's deadline for reading the request would end the profile.
		if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// checkSeconds checks how long a profile is to take.
func checkSeconds(r *http.Request) error {
	most := maxProfile
	if r.URL.Path == Path+"trace" {
		most = maxTrace
	}
	if text := r.URL.Query().Get("seconds"); text != "" {
		if n, err := strconv.Atoi(text); err != nil || n < 1 || n > int(most.Seconds()) {
			return fmt.Errorf("seconds=%.20q: want a whole number from 1 to %.0f", text, most.Seconds())
		}
	}
	return nil
}
