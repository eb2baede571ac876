package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/probe"
	"github.com/meshctl/meshctl/internal/agent/revocation"
	"github.com/meshctl/meshctl/internal/agent/sds"
	"github.com/meshctl/meshctl/internal/agent/sts"
	"github.com/meshctl/meshctl/internal/agent/workloadcert"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

// TestServersKeepTheirPromises: a request that may take its time gets its response, although the
// servers bound other requests: probes and hooks up to their timeouts, scrapes up to the timeout of
// Prometheus, and exchanges of tokens.
func TestServersKeepTheirPromises(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		takes := func(d time.Duration) func(context.Context) error {
			return func(ctx context.Context) error {
				select {
				case <-time.After(d):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		log := slog.New(slog.NewTextHandler(t.Output(), nil))
		ctx, stop := context.WithCancel(t.Context())
		served := make(chan error, 3)
		client := func(l *harness.Pipes) *http.Client {
			return dial.HTTPClientVia(0, func(context.Context, string, string) (net.Conn, error) { return l.Dial(), nil })
		}
		envoy := harness.NewPipes()
		slow := &http.Server{ReadHeaderTimeout: time.Hour, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if takes(30*time.Second)(r.Context()) == nil {
				_, _ = io.WriteString(w, "envoy_x 1\n")
			}
		})}
		go func() { _ = slow.Serve(envoy); served <- nil }()
		admin := &adminClient{http: client(envoy)}
		status := newStatus(&config.Config{KubeletProbes: map[string]probe.Kubelet{
			"/app-health/a/livez":       {Timeout: 40 * time.Second, Check: takes(35 * time.Second)},
			"/app-lifecycle/a/prestopz": {Timeout: 10 * time.Minute, Check: takes(9 * time.Minute)},
		}}, admin, nil, sds.New(log), func() workloadcert.Status { return workloadcert.Status{} }, func() revocation.Status { return revocation.Status{} },
			Options{Log: log, Now: time.Now, Rand: rand.New(rand.NewPCG(1, 2))})
		port, exchange := harness.NewPipes(), harness.NewPipes()
		go func() { served <- status.serve(ctx, port) }()
		go func() {
			served <- sts.Serve(ctx, exchange, func(ctx context.Context, _ sts.Request) (sts.Response, error) {
				return sts.Response{AccessToken: "other"}, takes(14 * time.Second)(ctx)
			}, log)
		}()
		statusClient, stsClient := client(port), client(exchange)
		ask := func(c *http.Client, r *http.Request) (status int, body string, err error) {
			resp, err := c.Do(r)
			if err != nil {
				return 0, "", err
			}
			defer resp.Body.Close()
			data, err := io.ReadAll(resp.Body)
			return resp.StatusCode, string(data), err
		}
		for path, want := range map[string]struct {
			takes time.Duration
			body  string
		}{
			"/app-health/a/livez":       {35 * time.Second, ""},
			"/app-lifecycle/a/prestopz": {9 * time.Minute, ""},
			"/stats/prometheus/envoy":   {30 * time.Second, "envoy_x 1\n"},
		} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, http.NoBody)
			check(t, err)
			r.Header.Set("X-Prometheus-Scrape-Timeout-Seconds", "55")
			began := time.Now()
			code, body, err := ask(statusClient, r)
			if err != nil || code != http.StatusOK || body != want.body || time.Since(began) != want.takes {
				t.Errorf("%s: %d %q, %v after %v, want %v", path, code, body, err, time.Since(began), want)
			}
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://localhost"+sts.Path, strings.NewReader(
			"grant_type=urn:ietf:params:oauth:grant-type:token-exchange&subject_token=a&subject_token_type=urn:ietf:params:oauth:token-type:jwt"))
		check(t, err)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if code, body, err := ask(stsClient, r); err != nil || code != http.StatusOK {
			t.Errorf("an exchange of 14 s: %d %q, %v", code, body, err)
		}
		for _, c := range []*http.Client{statusClient, stsClient, admin.http} {
			c.CloseIdleConnections()
		}
		stop()
		check(t, slow.Close())
		for range 3 {
			if err := <-served; err != nil {
				t.Error(fmt.Errorf("serve: %w", err))
			}
		}
	})
}
