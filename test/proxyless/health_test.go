package proxyless

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
)

// ledger is a service with a virtual machine behind it.
const ledger = `apiVersion: v1
kind: Service
metadata: {name: ledger, namespace: shop}
spec: {clusterIP: None, selector: {app: ledger}, ports: [{name: grpc, port: 80, targetPort: 9090}]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: ledger-vm, namespace: shop, annotations: {proxy.istio.io/health-checks-enabled: "true"}}
spec: {address: 127.77.1.14, labels: {app: ledger, security.istio.io/tlsMode: disabled}, serviceAccount: ledger}
`

// application is what runs on the virtual machine.
type application struct {
	health *health.Server
	stop   func()
}

func startApplication(t *testing.T) *application {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address("vm"), port))
	check(t, err)
	srv, a := grpc.NewServer(), &application{health: health.NewServer()}
	testpb.RegisterTestServiceServer(srv, &echo{name: "vm"})
	grpc_health_v1.RegisterHealthServer(srv, a.health)
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(listener) }()
	a.stop = sync.OnceFunc(func() { srv.Stop(); <-ended })
	t.Cleanup(a.stop)
	return a
}

// TestHealthOfMachine: a virtual machine is called as long as its agent finds the
// application healthy and is not about to end.
func TestHealthOfMachine(t *testing.T) {
	m := startMesh(t)
	m.write(t, "ledger.yaml", ledger)
	bootstrap, _, _ := m.startAgent(t, "client", "client")
	_, _, stopAgent := m.startAgent(t, "vm", "ledger", "ISTIO_META_WORKLOAD_ENTRY=ledger-vm",
		"PROXY_CONFIG=readinessProbe: {grpc: {port: 9090}, periodSeconds: 1, failureThreshold: 2}")
	client := dialTarget(t, "xds:///ledger.shop:80", bootstrap)
	wantCalled := func(want bool) {
		t.Helper()
		until(t, fmt.Sprintf("change: called %v", want), func() error {
			r, err := call(t, client)
			switch {
			case want && (err != nil || r.GetServerId() != "vm"):
				return fmt.Errorf("%v, %w", r, errors.Join(err))
			case !want && (status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "connection refused")):
				return fmt.Errorf("it is still called: %v, %w", r, errors.Join(err))
			}
			return nil
		})
	}
	wantReported := func(problem string) {
		t.Helper()
		until(t, "report of "+problem, func() error {
			if !strings.Contains(m.log.String(), problem) {
				return errors.New("it is not in the log")
			}
			return nil
		})
	}
	wantReported("connection refused")
	wantCalled(false)
	app := startApplication(t)
	wantCalled(true)
	app.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	wantCalled(false)
	wantReported("NOT_SERVING")
	app.health.SetServingStatus("", grpc_health_v1.HealthCheckResponse_SERVING)
	wantCalled(true)
	app.stop()
	wantCalled(false)
	startApplication(t)
	wantCalled(true)
	stopAgent()
	wantReported("the workload is stopping")
	wantCalled(false)
}
