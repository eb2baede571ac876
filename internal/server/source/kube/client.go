package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/server/source"
)

// Media types of objects. Custom resources exist only in JSON.
const (
	mediaProtobuf = "application/vnd.kubernetes.protobuf"
	mediaJSON     = "application/json"
	// asMetadata requests only the metadata of objects.
	asMetadata = ";as=PartialObjectMetadata%s;g=meta.k8s.io;v=v1"
)

// maxStatus bounds the body of an error response, in bytes.
const maxStatus = 64 << 10

// client makes requests to one Kubernetes API.
type client struct {
	http *http.Client
	base *url.URL
}

func newClient(cfg *rest.Config) (*client, error) {
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("address of the Kubernetes API: %w", err)
	}
	h, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API at %s: %w", base.Host, err)
	}
	own := *h
	own.Timeout = 0 // a watch takes long; each request has its own deadline
	own.CheckRedirect = func(req *http.Request, _ []*http.Request) error {
		return fmt.Errorf("redirected to %s, which is not followed", req.URL.Redacted())
	}
	return &client{http: &own, base: base}, nil
}

func (c *client) close() { kube.CloseIdle(c.http.Transport) }

// get requests a path. Any status but 200 and any media type but the requested one are
// errors.
func (c *client) get(ctx context.Context, path string, query url.Values, accept string) (io.ReadCloser, error) {
	u := c.base.JoinPath(path)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	resp, err := c.http.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		// Drop the method and the address, so that errors of all resources are equal.
		if wrapped, ok := errors.AsType[*url.Error](err); ok {
			err = wrapped.Err
		}
		return nil, err
	}
	media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, readStatus(resp, media)
	}
	if want, _, _ := strings.Cut(accept, ";"); media != want {
		_ = resp.Body.Close()
		return nil, &answerError{fmt.Errorf("answers with %q, want %s", media, want)}
	}
	return resp.Body, nil
}

// statusError is a response other than 200.
type statusError struct {
	code  int
	retry time.Duration // from Retry-After
	text  string
}

func (e *statusError) Error() string {
	return strings.TrimSuffix(fmt.Sprintf("%d %s: %s", e.code, http.StatusText(e.code), e.text), ": ")
}

func isStatus(err error, code int) bool {
	e, ok := errors.AsType[*statusError](err)
	return ok && e.code == code
}

// answerError reports an invalid response.
type answerError struct{ err error }

func (e *answerError) Error() string { return "bad answer: " + e.err.Error() }
func (e *answerError) Unwrap() error { return e.err }

func readStatus(resp *http.Response, media string) error {
	e := &statusError{code: resp.StatusCode}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		e.retry = time.Duration(min(seconds, maxRetryAfter)) * time.Second
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxStatus))
	if err != nil {
		return e
	}
	if st := parseStatus(body, media); st != nil {
		e.text = shorten(st.Message)
	}
	return e
}

// maxRetryAfter bounds the Retry-After of an API server, in seconds.
const maxRetryAfter = 30

func parseStatus(body []byte, media string) *metav1.Status {
	st := &metav1.Status{}
	switch media {
	case mediaProtobuf:
		raw, err := openEnvelope(body, "v1", "Status")
		if err != nil || st.Unmarshal(raw) != nil {
			return nil
		}
	case mediaJSON:
		if json.Unmarshal(body, st) != nil {
			return nil
		}
	default:
		return nil
	}
	return st
}

// maxText bounds texts of an API server in errors and logs, in bytes.
const maxText = 300

func shorten(s string) string {
	s = strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), "?")
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}

// pathOf returns the path of a resource in a version.
func pathOf(r *source.Resource, version, namespace string) string {
	path := "/apis/" + r.Group + "/" + version
	if r.Group == "" {
		path = "/api/" + version
	}
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	return path + "/" + r.Name
}
