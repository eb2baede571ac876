package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/test/harness"
)

// telemetries turns the access log off for one workload. Another one logs to a provider,
// without the requests that the filter excludes.
const telemetries = `
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: quiet, namespace: shop}
spec:
  selector: {matchLabels: {app: quiet}}
  accessLogging:
  - providers: [{name: envoy}]
    disabled: true
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: chosen, namespace: shop}
spec:
  selector: {matchLabels: {app: chosen}}
  accessLogging:
  - providers: [{name: own}]
    filter: {expression: 'response.code == 200 && !request.path.startsWith("/skipped")'}
`

// TestTelemetry sends requests through real Envoys of workloads with different Telemetries
// and compares their access logs.
func TestTelemetry(t *testing.T) {
	dir := harness.ShortDir(t)
	log, mesh := filepath.Join(dir, "access.log"), filepath.Join(dir, "mesh")
	for _, cluster := range []string{"cluster1", "cluster2"} {
		if err := os.MkdirAll(filepath.Join(mesh, cluster), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	settings := fmt.Sprintf(`{accessLogFile: %s, accessLogFormat: "mesh %%REQ(:PATH)%%", extensionProviders: `+
		`[{name: own, envoyFileAccessLog: {path: %[1]s, logFormat: {text: "own %%REQ(:PATH)%%"}}}]}`, log)
	if err := os.WriteFile(filepath.Join(mesh, "cluster1", "mesh.yaml"), fmt.Appendf(nil, accessLogMesh+telemetries, settings), 0o600); err != nil {
		t.Fatal(err)
	}
	answers(t, "127.3.0.9:8088", "ok")
	_, secure := controlPlane(t, dir, mesh)
	for app, want := range map[string]string{
		"plain":  "mesh /skipped\nmesh /logged\n",
		"chosen": "own /logged\n",
		"quiet":  "",
	} {
		if err := os.WriteFile(log, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		p := proxy{app, "sidecar", "shop", app, "127.3.0.1", map[string]string{"app": app}}
		stop := p.start(t, dir, secure, "ISTIO_META_INTERCEPTION_MODE=NONE")
		called(t, "http://127.3.0.1:15080/ready", "web.shop") // unsuccessful tries are logged, too
		called(t, "http://127.3.0.1:15080/skipped", "web.shop")
		called(t, "http://127.3.0.1:15080/logged", "web.shop")
		stop() // Envoy writes the rest of the log
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		var got strings.Builder
		for line := range strings.Lines(string(text)) {
			if !strings.HasSuffix(line, "/ready\n") {
				got.WriteString(line)
			}
		}
		if got.String() != want {
			t.Errorf("workload %s: got log %q, want %q", app, got.String(), want)
		}
	}
}
