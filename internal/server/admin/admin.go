// Package admin serves what operators and probes read from the control plane:
// readiness, version, metrics and status pages. Everything here is read only.
package admin

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/output"
)

// Config says what the pages show. All functions are called for each request
// and must be safe from any goroutine.
type Config struct {
	// Ready returns the reasons why the control plane is not ready, none when
	// it is.
	Ready func() []string
	// Notes, when set, are what is to be known besides: /ready?verbose shows
	// them to loopback callers, ready or not.
	Notes func() []string
	// Version is shown as JSON.
	Version any
	// Debug serves /debug and all below; it decides itself who may read there.
	Debug http.Handler
	Log   *slog.Logger
}

// Handler serves /ready and /version to everyone.
func Handler(cfg Config) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		lines := cfg.Ready()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if len(lines) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if cfg.Notes != nil && r.URL.Query().Has("verbose") && fromLoopback(r) {
			lines = append(lines, cfg.Notes()...)
		}
		for _, line := range lines {
			_, _ = io.WriteString(w, output.Escape(line)+"\n")
		}
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { cfg.json(w, cfg.Version) })
	if cfg.Debug != nil {
		mux.Handle("/debug", cfg.Debug)
		mux.Handle("/debug/", cfg.Debug)
	}
	return mux
}

// Metrics serves /metrics and nothing else.
func Metrics(g prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(g, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	return mux
}

// NewServer bounds what a client of the handler may cost.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

func (cfg *Config) json(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		cfg.Log.Debug("status page not sent", "error", err)
	}
}

// fromLoopback is false for callers from the network, and for those on loopback
// who name another host: a web page that was rebound to 127.0.0.1.
func fromLoopback(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && peer.Addr().Unmap().IsLoopback() && localtoken.IsLocal(r.Host)
}
