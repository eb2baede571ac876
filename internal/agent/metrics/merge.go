// Package metrics merges the metrics of the agent, of Envoy and of the application in one
// response for Prometheus. A source that fails is left out, and counted.
package metrics

import (
	"bufio"
	"bytes"
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
	// maxScrapes is the number of scrapes at a time, each of another address; maxWaiting wait.
	maxScrapes, maxWaiting = 4, 100

	maxEnvoy       = 128 << 20
	maxApplication = 10 << 20
	maxLine        = 256 << 10
	defaultTimeout = 10 * time.Second
	maxTimeout     = time.Minute
	// A source has its share of the time of a scrape, so that one that hangs hides no other: the
	// applications answer until answerShare, Envoy's metrics are complete at envoyShare, and the
	// applications' at endShare, before Prometheus gives up.
	answerShare, envoyShare, endShare = 0.6, 0.8, 0.95
	// timeoutHeader holds the seconds that Prometheus waits.
	timeoutHeader = "X-Prometheus-Scrape-Timeout-Seconds"
)

const (
	textType        = "text/plain; version=0.0.4; charset=utf-8"
	openMetricsType = "application/openmetrics-text"
	protobufType    = "application/vnd.google.protobuf"

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
	// Peers knows the workloads of callers. It may be nil.
	Peers *Peers
	// Applications are the URLs of the application's metrics.
	Applications []url.URL
	Log          *slog.Logger

	own      http.Handler
	client   *http.Client
	running  *serving.Slots
	scrapes  prometheus.Counter
	failures *prometheus.CounterVec
}

// New completes a Merger. The metrics of the agent are in registry, to which New adds the
// merger's own.
func New(m Merger, registry *prometheus.Registry) *Merger {
	m.own = promhttp.HandlerFor(registry, promhttp.HandlerOpts{DisableCompression: true})
	m.client = dial.ApplicationClient(maxTimeout)
	m.running = serving.NewSlots(serving.SlotLimits{
		Running: maxScrapes, OfSource: 1, OfPart: 1, Waiting: maxWaiting, WaitingOfPart: maxWaiting / 10,
	})
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
	openMetrics string             // its content type, empty for the text format
	end         context.CancelFunc // of the request, nil without one
	err         error
}

// scrape is the time of one scrape.
type scrape struct {
	context.Context
	began time.Time
	takes time.Duration
}

// within returns the context until a share of the time is over.
func (s *scrape) within(share float64) (context.Context, context.CancelFunc) {
	return context.WithDeadline(s, s.began.Add(time.Duration(share*float64(s.takes))))
}

// ServeHTTP writes the metrics of the agent, then Envoy's, then the application's, in the
// format of the application. The metrics are passed on as they come.
func (m *Merger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s, done, ok := m.start(w, r)
	if !ok {
		return
	}
	defer done()
	contentType, applications := m.ask(s, r.Header)
	out := newSink(w, contentType)
	m.note("agent", m.writeOwn(s, out))
	m.writeEnvoy(s, envoyShare, out, r)
	for i, a := range applications {
		share := envoyShare + (endShare-envoyShare)*float64(i+1)/float64(len(applications))
		m.note("application", m.copyWithin(s, share, out, a))
	}
	out.end()
}

// copyWithin copies the metrics of an application until a share of the time is over.
func (m *Merger) copyWithin(s *scrape, share float64, out *sink, a response) error {
	if a.err != nil {
		return a.err
	}
	ctx, cancel := s.within(share)
	defer cancel()
	defer context.AfterFunc(ctx, a.end)()
	defer a.end()
	err := out.copy(a, maxApplication, isMetric, nil)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%w: its share of the scrape's time is over", err)
	}
	return err
}

// ServeEnvoy writes the metrics of Envoy alone.
func (m *Merger) ServeEnvoy(w http.ResponseWriter, r *http.Request) {
	s, done, ok := m.start(w, r)
	if !ok {
		return
	}
	defer done()
	out := newSink(w, textType)
	m.writeEnvoy(s, endShare, out, r)
	out.end()
}

// start begins a scrape when it is its turn. done ends it.
func (m *Merger) start(w http.ResponseWriter, r *http.Request) (s *scrape, done func(), ok bool) {
	takes := scrapeTimeout(r.Header.Get(timeoutHeader))
	ctx, cancel := serving.WithTimeout(w, r, takes)
	leave, err := m.running.Enter(ctx, serving.Caller{Source: serving.SourceOf(r.RemoteAddr).String()})
	if err != nil {
		cancel()
		http.Error(w, "too many scrapes run", http.StatusServiceUnavailable)
		return nil, nil, false
	}
	deadline, _ := ctx.Deadline()
	m.scrapes.Inc()
	return &scrape{ctx, deadline.Add(-takes), takes}, func() { cancel(); leave() }, true
}

func (m *Merger) writeEnvoy(s *scrape, share float64, out *sink, r *http.Request) {
	if m.Envoy == nil {
		return
	}
	ctx, cancel := s.within(share)
	defer cancel()
	body, err := m.Envoy(ctx, r.URL.RawQuery)
	m.note("envoy", out.copy(response{body: body, err: err}, maxEnvoy, nil, &converter{own: m.Own, peers: m.Peers}))
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
func (m *Merger) ask(s *scrape, from http.Header) (contentType string, all []response) {
	accept := acceptText
	if len(m.Applications) == 1 && strings.Contains(strings.Join(from.Values("Accept"), ","), openMetricsType) {
		accept = acceptOpenMetrics
	}
	header := http.Header{"Accept": {accept}}
	if wait := from.Get(timeoutHeader); wait != "" {
		header.Set(timeoutHeader, wait)
	}
	all = make([]response, len(m.Applications))
	answering, cancel := s.within(answerShare)
	defer cancel()
	done := make(chan struct{})
	for i := range m.Applications {
		go func() { all[i] = m.askOne(s, answering, m.Applications[i], header); done <- struct{}{} }()
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
			a.end()
			*a = response{err: errors.New("the application sends OpenMetrics, but was asked for the text format")}
		}
	}
	return contentType, all
}

// askOne requests the metrics of an application, which must begin to answer before answering ends.
func (m *Merger) askOne(ctx, answering context.Context, target url.URL, header http.Header) response {
	ctx, end := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
	if err != nil {
		end()
		return response{err: err}
	}
	req.Header = header
	answered := context.AfterFunc(answering, end)
	resp, err := m.client.Do(req)
	answered()
	if err != nil {
		end()
		if answering.Err() != nil {
			err = fmt.Errorf("%w: no answer within its share of the scrape's time", err)
		}
		return response{err: err}
	}
	contentType := resp.Header.Get("Content-Type")
	media, _, _ := mime.ParseMediaType(contentType) // many applications name another type, so the lines count
	switch {
	case resp.StatusCode != http.StatusOK:
		err = fmt.Errorf("GET %s: status %s", target.Redacted(), resp.Status)
	case media == openMetricsType:
		return response{body: resp.Body, openMetrics: contentType, end: end}
	case media == "text/html" || media == protobufType:
		err = fmt.Errorf("GET %s: content type %q is not the text format of Prometheus", target.Redacted(), contentType)
	default:
		return response{body: resp.Body, end: end}
	}
	err = errors.Join(err, resp.Body.Close())
	end()
	return response{err: err}
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
	return out.copy(response{body: io.NopCloser(&own.body)}, maxApplication, nil, nil)
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

// copy copies the lines that the format allows, up to the first that is not valid, and closes the
// body. valid may be nil. The converter, which may be nil, replaces lines.
func (s *sink) copy(from response, limit int64, valid func([]byte) bool, convert *converter) (err error) {
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
	for n := 1; ; n++ {
		line, err := lines.ReadSlice('\n')
		if limited.N <= 0 {
			return fmt.Errorf("more than %d MiB", limit>>20)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read metrics: %w", err)
		}
		text := bytes.TrimRight(line, "\r\n")
		if valid != nil && !valid(text) {
			return fmt.Errorf("line %d is not in the text format of Prometheus", n)
		}
		if s.allows(text) {
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
