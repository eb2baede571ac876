// Package metrics merges the metrics of the agent, of Envoy and of the application in one
// response for Prometheus. A source that fails is left out, and counted.
package metrics

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/serving"
)

// Bounds of one scrape.
const (
	maxScrapes     = 4 // at a time
	maxEnvoy       = 128 << 20
	maxApplication = 10 << 20
	maxLine        = 256 << 10
	defaultTimeout = 10 * time.Second
	maxTimeout     = time.Minute
	// timeoutHeader holds the seconds that Prometheus waits.
	timeoutHeader = "X-Prometheus-Scrape-Timeout-Seconds"
)

const (
	textType        = "text/plain; version=0.0.4; charset=utf-8"
	openMetricsType = "application/openmetrics-text"

	acceptText        = "text/plain;version=0.0.4"
	acceptOpenMetrics = openMetricsType + ";version=1.0.0," + acceptText + ";q=0.5"
)

// Merger answers requests for the merged metrics.
type Merger struct {
	// Envoy opens Envoy's metrics, in Prometheus' text format, with the query of the request.
	// It is nil without an Envoy.
	Envoy func(ctx context.Context, query string) (io.ReadCloser, error)
	// Own describes the workload in Istio's standard metrics. The merger makes them from Envoy's statistics.
	Own Workload
	// Applications are the URLs of the application's metrics.
	Applications []url.URL
	Log          *slog.Logger

	own      http.Handler
	client   *http.Client
	running  chan struct{}
	scrapes  prometheus.Counter
	failures *prometheus.CounterVec
}

// New completes a Merger. The metrics of the agent are in registry, to which New adds the
// merger's own.
func New(m Merger, registry *prometheus.Registry) *Merger {
	m.own = promhttp.HandlerFor(registry, promhttp.HandlerOpts{DisableCompression: true})
	m.client = dial.ApplicationClient(maxTimeout)
	m.running = make(chan struct{}, maxScrapes)
	m.scrapes = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "istio_agent_scrapes_total", Help: "Requests for the merged metrics.",
	})
	m.failures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "istio_agent_scrape_failures_total", Help: "Sources that were missing in merged metrics, or not whole.",
	}, []string{"type"})
	registry.MustRegister(m.scrapes, m.failures)
	return &m
}

// response is the response of a source.
type response struct {
	body        io.ReadCloser
	openMetrics string // its content type, empty for the text format
	err         error
}

// ServeHTTP writes the metrics of the agent, then Envoy's, then the application's, in the
// format of the application. The metrics are passed on as they come.
func (m *Merger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := serving.WithTimeout(w, r, scrapeTimeout(r.Header.Get(timeoutHeader)))
	defer cancel()
	done, ok := m.start(w)
	if !ok {
		return
	}
	defer done()
	contentType, applications := m.ask(ctx, r.Header)
	out := newSink(w, contentType)
	m.note("agent", m.writeOwn(ctx, out))
	m.writeEnvoy(ctx, out, r)
	for _, a := range applications {
		m.note("application", out.copy(a, maxApplication, nil))
	}
	out.end()
}

// ServeEnvoy writes the metrics of Envoy alone.
func (m *Merger) ServeEnvoy(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := serving.WithTimeout(w, r, scrapeTimeout(r.Header.Get(timeoutHeader)))
	defer cancel()
	done, ok := m.start(w)
	if !ok {
		return
	}
	defer done()
	out := newSink(w, textType)
	m.writeEnvoy(ctx, out, r)
	out.end()
}

// start begins a scrape. done ends it.
func (m *Merger) start(w http.ResponseWriter) (done func(), ok bool) {
	select {
	case m.running <- struct{}{}:
	default:
		http.Error(w, "too many scrapes run", http.StatusServiceUnavailable)
		return nil, false
	}
	m.scrapes.Inc()
	return func() { <-m.running }, true
}

func (m *Merger) writeEnvoy(ctx context.Context, out *sink, r *http.Request) {
	if m.Envoy != nil {
		body, err := m.Envoy(ctx, r.URL.RawQuery)
		m.note("envoy", out.copy(response{body: body, err: err}, maxEnvoy, &converter{own: m.Own}))
	}
}

func (m *Merger) note(source string, err error) {
	if err != nil {
		m.failures.WithLabelValues(source).Inc()
		m.Log.Warn("metrics are missing or not whole", "source", source, "error", err)
	}
}

func scrapeTimeout(header string) time.Duration {
	seconds, err := strconv.ParseFloat(header, 64)
	if err != nil || !(seconds > 0) {
		return defaultTimeout
	}
	return time.Duration(min(seconds, maxTimeout.Seconds()) * float64(time.Second))
}

// ask requests the metrics of all applications at a time, and returns the format of the
// merged metrics. Metrics of OpenMetrics cannot follow each other, so several applications
// are asked for the text format.
func (m *Merger) ask(ctx context.Context, from http.Header) (contentType string, all []response) {
	accept := acceptText
	if len(m.Applications) == 1 && strings.Contains(strings.Join(from.Values("Accept"), ","), openMetricsType) {
		accept = acceptOpenMetrics
	}
	header := http.Header{"Accept": {accept}}
	if wait := from.Get(timeoutHeader); wait != "" {
		header.Set(timeoutHeader, wait)
	}
	all = make([]response, len(m.Applications))
	done := make(chan struct{})
	for i := range m.Applications {
		go func() { all[i] = m.askOne(ctx, m.Applications[i], header); done <- struct{}{} }()
	}
	for range m.Applications {
		<-done
	}
	contentType = textType
	for i := range all {
		switch a := &all[i]; {
		case a.openMetrics == "":
		case accept == acceptOpenMetrics:
			contentType = a.openMetrics
		default:
			_ = a.body.Close()
			*a = response{err: errors.New("the application sends OpenMetrics, but was asked for the text format")}
		}
	}
	return contentType, all
}

func (m *Merger) askOne(ctx context.Context, target url.URL, header http.Header) response {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
	if err != nil {
		return response{err: err}
	}
	req.Header = header
	resp, err := m.client.Do(req)
	if err != nil {
		return response{err: err}
	}
	contentType := resp.Header.Get("Content-Type")
	media, _, err := mime.ParseMediaType(cmp.Or(contentType, textType))
	switch {
	case resp.StatusCode != http.StatusOK:
		err = fmt.Errorf("GET %s: status %s", target.Redacted(), resp.Status)
	case err != nil:
		err = fmt.Errorf("GET %s: content type %q: %w", target.Redacted(), contentType, err)
	case media == openMetricsType:
		return response{body: resp.Body, openMetrics: contentType}
	case strings.HasPrefix(media, "text/"):
		return response{body: resp.Body}
	default:
		err = fmt.Errorf("GET %s: content type %q is not the text format of Prometheus", target.Redacted(), contentType)
	}
	return response{err: errors.Join(err, resp.Body.Close())}
}

// writeOwn writes the agent's metrics in the text format, so that their names do not depend on
// the format of the application.
func (m *Merger) writeOwn(ctx context.Context, out *sink) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", acceptText)
	own := &recorder{header: http.Header{}}
	m.own.ServeHTTP(own, req)
	if own.status >= http.StatusBadRequest {
		return errors.New(own.body.String())
	}
	return out.copy(response{body: io.NopCloser(&own.body)}, maxApplication, nil)
}

// recorder keeps a response.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }

// sink receives whole lines, so that a source that breaks off spoils no other.
type sink struct {
	w           *bufio.Writer
	openMetrics bool
}

// newSink begins a response.
func newSink(w http.ResponseWriter, contentType string) *sink {
	w.Header().Set("Content-Type", contentType)
	return &sink{w: bufio.NewWriterSize(w, 64<<10), openMetrics: contentType != textType}
}

var eof = []byte("# EOF")

// copy copies the lines that the format allows, and closes the body. The converter, which may be nil,
// replaces lines.
func (s *sink) copy(from response, limit int64, convert *converter) (err error) {
	if from.err != nil {
		return from.err
	}
	defer func() { _ = from.body.Close() }()
	if convert != nil {
		defer func() {
			if failed := convert.flush(s.w); failed != nil && err == nil {
				err = fmt.Errorf("send metrics: %w", failed)
			}
		}()
	}
	limited := &io.LimitedReader{R: from.body, N: limit + 1}
	lines := bufio.NewReaderSize(limited, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if limited.N <= 0 {
			return fmt.Errorf("more than %d MiB", limit>>20)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read metrics: %w", err)
		}
		if text := bytes.TrimRight(line, "\r\n"); s.allows(text) {
			if err := s.write(text, convert); err != nil {
				return fmt.Errorf("send metrics: %w", err)
			}
		}
		if err != nil {
			return nil
		}
	}
}

// write writes a line, unless the converter takes it.
func (s *sink) write(line []byte, convert *converter) error {
	if convert != nil {
		if convert.add(line) {
			return nil
		}
		if err := convert.flush(s.w); err != nil {
			return err
		}
		if convert.add(line) { // it begins the next metric
			return nil
		}
	}
	_, err := s.w.Write(append(line, '\n'))
	return err
}

// allows reports whether a line may be in the merged metrics. OpenMetrics has no empty lines
// and no comments, unlike the text format.
func (s *sink) allows(line []byte) bool {
	switch {
	case len(line) == 0, bytes.Equal(line, eof):
		return false
	case !s.openMetrics || line[0] != '#':
		return true
	}
	return slices.ContainsFunc(metadata, func(word string) bool { return bytes.HasPrefix(line, []byte(word)) })
}

// metadata holds the beginnings of the comments that OpenMetrics allows.
var metadata = []string{"# TYPE ", "# HELP ", "# UNIT "}

func (s *sink) end() {
	if s.openMetrics {
		_, _ = s.w.Write(append(eof, '\n')) // the next line returns its error
	}
	_ = s.w.Flush() // a client that left needs no metrics
}
