// Package fetch gets the dumps that package proxyconfig reads: from the admin
// interface of a running Envoy, by its address or otherwise, from a file or from
// standard input. Nothing but Post changes anything.
package fetch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/files"
)

// Request is a path and query of Envoy's admin interface.
type Request string

// The requests for each kind of rows. Masks keep the answers small.
const (
	Endpoints Request = "/clusters?format=json"
	Clusters  Request = "/config_dump?mask=dynamic_active_clusters,dynamic_warming_clusters,static_clusters"
	Listeners Request = "/config_dump?mask=dynamic_listeners,static_listeners"
	Routes    Request = "/config_dump?mask=dynamic_route_configs,static_route_configs"
	Secrets   Request = "/config_dump?mask=dynamic_active_secrets,dynamic_warming_secrets"
	// Extensions has no mask: with one, Envoy says nothing of the section
	// when it has no filters yet.
	Extensions Request = "/config_dump"
	// Assignments are endpoints, as the rest of the configuration shows them.
	Assignments Request = "/config_dump?mask=dynamic_endpoint_configs,static_endpoint_configs&include_eds"
	Bootstrap   Request = "/config_dump?mask=bootstrap"
	// All is Everything and endpoints.
	All Request = "/config_dump?include_eds"
	// Everything is all sections of one moment, but endpoints.
	Everything Request = "/config_dump"
)

// ServerInfo is how the Envoy was started.
const ServerInfo Request = "/server_info"

// Loggers lists the levels of all loggers, for Post. It sets all to a level before, if
// that is not empty, or those that are named, together.
func Loggers(all string, of map[string]string) Request {
	switch {
	case all != "":
		return Request("/logging?" + url.Values{"level": {all}}.Encode())
	case len(of) > 0:
		var paths []string
		for _, logger := range slices.Sorted(maps.Keys(of)) {
			paths = append(paths, logger+":"+of[logger])
		}
		return Request("/logging?" + url.Values{"paths": {strings.Join(paths, ",")}}.Encode())
	}
	return "/logging"
}

// Source says where a dump is. Exactly one of Admin and File is set.
type Source struct {
	// Admin is an admin interface: host:port or http://host:port.
	Admin string
	// Dial connects to Admin otherwise than by its address, which is then a name
	// only; Via says how, such as port-forward to pod apps/web-1.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	Via  string
	// File is the path of a saved dump, "-" for Stdin.
	File  string
	Stdin io.Reader
	// Timeout bounds a request to Admin, from connect until its last byte was read;
	// 0 for no bound.
	Timeout time.Duration
	// MaxSize bounds the dump, in bytes. With FixedSize, no flag allows more.
	MaxSize   int64
	FixedSize bool
}

// String names the source, for errors.
func (s *Source) String() string {
	switch s.File {
	case "":
		if s.Via != "" {
			return "admin interface " + s.Admin + " by " + s.Via
		}
		return "admin interface " + s.Admin
	case "-":
		return "standard input"
	}
	return s.File
}

// Validate checks that the source is exactly one and well formed.
func (s *Source) Validate() error {
	if (s.Admin == "") == (s.File == "") {
		return errors.New("give exactly one source: a pod, --admin host:port of a running Envoy, or --file with a saved dump")
	}
	if s.File != "" {
		return nil
	}
	_, err := baseURL(s.Admin)
	return err
}

// Read opens the source and calls read with the dump. Errors name the source. When
// ctx ends before read does, the error is why, whatever read has made of it.
func (s *Source) Read(ctx context.Context, request Request, read func(io.Reader) error) error {
	body, err := s.open(ctx, request)
	if err != nil {
		return err
	}
	return s.read(ctx, body, read)
}

// Post sends a request that may change something to the admin interface, and calls
// read with the answer.
func (s *Source) Post(ctx context.Context, request Request, read func(io.Reader) error) error {
	body, err := s.ask(ctx, http.MethodPost, request)
	if err != nil {
		return err
	}
	return s.read(ctx, body, read)
}

func (s *Source) read(ctx context.Context, body io.ReadCloser, read func(io.Reader) error) error {
	defer body.Close()
	dump := &limitedReader{r: &endingReader{ctx, body}, left: s.MaxSize, max: s.MaxSize, fixed: s.FixedSize}
	err := read(bufio.NewReaderSize(dump, 64<<10))
	switch { // whatever read makes of it
	case err != nil && dump.left < 0:
		err = dump.exceeded()
	case ctx.Err() != nil:
		err = ctx.Err()
	case err != nil && dump.failed != nil:
		err = dump.failed
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	return nil
}

// endingReader fails when ctx has ended, also where no Read waits: what is made of a
// large file takes time.
type endingReader struct {
	ctx context.Context
	r   io.Reader
}

func (e *endingReader) Read(p []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, err
	}
	return e.r.Read(p)
}

func (s *Source) open(ctx context.Context, request Request) (io.ReadCloser, error) {
	switch s.File {
	case "":
		return s.ask(ctx, http.MethodGet, request)
	case "-":
		return io.NopCloser(s.Stdin), nil
	}
	f, err := files.Wait(ctx, func() (*os.File, error) { return os.Open(s.File) }) // it may be a named pipe
	if err != nil {
		return nil, err
	}
	switch info, err := f.Stat(); {
	case err == nil && info.IsDir():
		_ = f.Close() // nothing was written
		return nil, fmt.Errorf("%s is a directory: want the file of a saved dump", s.File)
	case err == nil && info.Mode().IsRegular():
		return f, nil
	}
	return struct {
		io.Reader
		io.Closer
	}{files.Until(ctx, f), f}, nil
}

// maxErrorBody is how much of an error's body is shown, in bytes.
const maxErrorBody = 200

func (s *Source) ask(ctx context.Context, method string, request Request) (io.ReadCloser, error) {
	base, err := baseURL(s.Admin)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.bounded(ctx)
	req, err := http.NewRequestWithContext(ctx, method, base+string(request), nil)
	if err != nil {
		cancel()
		return nil, err
	}
	req.Close = true // one request
	client := dial.HTTPClient(0, nil)
	if s.Dial != nil {
		client = dial.HTTPClientVia(0, s.Dial)
	}
	resp, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		cancel()
		return nil, fmt.Errorf("ask Envoy's %s: %w", s, withoutURL(err))
	}
	resp.Body = &answer{resp.Body, ctx, cancel}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		// Envoy leaves a section out that it has nothing for, such as routes
		// without any HTTP listener, and then refuses the mask.
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
		if bytes.Contains(text, []byte("could not be successfully applied to any configs")) {
			return io.NopCloser(strings.NewReader(nothingTo(request))), nil
		}
		return nil, fmt.Errorf("%s answered %s to %s: %q; is that the port of Envoy's admin interface?",
			s, resp.Status, request, strings.TrimSpace(string(text)))
	}
	return resp.Body, nil
}

// nothingTo is the answer of an Envoy that has nothing for a request. One that has no
// endpoints has no clusters either, which is no fault; of routes the dump is to say it.
func nothingTo(request Request) string {
	if request == Assignments {
		return `{"configs": [{"@type": "type.googleapis.com/envoy.admin.v3.EndpointsConfigDump"}]}`
	}
	return "{}"
}

func (s *Source) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.Timeout == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, s.Timeout, timeoutError(s.Timeout))
}

// timeoutError is that an answer was not whole after that time.
type timeoutError time.Duration

func (t timeoutError) Error() string {
	return fmt.Sprintf("no whole answer within --timeout %s", time.Duration(t))
}

func (t timeoutError) Unwrap() error { return context.DeadlineExceeded }

// answer is the body of one whose time ctx bounds.
type answer struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelFunc
}

func (a *answer) Read(p []byte) (int, error) {
	n, err := a.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && a.ctx.Err() != nil {
		err = context.Cause(a.ctx)
	}
	return n, err
}

func (a *answer) Close() error {
	defer a.cancel()
	return a.ReadCloser.Close()
}

// withoutURL drops method and URL, which say nothing that a person typed.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// baseURL reads host:port or http://host:port.
func baseURL(admin string) (string, error) {
	hostPort := strings.TrimSuffix(strings.TrimPrefix(admin, "http://"), "/")
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil || host == "" || port == "" || strings.ContainsAny(hostPort, "/?#@") {
		return "", fmt.Errorf("admin interface %q is not host:port or http://host:port", admin)
	}
	return "http://" + hostPort, nil
}

// limitedReader fails, other than io.LimitedReader, when there is more.
type limitedReader struct {
	r         io.Reader
	left, max int64
	fixed     bool  // that is not what a flag says
	failed    error // why it could not be read, other than by its end
}

func (l *limitedReader) Read(p []byte) (int, error) {
	if int64(len(p)) > l.left+1 {
		p = p[:l.left+1]
	}
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, l.exceeded()
	}
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		l.failed = err
	}
	return n, err
}

func (l *limitedReader) exceeded() error {
	if l.fixed {
		return fmt.Errorf("the answer has more than %d MiB: is that the port of Envoy's admin interface?", l.max>>20)
	}
	return fmt.Errorf("the dump has more than %d MiB; --max-size allows more", l.max>>20)
}
