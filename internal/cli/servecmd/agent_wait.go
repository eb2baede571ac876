package servecmd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/dial"
)

type agentWaitOptions struct {
	url                             string
	timeout, requestTimeout, period time.Duration
	// The flags of Istio's agent, whose units are in their names.
	timeoutSeconds, requestMillis, periodMillis int
}

func newAgentWait(env *cli.Env) *cobra.Command {
	var o agentWaitOptions
	cmd := &cobra.Command{
		Use:   "wait",
		Short: "Wait until the proxy is ready",
		Long: `Wait until the proxy is ready: until a GET request for --url returns status 200. Use it
as the postStart hook of a proxy, so that the application starts after the proxy. The
flags of Istio's agent (--timeoutSeconds, --requestTimeoutMillis, --periodMillis) work,
too.`,
		Example: `  meshctl agent wait --timeout 2m
  meshctl agent wait --url http://127.1.0.12:15021/healthz/ready`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	fs.StringVar(&o.url, "url", "http://localhost:15021/healthz/ready", "`URL` to request")
	cli.WaitVar(fs, &o.timeout, "timeout", time.Minute, "Give up after this `duration`")
	cli.WaitVar(fs, &o.requestTimeout, "request-timeout", 500*time.Millisecond, "Give up a request after this `duration`")
	cli.WaitVar(fs, &o.period, "period", 500*time.Millisecond, "`Duration` between requests, and before the first one")
	for name, p := range map[string]*int{
		"timeoutSeconds": &o.timeoutSeconds, "requestTimeoutMillis": &o.requestMillis, "periodMillis": &o.periodMillis,
	} {
		cli.NumberVar(fs, p, name, 0, 0, 1<<30, "Istio's name of another flag")
		_ = fs.MarkHidden(name) // fails for an unknown flag only
	}
	return cmd
}

func (o *agentWaitOptions) run(ctx context.Context, env *cli.Env) error {
	given := func(n int, unit time.Duration, p *time.Duration) {
		if n > 0 {
			*p = time.Duration(n) * unit
		}
	}
	given(o.timeoutSeconds, time.Second, &o.timeout)
	given(o.requestMillis, time.Millisecond, &o.requestTimeout)
	given(o.periodMillis, time.Millisecond, &o.period)

	client := dial.HTTPClient(o.requestTimeout, nil)
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, errTooLate)
	defer cancel()
	ticks := time.NewTicker(o.period)
	defer ticks.Stop()
	last := errors.New("no request was made")
	for {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, errTooLate) {
				return cause
			}
			return fmt.Errorf("timeout waiting for Envoy proxy to become ready. Last error: %w", last)
		}
		err := ask(ctx, client, o.url)
		if err == nil {
			env.Notef("Envoy is ready")
			return nil
		}
		if ctx.Err() == nil { // the end of ctx explains nothing
			last = err
		}
	}
}

var errTooLate = errors.New("too late")

// ask returns nil if a GET request is answered with status 200.
func ask(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: status %s", url, resp.Status)
	}
	return errors.Join(err, resp.Body.Close())
}
