package envoy

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// TestAccessLogOperators checks that Envoy has every operator that MeshConfig's
// accessLogFormat may have: for one that it lacks it refuses all listeners.
func TestAccessLogOperators(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "access.log")
	bootstrap := filepath.Join(dir, "bootstrap.yaml")
	write(t, bootstrap, fmt.Appendf(nil, `
node: {id: test, cluster: test}
static_resources:
  listeners:
  - name: listener
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          route_config: {name: none}
          http_filters:
          - {name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
          access_log:
          - name: file
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: %q
              log_format: {text_format_source: {inline_string: %q}}
`, log, fields.AccessLogOperators()+"the end\n"))
	address := strings.TrimSpace(string(Start(t, bootstrap, "--file-flush-interval-msec", "10").Get("/listeners")))
	_, address, _ = strings.Cut(address, "::")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	for until := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(string(text), "the end\n") {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("the request is not logged: %q", text)
		}
	}
}

// TestExpressionFunctions checks that Envoy has every function that the filter of a Telemetry
// may call: for one that it lacks it refuses all listeners.
func TestExpressionFunctions(t *testing.T) {
	t.Parallel()
	expression, err := os.ReadFile("../../internal/server/source/testdata/functions.cel")
	if err != nil {
		t.Fatal(err)
	}
	bootstrap := filepath.Join(t.TempDir(), "bootstrap.yaml")
	write(t, bootstrap, fmt.Appendf(nil, `
static_resources:
  listeners:
  - name: listener
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: tcp
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
          stat_prefix: tcp
          cluster: none
          access_log:
          - name: file
            filter:
              extension_filter:
                name: cel
                typed_config:
                  "@type": type.googleapis.com/envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter
                  expression: %q
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog
              path: /dev/null
`, expression))
	Start(t, bootstrap)
}
