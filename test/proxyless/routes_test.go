package proxyless

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// routes sends calls with some headers to mallory, and repeats, ends and fails others.
const routes = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: echo, namespace: shop}
spec:
  hosts: [echo]
  http:
  - match: [{queryParams: {a: {exact: b}}}, {authority: {prefix: echo}}, {method: {exact: GET}}]
    fault: {abort: {grpcStatus: INTERNAL, percentage: {value: 100}}}
    route: [{destination: {host: echo}}]
  - match: [{uri: {prefix: /grpc.testing.TestService/}, method: {regex: P.*}, headers: {x-to: {exact: mallory}}}]
    route: [{destination: {host: mallory}}]
  - match: [{headers: {x-to: {regex: "[a-c]"}}, withoutHeaders: {x-role: {exact: guest}}}]
    route: [{destination: {host: echo}, weight: 25}, {destination: {host: mallory}, weight: 75}]
  - match: [{headers: {x-to: {prefix: fault}}}]
    fault: {abort: {grpcStatus: DATA_LOSS, percentage: {value: 100}}}
    route: [{destination: {host: echo}}]
  - match: [{headers: {x-to: {exact: slow}}}]
    timeout: 0.1s
    route: [{destination: {host: echo}}]
  - match: [{headers: {x-to: {exact: flaky}}}]
    retries: {attempts: 3, retryOn: "5xx", backoff: 1ms}
    route: [{destination: {host: echo}}]
  - match: [{headers: {x-to: {exact: elsewhere}}}]
    redirect: {uri: /}
  - retries: {attempts: 0}
    route: [{destination: {host: echo}}]
`

// TestRoutes: a client obeys the VirtualServices of its destination, as far as gRPC can.
func TestRoutes(t *testing.T) {
	m := startMesh(t)
	for pod, account := range map[string]string{"echo-1": "echo", "mallory": "mallory"} {
		bootstrap, _, _ := m.startAgent(t, pod, account)
		startServer(t, pod, bootstrap)
	}
	bootstrap, _, _ := m.startAgent(t, "client", "client")
	client := dialTarget(t, "xds:///echo.shop:80", bootstrap)
	m.write(t, "routes.yaml", routes)
	send := func(headers ...string) (string, codes.Code) {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), headers...), deadline)
		defer cancel()
		r, err := client.UnaryCall(ctx, &testpb.SimpleRequest{})
		return r.GetServerId(), status.Code(err)
	}
	until(t, "route to mallory", func() error {
		if got, code := send("x-to", "mallory"); got != "mallory" {
			return fmt.Errorf("the answer is of %q, status %v", got, code)
		}
		return nil
	})
	for _, c := range []struct {
		name, server string
		code         codes.Code
		headers      []string
	}{
		{"the last route", "echo-1", codes.OK, nil},
		{"a fault", "", codes.DataLoss, []string{"x-to", "fault-1"}},
		{"a timeout", "", codes.DeadlineExceeded, []string{"x-to", "slow", "x-wait", "true"}},
		{"retries", "echo-1", codes.OK, []string{"x-to", "flaky", "x-failures", "3"}},
		{"fewer retries than failures", "", codes.Unavailable, []string{"x-to", "flaky", "x-failures", "4"}},
		{"no retries", "", codes.Unavailable, []string{"x-failures", "1"}},
		{"a redirect", "", codes.Unavailable, []string{"x-to", "elsewhere"}},
		{"a header that the match excludes", "echo-1", codes.OK, []string{"x-to", "a", "x-role", "guest"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if server, code := send(c.headers...); server != c.server || code != c.code {
				t.Errorf("the answer is of %q, status %v; want %q, %v", server, code, c.server, c.code)
			}
		})
	}
	for name, headers := range map[string][]string{"weights": {"x-to", "b"}, "weights with another value": {"x-to", "b", "x-role", "user"}} {
		t.Run(name, func(t *testing.T) {
			answers := make(map[string]int)
			const calls = 1000
			for range calls {
				server, code := send(headers...)
				if code != codes.OK {
					t.Fatalf("status %v", code)
				}
				answers[server]++
			}
			if share := answers["mallory"]; share < 700 || share > 800 { // 3.6 standard deviations
				t.Errorf("%d of %d calls reached mallory, want 75 %%", share, calls)
			}
		})
	}
	wantNoRefusals(t)
}

// misbehave waits or fails as the headers of a call want.
func misbehave(ctx context.Context) error {
	md, _ := metadata.FromIncomingContext(ctx)
	if len(md.Get("x-wait")) > 0 {
		select {
		case <-ctx.Done():
		case <-time.After(deadline):
		}
		return ctx.Err()
	}
	var failures, before int
	if v := md.Get("x-failures"); len(v) > 0 {
		if _, err := fmt.Sscan(v[0], &failures); err != nil {
			return err
		}
	}
	if v := md.Get("grpc-previous-rpc-attempts"); len(v) > 0 {
		if _, err := fmt.Sscan(v[0], &before); err != nil {
			return err
		}
	}
	if before < failures {
		return status.Errorf(codes.Unavailable, "failure %d", before+1)
	}
	return nil
}
