package debug

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/serving"
)

// StatusConfig configures the status port. All functions are called for each request
// and must be safe from any goroutine.
type StatusConfig struct {
	// Ready returns the reasons why the control plane is not ready, none if it is.
	Ready func() []string
	// Notes returns further lines of /ready?verbose, for callers on this machine. May be
	// nil.
	Notes func() []string
	// Version is the page /version, as JSON.
	Version any
	// Debug serves /debug and all pages below, and checks the rights of callers.
	Debug http.Handler
	Log   *slog.Logger
}

// StatusHandler serves /ready and /version to all callers.
func StatusHandler(cfg StatusConfig) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		lines := cfg.Ready()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if len(lines) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if cfg.Notes != nil && r.URL.Query().Has("verbose") && isLocal(r) {
			lines = append(lines, cfg.Notes()...)
		}
		for _, line := range lines {
			_, _ = io.WriteString(w, output.Escape(line)+"\n")
		}
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, cfg.Version, cfg.Log) })
	if cfg.Debug != nil {
		mux.Handle("/debug", cfg.Debug)
		mux.Handle("/debug/", cfg.Debug)
	}
	return mux
}

// MonitoringConfig configures the monitoring port. The functions are called for each
// request and must be safe from any goroutine.
type MonitoringConfig struct {
	Metrics prometheus.Gatherer
	// Version is the page /version, as text.
	Version string
	// Clusters returns the page /debug/clusterz.
	Clusters func() any
	// Proxies returns the page /debug/syncz. Without it, there is no such page.
	Proxies func() any
	Log     *slog.Logger
}

// maxScrape bounds the time of a scrape: a slow reader makes others wait no longer.
const maxScrape = 10 * time.Second

// MonitoringHandler serves /metrics and /version to all callers, and /debug/clusterz and
// /debug/syncz to callers on this machine: istioctl and Kiali read them through a
// port-forward, without a token.
func MonitoringHandler(cfg MonitoringConfig) http.Handler {
	scrapes := serving.NewSlots(serving.SlotLimits{Running: 4, OfSource: 1, OfPart: 1, Waiting: 100, WaitingOfPart: 10})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", scrapes.Handler(promhttp.HandlerFor(cfg.Metrics, promhttp.HandlerOpts{}), maxScrape))
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(cfg.Version))
	})
	for path, page := range map[string]func() any{"/debug/clusterz": cfg.Clusters, "/debug/syncz": cfg.Proxies} {
		if page == nil {
			continue
		}
		pages := serving.NewSlots(serving.SlotLimits{Running: 1, OfSource: 1, OfPart: 1, Waiting: maxWaiting, WaitingOfPart: maxWaiting})
		mux.Handle("GET "+path, pages.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !isLocal(r) {
				http.Error(w, "this page is served to callers on this machine only: forward the port", http.StatusForbidden)
				return
			}
			writeJSON(w, page(), cfg.Log)
		}), maxScrape))
	}
	return mux
}

const (
	// maxStreams is the number of requests at a time on a connection of HTTP/2. API servers open
	// another connection for more.
	maxStreams = 64
	// maxReceived is what a connection of HTTP/2 may send before it is read, in bytes.
	maxReceived = 128 << 10
)

// NewServer returns a server that bounds the time and memory of each client.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams, MaxReceiveBufferPerConnection: maxReceived, MaxReceiveBufferPerStream: maxReceived},
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

func writeJSON(w http.ResponseWriter, v any, log *slog.Logger) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		log.Debug("status page not sent", "error", err)
	}
}
