// Package replicas finds the control planes of a cluster and reaches their
// status pages. Each replica keeps a Lease that says where it is and which
// clusters it reads; those without one are found as pods. Status pages answer
// callers on their own machine only, so those of pods are reached by a
// port-forward of the API server. No port is opened here for it.
package replicas

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
)

const (
	// identifyTimeout bounds the first question to one address.
	identifyTimeout = 5 * time.Second
	// maxReplicas bounds how many are asked, atOnce how many at the same time.
	maxReplicas = 100
	atOnce      = 10
	// maxPage bounds one status page, in bytes.
	maxPage = 256 << 20
)

// IdentityPath is the status page with the Identity of a replica.
const IdentityPath = "/debug/replica"

// Identity says which control plane answers at an address.
type Identity struct {
	Replica string
	Cluster mesh.ClusterID
}

// Tokens are with which status pages answer, empty for none.
type Tokens struct {
	// At is for those at an address, host:port.
	At func(address string) (string, error)
	// Pod is for those of pods. When it is nil, a token of the service account
	// default of their namespace is made.
	Pod func() (string, error)
}

// Options say where to look for replicas.
type Options struct {
	// Access is the way to the API of the control planes' cluster, Namespace
	// that of the control planes.
	Access    *rest.Config
	Namespace string
	Tokens    Tokens
	// Timeout bounds one request to a status page, its answer included.
	Timeout time.Duration
	Now     func() time.Time
}

// Replica is one control plane.
type Replica struct {
	// Name is that of its Lease or pod, or the address it was named by.
	Name string
	// Via says how it is reached, such as 127.0.0.1:8080 or port-forward to pod
	// istio-system/meshctl-0.
	Via string
	// URL is http://host:port, for Client alone. Both are unset with Err.
	URL    string
	Client *http.Client
	// Token is with which its pages answer.
	Token func(context.Context) (string, error)
	// Pages reads status pages in another way than HTTP, by what follows /debug/ in
	// their URL; nil is HTTP. Then URL, Client and Token are unset.
	Pages Pages
	// Err is why it cannot be reached.
	Err error
	// Announced is what its Lease says; nil when it was found in another way.
	Announced *Announcement
}

// Pages reads status pages.
type Pages interface {
	Page(ctx context.Context, page string) ([]byte, error)
	Close()
}

// At is the replica at an address, host:port or http://host:port. It does not
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
	return &Replica{
		Name: u.Host, Via: u.Host, URL: "http://" + u.Host, Client: dial.HTTPClient(timeout, nil),
		Token: func(context.Context) (string, error) { return tokens.At(u.Host) },
	}, nil
}

// ErrNone says that no replica was found.
var ErrNone = errors.New("no control plane of meshctl was found")

// Announced are what the replicas of a namespace say of themselves in Leases that
// are not stale. access is the way to the API of their cluster.
func Announced(ctx context.Context, access *rest.Config, namespace string, now time.Time) ([]Announcement, error) {
	api, err := newAPI(access)
	if err != nil {
		return nil, err
	}
	defer api.close()
	return api.announced(ctx, namespace, now)
}

// Find finds the replicas that keep a Lease, or, when none does, those that run
// in pods of meshctl or of istiod, by name. Each was reached, or has an error.
// Close each of them.
func Find(ctx context.Context, o Options) ([]*Replica, error) {
	api, err := newAPI(o.Access)
	if err != nil {
		return nil, err
	}
	defer api.close()
	announced, err := api.announced(ctx, o.Namespace, o.Now())
	if err != nil {
		return nil, err
	}
	if o.Tokens.Pod == nil {
		o.Tokens.Pod = sync.OnceValues(func() (string, error) { return Mint(ctx, o.Access, o.Namespace) })
	}
	var found []*candidate
	for i := range announced {
		found = append(found, o.announced(&announced[i]))
	}
	if len(found) == 0 {
		pods, err := api.pods(ctx, o.Namespace)
		if err != nil {
			return nil, err
		}
		for _, p := range pods {
			found = append(found, &candidate{name: p.name, ways: []way{o.forward(p)}})
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%w: namespace %s has no Lease with label %s and no running pod with label %s",
			ErrNone, o.Namespace, leaseSelector, strings.Join(podSelectors(), " or "))
	}
	if len(found) > maxReplicas {
		return nil, fmt.Errorf("namespace %s has %d control planes, at most %d are asked; name them by address", o.Namespace, len(found), maxReplicas)
	}
	out := make([]*Replica, len(found))
	slots := make(chan struct{}, atOnce)
	var asked sync.WaitGroup
	for i, c := range found {
		asked.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			out[i] = c.reach(ctx)
		})
	}
	asked.Wait()
	slices.SortStableFunc(out, func(a, b *Replica) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// candidate is a replica and the ways on which it may be reached.
type candidate struct {
	name      string
	announced *Announcement
	ways      []way
}

// way leads to status pages.
type way struct {
	via, url string
	client   *http.Client
	token    func(context.Context) (string, error)
}

func (o *Options) announced(a *Announcement) *candidate {
	c := &candidate{name: a.Replica, announced: a}
	if namespace, name, ok := strings.Cut(a.Pod, "/"); ok {
		c.ways = append(c.ways, o.forward(pod{namespace: namespace, name: name, port: a.port()}))
	}
	for _, address := range a.Addresses {
		c.ways = append(c.ways, way{
			via: address, url: "http://" + address, client: dial.HTTPClient(o.Timeout, nil),
			token: func(context.Context) (string, error) { return o.Tokens.At(address) },
		})
	}
	return c
}

// forward is the way through the API server to a port of a pod.
func (o *Options) forward(p pod) way {
	target := kube.PodPort{Access: o.Access, Namespace: p.namespace, Name: p.name, Port: p.port}
	return way{
		via: "port-forward to " + target.String(),
		// The host is for the status page, which answers callers on loopback.
		url:    fmt.Sprintf("http://localhost:%d", p.port),
		client: dial.HTTPClientVia(o.Timeout, target.DialContext),
		token:  func(context.Context) (string, error) { return o.Tokens.Pod() },
	}
}

// reach takes the first way that leads to the replica.
func (c *candidate) reach(ctx context.Context) *Replica {
	r := &Replica{Name: c.name, Announced: c.announced}
	var errs []error
	for _, w := range c.ways {
		r.Via, r.URL, r.Client, r.Token = w.via, w.url, w.client, w.token
		err := c.identify(ctx, r)
		if err == nil {
			return r
		}
		r.Close()
		errs = append(errs, fmt.Errorf("%s: %w", w.via, err))
	}
	r.Via, r.URL, r.Client = "", "", nil
	if r.Err = errors.Join(errs...); r.Err == nil {
		r.Err = errors.New("it names no address")
	}
	return r
}

// identify asks who answers: another process may have the address.
func (c *candidate) identify(ctx context.Context, r *Replica) error {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	var is Identity
	switch err := r.Get(ctx, IdentityPath, nil, &is); {
	case errors.Is(err, ErrNotFound):
		return errors.New("what answers there is no control plane of meshctl")
	case err != nil:
		return err
	case c.announced != nil && is.Replica != c.announced.Replica:
		return fmt.Errorf("another replica, %.100q, answers there", is.Replica)
	}
	return nil
}

// ErrNotFound is that the replica has no such page, or nothing of the name that
// was asked for: an *AnswerError of status 404.
var ErrNotFound = errors.New("not found")

// AnswerError is an answer that is no page.
type AnswerError struct {
	Code   int    // of HTTP
	Status string // such as 404 Not Found
	// Text is how the answer begins, at most 500 bytes, as the other end wrote it.
	Text string
}

func (e *AnswerError) Error() string {
	text := fmt.Sprintf("answered %s: %.500q", e.Status, e.Text)
	if e.Code == http.StatusNotFound {
		text = ErrNotFound.Error() + ": " + text
	}
	return text
}

// Is tells errors.Is which answer is ErrNotFound.
func (e *AnswerError) Is(target error) bool {
	return target == ErrNotFound && e.Code == http.StatusNotFound
}

// Get reads a status page, such as /debug/clusters, into v.
func (r *Replica) Get(ctx context.Context, path string, query url.Values, v any) error {
	if r.Pages != nil {
		return r.read(ctx, path, query, v)
	}
	return r.do(ctx, http.MethodGet, path, query, http.NoBody, func(body *notingReader) error {
		return decode(body, v)
	})
}

// Copy writes a page of any content, such as a profile, to w.
func (r *Replica) Copy(ctx context.Context, w io.Writer, path string, query url.Values) error {
	if r.Pages != nil {
		return errors.New("such pages are not served over xDS: ask over HTTP")
	}
	return r.do(ctx, http.MethodGet, path, query, http.NoBody, func(body *notingReader) error {
		_, err := io.Copy(w, body)
		return inTime(err)
	})
}

// Put sets a page to a text and reads what it is then into v.
func (r *Replica) Put(ctx context.Context, path, text string, v any) error {
	return r.do(ctx, http.MethodPut, path, nil, strings.NewReader(text), func(body *notingReader) error {
		return decode(body, v)
	})
}

func (r *Replica) do(ctx context.Context, method, path string, query url.Values, text io.Reader, read func(*notingReader) error) error {
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
	body := &notingReader{r: io.LimitReader(resp.Body, maxPage)}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(body, 500))
		return &AnswerError{resp.StatusCode, resp.Status, strings.TrimSpace(string(text))}
	}
	return read(body)
}

// decode reads a page of JSON into v.
func decode(body *notingReader, v any) error {
	switch err := json.NewDecoder(body).Decode(v); {
	case err != nil && body.failed != nil:
		return fmt.Errorf("read the answer: %w", inTime(body.failed))
	case err != nil:
		return fmt.Errorf("answered what is no such page: %w", err)
	}
	_, _ = io.CopyN(io.Discard, body, 1<<10) // read to its end, the connection is used again
	return nil
}

// notingReader notes why r could not be read, which is not what it held.
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

// inTime says in words that an answer came too late.
func inTime(err error) error {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && errors.Is(err, context.DeadlineExceeded) {
		return errLate
	}
	return err
}

var errLate = fmt.Errorf("no whole answer in time: %w", context.DeadlineExceeded)

// read reads a page from Pages.
func (r *Replica) read(ctx context.Context, path string, query url.Values, v any) error {
	page := strings.TrimPrefix(path, "/debug/")
	if len(query) > 0 {
		page += "?" + query.Encode()
	}
	body, err := r.Pages.Page(ctx, page)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("answered what is no such page: %.500q", body) // it is a text that says why
	}
	return nil
}

// Close ends the connections to the replica.
func (r *Replica) Close() {
	if r.Pages != nil {
		r.Pages.Close()
	}
	if r.Client != nil {
		r.Client.CloseIdleConnections()
	}
}
