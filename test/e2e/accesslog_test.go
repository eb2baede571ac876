package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/harness"
)

// accessLogMesh has a service and a Sidecar whose egress listener takes calls
// to it without redirection.
const accessLogMesh = `
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    %s
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.80
  ports:
  - {name: http, port: 15080, targetPort: 8088}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports:
- {name: http, port: 8088}
endpoints:
- addresses: [127.3.0.9]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec:
  egress:
  - port: {number: 15080, name: http, protocol: HTTP}
    bind: 127.3.0.1
    hosts: ["*/*"]
`

// TestAccessLog sends a request through a real Envoy and finds it where
// accessLogFile says, as text and as JSON.
func TestAccessLog(t *testing.T) {
	file := filepath.Join(harness.ShortDir(t), "access.log")
	for name, tc := range map[string]struct {
		settings string
		from     string // the file that has the log; empty is what the agent writes
		logged   func(line string) bool
	}{
		"default text": {
			"accessLogFile: " + file, file, func(line string) bool {
				return strings.Contains(line, `"GET /logged HTTP/1.1" 200 - via_upstream - "-" 0 2 `) &&
					strings.HasSuffix(line, " default") && strings.Contains(line, " outbound|15080||web.shop.svc.cluster.local ")
			},
		},
		"own text": {
			`{accessLogFile: /dev/stdout, accessLogFormat: "mine %REQ(:PATH)%"}`, "", func(line string) bool { return line == "mine /logged" },
		},
		"default JSON": {
			"{accessLogFile: /dev/stdout, accessLogEncoding: JSON}", "", func(line string) bool {
				var entry struct {
					Method, Path string
					ResponseCode int    `json:"response_code"`
					UpstreamHost string `json:"upstream_host"`
				}
				return json.Unmarshal([]byte(line), &entry) == nil && entry.Method == "GET" && entry.Path == "/logged" &&
					entry.ResponseCode == http.StatusOK && entry.UpstreamHost == "127.3.0.9:8088"
			},
		},
		"own JSON": {
			`{accessLogFile: /dev/stdout, accessLogEncoding: JSON, accessLogFormat: '{"to": {"path": "%REQ(:PATH)%"}}'}`, "",
			func(line string) bool { return line == `{"to":{"path":"/logged"}}` },
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := harness.ShortDir(t)
			mesh := filepath.Join(dir, "mesh")
			for _, cluster := range []string{"cluster1", "cluster2"} {
				if err := os.MkdirAll(filepath.Join(mesh, cluster), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(mesh, "cluster1", "mesh.yaml"), fmt.Appendf(nil, accessLogMesh, tc.settings), 0o600); err != nil {
				t.Fatal(err)
			}
			answers(t, "127.3.0.9:8088", "ok")
			_, secure := controlPlane(t, dir, mesh)
			p := proxy{"client", "sidecar", "shop", "client", "127.3.0.1", nil}
			stop := p.start(t, dir, secure, "ISTIO_META_INTERCEPTION_MODE=NONE")
			defer stop()
			log := tc.from
			if log == "" {
				log = filepath.Join(dir, "client.log")
			}
			called(t, "http://127.3.0.1:15080/logged", "web.shop")
			eventually(t, "the request is logged", func() error {
				text, err := os.ReadFile(log)
				for line := range strings.Lines(string(text)) {
					if tc.logged(strings.TrimSuffix(line, "\n")) {
						return nil
					}
				}
				return errors.Join(err, fmt.Errorf("the log is: %s", text))
			})
		})
	}
}

// TestAccessLogsOfDirections: Telemetry entries of outbound calls leave the logs of inbound calls as
// they are, and the other way round.
func TestAccessLogsOfDirections(t *testing.T) {
	const settings = "{extensionProviders: [{name: log, envoyFileAccessLog: {path: %[1]s, logFormat: {text: \"%%REQ(:PATH)%%\\n\"}}}, " +
		"{name: failures, envoyFileAccessLog: {path: %[1]s, logFormat: {text: \"%%REQ(:PATH)%%\\n\"}}}]}"
	const failuresOfServers = `match: {mode: SERVER}, filter: {expression: "response.code >= 500"}`
	telemetry := func(namespace, entries string) string {
		return fmt.Sprintf("---\napiVersion: telemetry.istio.io/v1\nkind: Telemetry\nmetadata: {name: logs, namespace: %s}\nspec: {accessLogging: [%s]}\n", namespace, entries)
	}
	clients := "{providers: [{name: log}], match: {mode: CLIENT}}"
	for name, objects := range map[string]string{
		"filters":   telemetry("shop", clients+", {providers: [{name: log}], "+failuresOfServers+"}"),
		"providers": telemetry("istio-system", clients) + telemetry("shop", "{providers: [{name: failures}], "+failuresOfServers+"}"),
	} {
		t.Run(name, func(t *testing.T) {
			dir := harness.ShortDir(t)
			mesh, log := filepath.Join(dir, "mesh"), filepath.Join(dir, "access.log")
			for _, cluster := range []string{"cluster1", "cluster2"} {
				if err := os.MkdirAll(filepath.Join(mesh, cluster), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			ingress := "  ingress: [{port: {number: 15081, name: http, protocol: HTTP}, bind: 127.3.0.1, defaultEndpoint: '127.0.0.1:8089'}]\n"
			text := fmt.Sprintf(accessLogMesh, fmt.Sprintf(settings, log)) + ingress + objects
			if err := os.WriteFile(filepath.Join(mesh, "cluster1", "mesh.yaml"), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			answers(t, "127.3.0.9:8088", "ok")
			serves(t, "127.0.0.1:8089", func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/in-fails" {
					w.WriteHeader(http.StatusInternalServerError)
				}
			})
			_, secure := controlPlane(t, dir, mesh)
			p := proxy{"client", "sidecar", "shop", "client", "127.3.0.1", nil}
			stop := p.start(t, dir, secure, "ISTIO_META_INTERCEPTION_MODE=NONE")
			defer stop()
			called(t, "http://127.3.0.1:15081/in", "")
			called(t, "http://127.3.0.1:15080/out", "web.shop")
			if _, _, err := get("http://127.3.0.1:15081/in-fails"); err == nil {
				t.Error("the inbound call does not fail")
			}
			eventually(t, "the calls are logged", func() error {
				lines, err := os.ReadFile(log)
				if got := strings.Fields(string(lines)); err != nil || len(got) != 2 || !slices.Contains(got, "/out") || !slices.Contains(got, "/in-fails") {
					return fmt.Errorf("the log is %q, want the outbound call and the failed inbound call, error %w", got, err)
				}
				return nil
			})
		})
	}
}

// called sends a request for a host to a URL until it is answered, and returns
// the answer.
func called(t *testing.T, url, host string) (body string) {
	t.Helper()
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	eventually(t, "the request is answered", func() error {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		req.Host = host
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		b, err := io.ReadAll(resp.Body)
		body = string(b)
		return err
	})
	return body
}
