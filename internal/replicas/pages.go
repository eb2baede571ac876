package replicas

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/dial"
)

// Replica is one control plane.
type Replica struct {
	// Name is the name in the Lease, the name of the pod, or the address given, after the
	// context of the kubeconfig and a slash if there is one.
	Name string
	// Context is the context of the kubeconfig by which it was found, if several were asked.
	Context string
	// Via describes how the replica is reached, such as 127.0.0.1:8080 or port-forward to
	// pod istio-system/meshctl-0.
	Via string
	// URL is http://host:port, for Client. Both are unset if Err is set.
	URL    string
	Client *http.Client
	// Token returns the token for the pages.
	Token func(context.Context) (string, error)
	// Pages, if not nil, reads status pages instead of URL, Client and Token, by the path
	// after /debug/.
	Pages Pages
	// Err is the reason why the replica cannot be reached.
	Err error
	// Announced is the content of the Lease, nil without one.
	Announced *Announcement
	// Identity is what it said when it was found; zero if it was not asked.
	Identity Identity
}

// Pages reads status pages.
type Pages interface {
	Page(ctx context.Context, page string) ([]byte, error)
	Close()
}

// At returns the replica at an address, host:port or http://host:port. It does not
// connect.
func At(address string, tokens Tokens, timeout time.Duration) (*Replica, error) {
	text := address
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return nil, fmt.Errorf("%q: want host:port or http://host:port", address)
	}
	return replicaAt(u.Host, tokens, timeout), nil
}

func replicaAt(address string, tokens Tokens, timeout time.Duration) *Replica {
	return &Replica{
		Name: address, Via: address, URL: "http://" + address, Client: dial.HTTPClient(timeout, nil),
		Token: func(context.Context) (string, error) { return tokens.At(address) },
	}
}

// Reasons why a replica returns no page, each an *AnswerError.
var (
	// ErrNotFound reports that there is no such page, or nothing of the name in the
	// query: status 404.
	ErrNotFound = errors.New("not found")
	// ErrUnauthorized reports that the page needs a token, or another one: status 401.
	ErrUnauthorized = errors.New("a token is needed")
)

// AnswerError is a response that is not a page.
type AnswerError struct {
	Code   int    // of HTTP
	Status string // such as 404 Not Found
	// Text is the beginning of the body, at most 500 bytes, unescaped.
	Text string
}

func (e *AnswerError) Error() string {
	text := fmt.Sprintf("answered %s: %.500q", e.Status, e.Text)
	if e.Code == http.StatusNotFound {
		text = ErrNotFound.Error() + ": " + text
	}
	return text
}

// Is reports whether the answer is ErrNotFound or ErrUnauthorized.
func (e *AnswerError) Is(target error) bool {
	return target == ErrNotFound && e.Code == http.StatusNotFound || target == ErrUnauthorized && e.Code == http.StatusUnauthorized
}

// Get reads a status page, such as /debug/clusters, into v.
func (r *Replica) Get(ctx context.Context, path string, query url.Values, v any) error {
	if r.Pages == nil {
		return r.do(ctx, http.MethodGet, path, query, http.NoBody, into(v))
	}
	page := strings.TrimPrefix(path, "/debug/")
	if len(query) > 0 {
		page += "?" + query.Encode()
	}
	body, err := r.Pages.Page(ctx, page)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("answered what is no such page: %.500q", body) // a text with the reason
	}
	return nil
}

// Copy writes a page of any content, such as a profile, to w.
func (r *Replica) Copy(ctx context.Context, w io.Writer, path string, query url.Values) error {
	if r.Pages != nil {
		return errors.New("such pages are not served over xDS: ask over HTTP")
	}
	return r.do(ctx, http.MethodGet, path, query, http.NoBody, func(body io.Reader) error {
		_, err := io.Copy(w, body)
		return inTime(err)
	})
}

// Put sets a page to a text, and reads the page after that into v.
func (r *Replica) Put(ctx context.Context, path, text string, v any) error {
	return r.do(ctx, http.MethodPut, path, nil, strings.NewReader(text), into(v))
}

func (r *Replica) do(ctx context.Context, method, path string, query url.Values, text io.Reader, read func(io.Reader) error) error {
	if r.Err != nil {
		return r.Err
	}
	target := r.URL + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, text)
	if err != nil {
		return err
	}
	token, err := r.Token(ctx)
	if err != nil {
		return err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := r.Client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // the caller names the address
		}
		return inTime(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		return &AnswerError{resp.StatusCode, resp.Status, strings.TrimSpace(string(text))}
	}
	return read(io.LimitReader(resp.Body, maxPage))
}

// into returns a function that reads a page of JSON into v. It ends at the first fault.
func into(v any) func(io.Reader) error {
	return func(page io.Reader) error {
		body := &notingReader{r: page}
		switch err := json.NewDecoder(body).Decode(v); {
		case err != nil && body.failed != nil:
			return fmt.Errorf("read the answer: %w", inTime(body.failed))
		case err != nil:
			return fmt.Errorf("answered what is no such page: %w", err)
		}
		_, _ = io.CopyN(io.Discard, page, 1<<10) // read to the end, so that the connection is reused
		return nil
	}
}

// notingReader keeps the error of reading, to distinguish it from an error in the content.
type notingReader struct {
	r      io.Reader
	failed error
}

func (n *notingReader) Read(p []byte) (int, error) {
	count, err := n.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		n.failed = err
	}
	return count, err
}

// inTime replaces the error of a late response by a clear one.
func inTime(err error) error {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && errors.Is(err, context.DeadlineExceeded) {
		return errLate
	}
	return err
}

var errLate = fmt.Errorf("no whole answer in time: %w", context.DeadlineExceeded)

// Close ends the connections to the replica.
func (r *Replica) Close() {
	if r.Pages != nil {
		r.Pages.Close()
	}
	if r.Client != nil {
		r.Client.CloseIdleConnections()
	}
}
