package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// testService is a Service with one port and a DestinationRule.
type testService struct {
	name, namespace, vip string
	protocol             string // of the port, its name
	port, target         int
	endpoints            string // by default the pods v1 and v2
	rule                 string // the spec without the host
	annotations          string
}

// objects returns the objects of the service.
func (s testService) objects() string {
	if s.namespace == "" {
		s.namespace = "shop"
	}
	if s.endpoints == "" {
		s.endpoints = endpointsOf("v1", "v2")
	}
	out := fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: %[2]s, annotations: {%[3]s}}
spec:
  clusterIP: %[4]s
  ports: [{name: %[5]s, port: %[6]d, targetPort: %[7]d}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s, namespace: %[2]s, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: %[5]s, port: %[7]d}]
endpoints: [%[8]s]
`, s.name, s.namespace, s.annotations, s.vip, s.protocol, s.port, s.target, s.endpoints)
	if s.rule == "" {
		return out
	}
	return out + fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %[1]s, namespace: %[2]s}
spec: {host: %[1]s, %[3]s}
`, s.name, s.namespace, s.rule)
}

// podIPs are the addresses of the pods of testService.
var podIPs = map[string]string{"v1": "10.11.0.1", "v2": "10.11.0.2", "v3": "10.11.0.3"}

// endpointsOf returns the endpoints of some pods. Those after "not ready" are not ready.
func endpointsOf(pods ...string) string {
	var out []string
	ready := true
	for _, pod := range pods {
		if pod == "not ready" {
			ready = false
			continue
		}
		out = append(out, fmt.Sprintf("{addresses: [%s], conditions: {ready: %t}, targetRef: {kind: Pod, name: %s, namespace: shop}}", podIPs[pod], ready, pod))
	}
	return strings.Join(out, ", ")
}

// Ports of the servers at the addresses of all pods.
const (
	webPort    = 9001 // HTTP/1.1 and HTTP/2
	bannerPort = 9002 // sends the version first
	headerPort = 9003 // sends the first line that it receives, after a line that ends with x
	grpcPort   = 9004 // health of gRPC
	securePort = 9005 // TLS
)

// healthServer responds to checks with its version, and fails the first tries of a check.
type healthServer struct {
	grpc_health_v1.UnimplementedHealthServer
	version string
	tries   atomic.Int64
}

// Check implements grpc_health_v1.HealthServer.
func (s *healthServer) Check(ctx context.Context, req *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	if req.GetService() == "unavailable" && s.tries.Add(1) < 3 {
		return nil, status.Error(codes.Unavailable, "not yet")
	}
	return &grpc_health_v1.HealthCheckResponse{}, grpc.SetHeader(ctx, metadata.Pairs("x-version", s.version))
}

// servesEach accepts connections at an address until the test ends, and hands each to a
// goroutine, which closes it.
func servesEach(t *testing.T, l net.Listener, err error, handle func(net.Conn)) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				handle(conn)
				_ = conn.Close()
			}()
		}
	}()
}

// sendsFirst returns a function for servesEach that sends a text.
func sendsFirst(text string) func(net.Conn) {
	return func(conn net.Conn) { _, _ = io.WriteString(conn, text) }
}

// startPodServers starts the servers of a pod.
func startPodServers(t *testing.T, version, ip string) {
	t.Helper()
	at := func(port int) string { return fmt.Sprint(ip, ":", port) }
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/protocol":
			fmt.Fprint(w, r.Proto)
		case "/socket":
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = conn.Close() }()
			fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			_, _ = io.Copy(conn, conn)
		case "/" + version + "-fails":
			w.WriteHeader(http.StatusInternalServerError)
		default:
			fmt.Fprint(w, version)
		}
	}))
	_ = web.Listener.Close()
	var err error
	if web.Listener, err = net.Listen("tcp", at(webPort)); err != nil {
		t.Fatal(err)
	}
	web.Config.Protocols = new(http.Protocols)
	web.Config.Protocols.SetHTTP1(true)
	web.Config.Protocols.SetUnencryptedHTTP2(true)
	web.Start()
	t.Cleanup(web.Close)
	l, err := net.Listen("tcp", at(bannerPort))
	servesEach(t, l, err, sendsFirst(version))
	l, err = net.Listen("tcp", at(headerPort))
	servesEach(t, l, err, func(conn net.Conn) {
		in := bufio.NewReader(conn)
		first, err := in.ReadString('\n')
		for line := first; err == nil && !strings.HasSuffix(line, "x\n"); {
			line, err = in.ReadString('\n') // a close with unread bytes would reset the connection
		}
		_, _ = io.WriteString(conn, first)
	})
	if l, err = net.Listen("tcp", at(grpcPort)); err != nil {
		t.Fatal(err)
	}
	rpc := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(rpc, &healthServer{version: version})
	ended := make(chan error, 1)
	go func() { ended <- rpc.Serve(l) }()
	t.Cleanup(func() { rpc.Stop(); <-ended })
}

// streamed sends a text over a connection from an address, if it is set, and returns all that
// the server sends.
func streamed(t *testing.T, from, to, text string) string {
	t.Helper()
	d := net.Dialer{}
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	conn, err := d.DialContext(t.Context(), "tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(deadline)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(got)
}
