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
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/meshctl/meshctl/internal/dial"
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

// TestCallersOfGatewaysLeaveMemory: callers who request much and read nothing leave a gateway with a
// memory limit to the others, however many requests a connection has.
func TestCallersOfGatewaysLeaveMemory(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: callers that fill the memory of a gateway, because a hosts file of its own and a cgroup need root")
	}
	for name, attack := range map[string]func(t *testing.T){
		"4 connections with 200 requests": func(t *testing.T) {
			for range 4 {
				requestFiles(t, 200)
			}
		},
		"1 connection with 1000 requests": func(t *testing.T) { requestFiles(t, 1000) },
		"500 connections of HTTP/1.1": func(t *testing.T) {
			for range 500 {
				requestFile(t)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			group := harness.MemoryGroup(t, 512<<20)
			dir := harness.ShortDir(t)
			serveFiles(t)
			startSharedControlPlane(t, dir, publicFiles)
			_, ended := startSharedGateway(t, dir, group)
			others := dial.HTTPClient(deadline, nil)
			defer others.CloseIdleConnections()
			answers := func(n int) func() error {
				return func() error {
					for range n {
						select {
						case err := <-ended:
							t.Fatalf("the gateway ended: %v", err)
						case <-time.After(100 * time.Millisecond):
						}
						if got := answered(others.Get("http://" + gatewayAddress + ":8880/small")); !strings.HasPrefix(got, "200 ") {
							return fmt.Errorf("%.200s", got)
						}
					}
					return nil
				}
			}
			eventually(t, "the gateway has the route", answers(1))
			attack(t)
			eventually(t, "others get answers", answers(50))
		})
	}
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

// serveFiles serves a small and a large file.
func serveFiles(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", filesAddress)
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
