package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"time"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/serving"
)

// Kubelet is a probe of the application that the kubelet sends to the agent, because mutual
// TLS or the redirection of traffic keeps it from the application.
type Kubelet struct {
	Timeout time.Duration
	// Check checks the application. If it is nil, the application gets a GET request for URL
	// with Header, and the kubelet gets its response.
	Check  func(context.Context) error
	URL    url.URL
	Header http.Header
}

// maxKubeletBody bounds the body of a response that the kubelet gets, in bytes.
const maxKubeletBody = 10 << 10

// A caller whose user agent is kubeletAgent is the kubelet, for all that the agent knows.
var kubeletAgent = regexp.MustCompile(`^kube-probe/[0-9A-Za-z.+-]{1,32}$`)

// answer is the response to the kubelet.
type answer struct {
	status      int
	contentType string
	body        []byte
}

// Handler answers the requests of the kubelet for the probes, by path. Each probe runs once at a
// time, however many callers wait for it: the status port has no authentication, and other callers
// must not keep the kubelet from its answer. The caller decides nothing about the request to the
// application but its user agent, which has one of two forms; each form has its own run.
func Handler(probes map[string]Kubelet) http.Handler {
	client := dial.ApplicationClient(maxTimeout)
	running := newRuns()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := probes[r.URL.Path]
		if !ok {
			http.Error(w, "app prober config does not exists for "+r.URL.Path, http.StatusBadRequest)
			return
		}
		ctx, cancel := serving.WithTimeout(w, r, p.Timeout)
		defer cancel()
		agent, of := userAgent, "others"
		if kubeletAgent.MatchString(r.UserAgent()) {
			agent, of = r.UserAgent(), "kubelet"
		}
		a := running.join(ctx, r.URL.Path+" "+of, p.Timeout, func(ctx context.Context) answer { return p.answer(ctx, client, agent) })
		if a.contentType != "" {
			w.Header().Set("Content-Type", a.contentType)
		}
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(a.status)
		_, _ = w.Write(a.body) // a kubelet that left needs no response
	})
}

// failed answers with the reason why a probe failed.
func failed(err error) answer {
	return answer{http.StatusInternalServerError, "text/plain; charset=utf-8", []byte(err.Error() + "\n")}
}

// answer probes the application.
func (p *Kubelet) answer(ctx context.Context, client *http.Client, agent string) answer {
	if p.Check != nil {
		if err := p.Check(ctx); err != nil {
			return failed(err)
		}
		return answer{status: http.StatusOK}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL.String(), http.NoBody)
	if err != nil {
		return failed(fmt.Errorf("probe the application: %w", err))
	}
	req.Header = http.Header{"User-Agent": {agent}, "Accept": {"*/*"}} // as the kubelet
	maps.Copy(req.Header, p.Header)
	req.Host = cmp.Or(p.Header.Get("Host"), req.Host)
	resp, err := client.Do(req)
	if err != nil {
		return failed(fmt.Errorf("probe the application: %w", timedOut(ctx, withoutURL(err))))
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxKubeletBody))
	if err != nil {
		return failed(fmt.Errorf("read the response of the application: %w", timedOut(ctx, err)))
	}
	status := resp.StatusCode
	if status >= 300 && status < 400 {
		status = http.StatusOK // the kubelet would follow it, to Envoy
	}
	return answer{status, cmp.Or(resp.Header.Get("Content-Type"), "application/octet-stream"), body}
}

// withoutURL returns the cause of an error of a client, which repeats the URL otherwise. A
// query may hold secrets.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}
