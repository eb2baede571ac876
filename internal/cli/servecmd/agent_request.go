package servecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/mesh"
)

const (
	requestTimeout = time.Minute
	maxErrorBody   = 64 << 10 // of a response that is an error, in bytes
)

// requestPorts are the ports of a proxy and its agent that serve administration.
var requestPorts = []int{mesh.PortEnvoyAdmin, 15004, mesh.PortAgentStatus, mesh.PortEnvoyReadiness}

type agentRequestOptions struct {
	host string
	port int
}

func newAgentRequest(env *cli.Env) *cobra.Command {
	var o agentRequestOptions
	cmd := &cobra.Command{
		Use:   "request METHOD PATH [BODY]",
		Short: "Send a request to Envoy's admin interface or to the agent",
		Long: `Send a request to Envoy's admin interface, or with --debug-port 15020 to the agent, and
print the body of the response. A status other than 2xx is an error.

The command needs no shell and no curl in the container. POST /logging changes the log
levels of a running Envoy.`,
		Example: `  # Show and change the log levels of Envoy
  meshctl agent request POST logging
  meshctl agent request POST 'logging?paths=http:debug,upstream:debug'

  # The preStop hook of a native sidecar, and the end of a job's proxy
  meshctl agent request --debug-port 15020 POST drain
  meshctl agent request --debug-port 15020 POST quitquitquit`,
		Args: cobra.RangeArgs(2, 3),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), env, args) },
	}
	fs := cmd.Flags()
	fs.IntVar(&o.port, "debug-port", mesh.PortEnvoyAdmin, "`Port`: 15000 (Envoy), 15020 (agent) or 15021 (readiness)")
	fs.StringVar(&o.host, "bind-address", "localhost", "`Address` of the proxy, if it was started with one")
	return cmd
}

func (o *agentRequestOptions) run(ctx context.Context, env *cli.Env, args []string) (err error) {
	if !slices.Contains(requestPorts, o.port) {
		return cli.Usagef("debug port %d is not in allowed list %v", o.port, requestPorts)
	}
	path, body := args[1], ""
	if len(args) > 2 {
		body = args[2]
	}
	target, err := url.Parse("http://" + net.JoinHostPort(o.host, strconv.Itoa(o.port)) + "/" + strings.TrimPrefix(path, "/"))
	if err != nil {
		return cli.Usagef("path %q: %w", path, err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, strings.ToUpper(args[0]), target.String(), strings.NewReader(body))
	if err != nil {
		return cli.Usagef("method %q: %w", args[0], err)
	}
	client := dial.HTTPClient(requestTimeout, nil)
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("%w; is the proxy running, at this address (--bind-address)?", err)
	}
	defer func() { err = errors.Join(err, resp.Body.Close()) }()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // a part is better than nothing
		return fmt.Errorf("received unsuccessful status code %v: %s", resp.StatusCode, strings.TrimSpace(string(text)))
	}
	if _, err := io.Copy(env.Stdout, resp.Body); err != nil {
		return fmt.Errorf("print the response: %w", err)
	}
	return nil
}
