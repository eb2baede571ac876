// Package fetch gets the dumps that package proxyconfig reads: from the admin interface
// of a running Envoy, from a file or from standard input. Only Post may change an Envoy.
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

	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"

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
	// Extensions has no mask, as a masked response of an Envoy without filters does not
	// have the section.
	Extensions Request = "/config_dump"
	// Assignments are the endpoints of the config dump.
	Assignments Request = "/config_dump?mask=dynamic_endpoint_configs,static_endpoint_configs&include_eds"
	Bootstrap   Request = "/config_dump?mask=bootstrap"
	// All is Everything with endpoints.
	All Request = "/config_dump?include_eds"
	// Everything is all sections of one moment except endpoints.
	Everything Request = "/config_dump"
)

// ServerInfo returns version and command line of the Envoy.
const ServerInfo Request = "/server_info"

// Loggers returns a request that lists the levels of all loggers, for Post. Before that,
// it sets all levels, if all is not empty, or the levels of the named loggers.
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

// Source is the source of a dump. Exactly one of Admin and File is set.
type Source struct {
	// Admin is the address of an admin interface: host:port or http://host:port.
	Admin string
	// Dial, if not nil, connects to Admin. Via describes how, as in port-forward to pod
	// apps/web-1.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	Via  string
	// Absent, if not nil, returns why there is no admin interface, or "". It is asked after a failure.
	Absent func(ctx context.Context) string
	// File is the path of a saved dump, "-" for Stdin.
	File  string
	Stdin io.Reader
	// Timeout bounds a request to Admin up to the last byte of the response; 0 means no
	// bound.
	Timeout time.Duration
	// MaxSize bounds the dump, in bytes. FixedSize reports that no flag changes it.
	MaxSize   int64
	FixedSize bool
}

// String names the source in errors.
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

// Validate checks that there is exactly one source, and that it is well formed.
func (s *Source) Validate() error {
	if (s.Admin == "") == (s.File == "") {
		return errors.New("give exactly one source: a workload, such as web-1.apps or deploy/web, --admin host:port of a running Envoy, or --file with a saved dump")
	}
	if s.File != "" {
		return nil
	}
	_, err := baseURL(s.Admin)
	return err
}

// Read opens the source and calls read with the dump. Errors name the source. If ctx ends
// before read returns, the result is the error of ctx.
func (s *Source) Read(ctx context.Context, request Request, read func(io.Reader) error) error {
	body, err := s.open(ctx, request)
	if err != nil {
		return err
	}
	return s.read(ctx, body, read)
}

// Post sends a request that may change Envoy, and calls read with the response.
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
	var text io.Reader = dump
	if s.File != "" { // a shell may have written it in another encoding
		text = transform.NewReader(dump, unicode.BOMOverride(transform.Nop))
	}
	err := read(bufio.NewReaderSize(text, 64<<10))
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

// endingReader fails when ctx has ended, also for files: parsing a large one takes time.
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

// maxErrorBody bounds the shown part of an error response, in bytes.
const maxErrorBody = 200

func (s *Source) ask(ctx context.Context, method string, request Request) (io.ReadCloser, error) {
	base, err := baseURL(s.Admin)
	if err != nil {
		return nil, err
	}
	asked := ctx
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
		if s.Absent != nil {
			if why := s.Absent(asked); why != "" {
				return nil, fmt.Errorf("%s (%w)", why, withoutURL(err))
			}
		}
		return nil, fmt.Errorf("ask Envoy's %s: %w", s, withoutURL(err))
	}
	resp.Body = &answer{resp.Body, ctx, cancel}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		// Envoy omits an empty section, such as routes without any HTTP listener, and then
		// refuses the mask.
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
		if bytes.Contains(text, []byte("could not be successfully applied to any configs")) {
			return io.NopCloser(strings.NewReader(nothingTo(request))), nil
		}
		return nil, fmt.Errorf("%s answered %s to %s: %q; is that the port of Envoy's admin interface?",
			s, resp.Status, request, strings.TrimSpace(string(text)))
	}
	return resp.Body, nil
}

// nothingTo returns the response of an Envoy that has nothing for a request. An Envoy
// without clusters has no endpoints, which is no fault. Without routes, the dump itself
// is needed.
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

// timeoutError reports that a response was not complete in time.
type timeoutError time.Duration

func (t timeoutError) Error() string {
	return fmt.Sprintf("no whole answer within --timeout %s", time.Duration(t))
}

func (t timeoutError) Unwrap() error { return context.DeadlineExceeded }

// answer is a response body whose time ctx bounds.
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

// withoutURL removes method and URL from an error, as the user typed neither.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}

// baseURL parses host:port or http://host:port.
func baseURL(admin string) (string, error) {
	hostPort := strings.TrimSuffix(strings.TrimPrefix(admin, "http://"), "/")
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil || host == "" || port == "" || strings.ContainsAny(hostPort, "/?#@") {
		return "", fmt.Errorf("admin interface %q is not host:port or http://host:port", admin)
	}
	return "http://" + hostPort, nil
}

// limitedReader fails when there is more. io.LimitedReader would end.
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
