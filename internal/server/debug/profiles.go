package debug

import (
	"fmt"
	"net/http"
	"net/http/pprof" // it registers on http.DefaultServeMux, which no server uses (internal/arch)
	"runtime"
	"strconv"
	"time"
)

// ProfilesPath is the path below which runtime profiles are served.
const ProfilesPath = "/debug/pprof/"

const (
	heapRate      = 512 << 10 // bytes allocated per sample, Go's default
	mutexFraction = 10        // contended locks per sample
	blockRate     = 10_000    // nanoseconds of waiting per sample
	// maxProfile bounds the time for one profile, maxTrace for an execution trace,
	// which grows by megabytes a second.
	maxProfile = 120 * time.Second
	maxTrace   = 30 * time.Second
)

// profiles serves the profiles of net/http/pprof to callers with the operator's
// token. It takes one profile at a time, as several would measure each other.
// Allocations are sampled from this call on, waits only while a profile of them
// is taken.
func (p *Pages) profiles(a HTTPConfig) http.Handler {
	runtime.MemProfileRate = heapRate
	mux := http.NewServeMux()
	mux.HandleFunc(ProfilesPath, pprof.Index) // goroutine, heap, allocs and threadcreate, too
	mux.HandleFunc(ProfilesPath+"profile", pprof.Profile)
	mux.HandleFunc(ProfilesPath+"trace", pprof.Trace)
	sampled := func(name string, setRate func(int), rate int) {
		mux.HandleFunc(ProfilesPath+name, func(w http.ResponseWriter, r *http.Request) {
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
		setHeaders(w.Header())
		if err := p.mayProfile(r, a); err != nil {
			refuse(w, err)
			return
		}
		select {
		case busy <- struct{}{}:
			defer func() { <-busy }()
		default:
			refuse(w, &Error{http.StatusServiceUnavailable, "another profile is being taken: ask again when it is done"})
			return
		}
		// The server's deadline for reading the request would end the profile.
		if err := http.NewResponseController(w).SetReadDeadline(time.Time{}); err != nil {
			refuse(w, err)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// mayProfile returns why a request gets no profile.
func (p *Pages) mayProfile(r *http.Request, a HTTPConfig) error {
	rights, err := a.judge(r, p)
	if err != nil {
		return err
	}
	if !rights.operator() {
		return &Error{http.StatusForbidden, "profiles are for the user of the control plane on its machine only"}
	}
	most := maxProfile
	if r.URL.Path == ProfilesPath+"trace" {
		most = maxTrace
	}
	if text := r.URL.Query().Get("seconds"); text != "" {
		if n, err := strconv.Atoi(text); err != nil || n < 1 || n > int(most.Seconds()) {
			return &Error{http.StatusBadRequest, fmt.Sprintf("seconds=%.20q: want a whole number from 1 to %.0f", text, most.Seconds())}
		}
	}
	return nil
}
