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
	// userAgent is that of Istio's agent: what keeps probes out of access logs knows it.
	userAgent = "istio-probe/1.0"
	// maxTimeout bounds a request when the context of a check does not.
	maxTimeout = time.Hour
)

// HTTP is healthy when a GET is answered with a status from 200 to 399. An answer that
// redirects is one; https:// verifies no certificate. Headers may name User-Agent and
// Host.
func HTTP(target url.URL, headers http.Header) func(context.Context) error {
	client := dial.ApplicationClient(maxTimeout)
	sent := http.Header{"User-Agent": {userAgent}}
	maps.Copy(sent, headers)
	// A query may hold what is nobody else's business.
	what := "GET " + (&url.URL{Scheme: target.Scheme, Host: target.Host, Path: target.Path}).String()
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), http.NoBody)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		req.Header, req.Host = sent, cmp.Or(sent.Get("Host"), req.Host)
		resp, err := client.Do(req)
		if err != nil {
			if wrapped, ok := errors.AsType[*url.Error](err); ok {
				err = wrapped.Err // which repeats the URL otherwise
			}
			return fmt.Errorf("%s: %w", what, timedOut(ctx, err))
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

// TCP is healthy when address, host:port, can be connected to.
func TCP(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := dial.Application(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("connect to %s: %w", address, timedOut(ctx, err))
		}
		return conn.Close()
	}
}

// Exec is healthy when the command, a program and its arguments, ends with status 0. It
// runs with the rights of the agent and that environment, NAME=value; what it prints is
// not kept. Those that it started end with it when it takes too long.
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

// GRPC is healthy when the server at address, host:port, without TLS, says by
// grpc.health.v1.Health that the service is serving; "" is the server as a whole.
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
		if closed := conn.Close(); err == nil { // else it would hide the answer
			err = closed
		}
	}()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	return answer.GetStatus(), err
}

// timedOut says of an error that the check took too long, if that is why.
func timedOut(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errors.New("no answer in time")
	}
	return err
}
