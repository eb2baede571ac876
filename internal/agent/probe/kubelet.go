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
	"time"

	"github.com/meshctl/meshctl/internal/dial"
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

const (
	// maxKubeletBody bounds the body of a response that the kubelet gets, in bytes.
	maxKubeletBody = 10 << 10
	// maxKubelet bounds the probes that run at a time; others wait.
	maxKubelet = 16
)

// forwarded are the headers of the kubelet's request that the application gets. All others
// stay here: the status port has no authentication, and the application may trust local
// clients.
var forwarded = []string{"User-Agent", "Accept"}

// Handler answers the requests of the kubelet for the probes, by path.
func Handler(probes map[string]Kubelet) http.Handler {
	client := dial.ApplicationClient(maxTimeout)
	running := make(chan struct{}, maxKubelet)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, ok := probes[r.URL.Path]
		if !ok {
			http.Error(w, "app prober config does not exists for "+r.URL.Path, http.StatusBadRequest)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), p.Timeout)
		defer cancel()
		err := errors.New("too many probes run")
		select {
		case running <- struct{}{}:
			defer func() { <-running }()
			err = p.answer(ctx, client, w, r)
		case <-ctx.Done():
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
}

// answer writes the response to the kubelet, or returns an error and writes nothing.
func (p *Kubelet) answer(ctx context.Context, client *http.Client, w http.ResponseWriter, r *http.Request) (err error) {
	if p.Check != nil {
		return p.Check(ctx)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL.String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("probe the application: %w", err)
	}
	for _, name := range forwarded {
		if values := r.Header.Values(name); len(values) > 0 {
			req.Header[name] = values
		}
	}
	maps.Copy(req.Header, p.Header)
	req.Host = cmp.Or(p.Header.Get("Host"), req.Host)
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("probe the application: %w", timedOut(ctx, withoutURL(err)))
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxKubeletBody))
	if err != nil {
		return fmt.Errorf("read the response of the application: %w", timedOut(ctx, err))
	}
	status := resp.StatusCode
	if status >= 300 && status < 400 {
		status = http.StatusOK // the kubelet would follow it, to Envoy
	}
	w.Header().Set("Content-Type", cmp.Or(resp.Header.Get("Content-Type"), "application/octet-stream"))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a kubelet that left needs no response
	return nil
}

// withoutURL returns the cause of an error of a client, which repeats the URL otherwise. A
// query may hold secrets.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}
