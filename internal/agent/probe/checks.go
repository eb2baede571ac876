package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/process"
)

const (
	// userAgent equals the user agent of Istio's agent, so that filters of access logs match it.
	userAgent = "istio-probe/1.0"
	// maxTimeout bounds a request when the context of a check does not.
	maxTimeout = time.Hour
)

// HTTP returns a check that succeeds when a GET returns a status from 200 to 399. It
// follows no redirects, and https:// verifies no certificate. Headers may include User-Agent
// and Host.
func HTTP(target url.URL, headers http.Header) func(context.Context) error {
	client := dial.ApplicationClient(maxTimeout)
	sent := http.Header{"User-Agent": {userAgent}}
	maps.Copy(sent, headers)
	// A query may hold secrets.
	what := "GET " + (&url.URL{Scheme: target.Scheme, Host: target.Host, Path: target.Path}).String()
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		req.Header, req.Host = sent, cmp.Or(sent.Get("Host"), req.Host)
		resp, err := client.Do(req)
		if err != nil {
			return fmt.Errorf("%s: %w", what, timedOut(ctx, withoutURL(err)))
		}
		if err := resp.Body.Close(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if resp.StatusCode < 200 || resp.StatusCode > 399 {
			return fmt.Errorf("%s: status %d, want 200 to 399", what, resp.StatusCode)
		}
		return nil
	}
}

// TCP returns a check that succeeds when address, host:port, accepts connections.
func TCP(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := dial.Application(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("connect to %s: %w", address, timedOut(ctx, err))
		}
		return conn.Close()
	}
}

// Exec returns a check that succeeds when the command, a program and its arguments, ends
// with status 0. The command has the rights of the agent and the given environment of
// NAME=value; its output is dropped. When the check times out, the command and its children
// are killed.
func Exec(command, environ []string) func(context.Context) error {
	return func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Env = environ
		process.Isolate(cmd)
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("run %s: %w", command[0], timedOut(ctx, err))
		}
		return nil
	}
}

// GRPC returns a check that succeeds when the plaintext server at address, host:port,
// reports by grpc.health.v1.Health that the service is serving; "" is the whole server.
func GRPC(address, service string) func(context.Context) error {
	what := "gRPC health of " + address
	if service != "" {
		what = fmt.Sprintf("gRPC health of %q at %s", service, address)
	}
	return func(ctx context.Context) error {
		is, err := askGRPC(ctx, address, service)
		switch {
		case status.Code(err) == codes.Unimplemented:
			return fmt.Errorf("%s: the server does not implement grpc.health.v1.Health", what)
		case err != nil && ctx.Err() == nil:
			s := status.Convert(err)
			return fmt.Errorf("%s: %s: %s", what, s.Code(), s.Message())
		case err != nil:
			return fmt.Errorf("%s: %w", what, timedOut(ctx, err))
		case is != grpc_health_v1.HealthCheckResponse_SERVING:
			return fmt.Errorf("%s: %s", what, is)
		}
		return nil
	}
}

func askGRPC(ctx context.Context, address, service string) (is grpc_health_v1.HealthCheckResponse_ServingStatus, err error) {
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dial.Application(ctx, "tcp", address)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUserAgent(userAgent), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return is, err
	}
	defer func() {
		if closed := conn.Close(); err == nil { // the first error is the cause
			err = closed
		}
	}()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	return answer.GetStatus(), err
}

// timedOut replaces an error that came from the timeout of the check.
func timedOut(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errors.New("no answer in time")
	}
	return err
}
