package attacks

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/harness"
)

const filesAddress = "127.79.0.3:8000"

// publicFiles is a gateway and a server of large files behind it.
const publicFiles = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: shared, namespace: edge}
spec:
  selector: {istio: ingress}
  servers:
  - {port: {number: 8880, name: http, protocol: HTTP}, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: files, namespace: edge}
spec:
  hosts: [files.example]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8000}]
  endpoints: [{address: 127.79.0.3}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: files, namespace: edge}
spec:
  hosts: ["*"]
  gateways: [edge/shared]
  http: [{route: [{destination: {host: files.example}}]}]
`

// sidecarOfFiles is the sidecar of a server of large files, whose port is missing.
const sidecarOfFiles = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: edge}
spec: {mtls: {mode: DISABLE}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: edge}
spec:
  ingress: [{port: {number: 8880, name: port, protocol: %s}, bind: ` + gatewayAddress + `, defaultEndpoint: %q}]
`

// greedyCallers request much and read nothing.
var greedyCallers = map[string]func(t *testing.T){
	"4 connections with 200 requests": func(t *testing.T) {
		for range 4 {
			requestFiles(t, 200)
		}
	},
	"1 connection with 1000 requests": func(t *testing.T) { requestFiles(t, 1000) },
	"500 connections of HTTP/1.1":     manyConnections,
}

func manyConnections(t *testing.T) {
	for range 500 {
		requestFile(t)
	}
}

// TestCallersOfGatewaysLeaveMemory: callers who request much and read nothing leave a gateway with a
// memory limit to the others, however many requests a connection has.
func TestCallersOfGatewaysLeaveMemory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: callers that fill the memory of a gateway, because a hosts file of its own and a cgroup need root")
	}
	for name, attack := range greedyCallers {
		t.Run(name, func(t *testing.T) {
			serveFiles(t, filesAddress)
			dir := harness.ShortDir(t)
			startSharedControlPlane(t, dir, publicFiles)
			_, ended := startSharedGateway(t, dir, harness.MemoryGroup(t, 512<<20))
			othersGetAnswers(t, attack, ended)
		})
	}
}

// TestCallersOfSidecarsLeaveMemory: so they do with a sidecar.
func TestCallersOfSidecarsLeaveMemory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: callers that fill the memory of a sidecar, because a cgroup needs root")
	}
	start := func(t *testing.T, protocol string, attack func(*testing.T)) {
		dir := harness.ShortDir(t)
		startSharedControlPlane(t, dir, fmt.Sprintf(sidecarOfFiles, protocol, serveFiles(t, "127.0.0.1:0")))
		_, ended := startProgram(t, dir, "agent", []string{
			"POD_NAME=files", "POD_NAMESPACE=edge", "SERVICE_ACCOUNT=ingress", "INSTANCE_IP=" + gatewayAddress, "CA_ADDR=" + sharedControlPlane + ":15012",
			`PROXY_CONFIG={"discoveryAddress":"` + sharedControlPlane + `:15012","concurrency":1,"terminationDrainDuration":"0s"}`,
			"ISTIO_META_CLUSTER_ID=cluster1", "ISTIO_META_INTERCEPTION_MODE=NONE",
		}, "sh", "-c", `echo $$ >"$0" && exec "$@"`, harness.MemoryGroup(t, 512<<20),
			meshctl, "agent", "--type", "sidecar", "--envoy", envoy.Path(t), "--bind-address", gatewayAddress,
			"--root-ca", filepath.Join(dir, "ca", "cluster1", "root-cert.pem"), "--token", filepath.Join(dir, "token"))
		othersGetAnswers(t, attack, ended)
	}
	for name, attack := range greedyCallers {
		t.Run(name, func(t *testing.T) { start(t, "HTTP", attack) })
	}
	t.Run("500 connections of TCP", func(t *testing.T) { start(t, "TCP", manyConnections) })
}

// othersGetAnswers checks that others get answers from a proxy during an attack.
func othersGetAnswers(t *testing.T, attack func(*testing.T), ended <-chan error) {
	t.Helper()
	others := dial.HTTPClient(deadline, nil)
	defer others.CloseIdleConnections()
	answers := func(n int) func() error {
		return func() error {
			for range n {
				select {
				case err := <-ended:
					t.Fatalf("the proxy ended: %v", err)
				case <-time.After(100 * time.Millisecond):
				}
				if got := answered(others.Get("http://" + gatewayAddress + ":8880/small")); !strings.HasPrefix(got, "200 ") {
					return fmt.Errorf("%.200s", got)
				}
			}
			return nil
		}
	}
	eventually(t, "the proxy has the route", answers(1))
	attack(t)
	eventually(t, "others get answers", answers(50))
}

// requestFile sends a request for the large file in HTTP/1.1 and does not read the answer.
func requestFile(t *testing.T) {
	t.Helper()
	conn, err := net.Dial("tcp", gatewayAddress+":8880")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := io.WriteString(conn, "GET /large HTTP/1.1\r\nHost: files\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
}

// serveFiles serves a small and a large file, and returns its address.
func serveFiles(t *testing.T, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 64<<20)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/large" {
			_, _ = w.Write(large) // the gateway may close the connection
		}
	}))
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	return l.Addr().String()
}

// requestFiles sends requests for the large file on one connection of HTTP/2 and does not read the answers.
func requestFiles(t *testing.T, requests uint32) {
	t.Helper()
	conn, err := net.Dial("tcp", gatewayAddress+":8880")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	var fields bytes.Buffer
	encoder := hpack.NewEncoder(&fields)
	framer := http2.NewFramer(conn, nil)
	_, err = io.WriteString(conn, http2.ClientPreface)
	err = errors.Join(err, framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	for i := range requests {
		fields.Reset()
		for _, f := range []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "files"}, {Name: ":path", Value: "/large"}} {
			err = errors.Join(err, encoder.WriteField(f))
		}
		err = errors.Join(err, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: fields.Bytes(), EndHeaders: true, EndStream: true}))
	}
	if err != nil {
		t.Fatal(err)
	}
}
