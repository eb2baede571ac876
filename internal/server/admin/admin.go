// Package admin serves what operators and probes read from the control plane:
// readiness, version, metrics and status pages. Everything here is read only.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
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
	// Pages are shown as JSON to loopback callers, by path.
	Pages map[string]Page
	Log   *slog.Logger
}

// Page makes what a status page shows for a request's query. An error that
// is ErrNotFound answers 404, any other 503.
type Page func(ctx context.Context, query url.Values) (any, error)

// ErrNotFound says that there is nothing of the name that was asked for.
var ErrNotFound = errors.New("not found")

// Handler serves /ready and /version to everyone, and the pages to callers on
// the loopback interface.
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
			_, _ = w.Write([]byte(line + "\n"))
		}
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { cfg.json(w, cfg.Version) })
	for path, page := range cfg.Pages {
		mux.Handle("GET "+path, loopbackOnly(func(w http.ResponseWriter, r *http.Request) {
			v, err := page(r.Context(), r.URL.Query())
			switch {
			case errors.Is(err, ErrNotFound):
				http.Error(w, err.Error(), http.StatusNotFound)
			case err != nil:
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
			default:
				cfg.json(w, v)
			}
		}))
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

// loopbackOnly refuses callers from the network, and those on loopback who
// name another host: a web page that was rebound to 127.0.0.1.
func loopbackOnly(next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !fromLoopback(r) {
			http.Error(w, "only callers on the loopback interface may read this page", http.StatusForbidden)
			return
		}
		next(w, r)
	})
}

func fromLoopback(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && peer.Addr().Unmap().IsLoopback() && isLoopbackHost(r.Host)
}

func isLoopbackHost(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}
