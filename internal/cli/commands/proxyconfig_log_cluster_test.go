package commands

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/kube"
)

// TestProxyConfigLog changes the log levels of a real Envoy, by address and as the Envoy of
// two pods.
func TestProxyConfigLog(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Envoy and Kubernetes")
	}
	cluster := kube.Shared(t, "cluster2")
	ns, config := cluster.Namespace(t, "log"), cluster.KubeconfigFile(t)
	for i := range 2 {
		cluster.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: web-%d, namespace: %s, labels: {app: web}}, status: {phase: Running},
  spec: {nodeName: %s, automountServiceAccountToken: false, containers: [{name: istio-proxy, image: none}]}}`, i, ns, cluster.Kubelet(t).Node))
	}
	bootstrap := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(bootstrap, []byte("node: {id: test, cluster: test}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	proxy := envoy.Start(t, bootstrap, "-l", "error", "--component-log-level", "router:info,http:critical")
	_, port, err := net.SplitHostPort(proxy.Admin)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"--admin " + proxy.Admin, 0, `^127\.0\.0\.1:\d+:\nactive loggers:\n  \w+: error\n(.*\n)*  http: critical\n(.*\n)*  router: info\n(.*\n)*\n$`, `^$`},
		{"--admin " + proxy.Admin + " --level debug,http:trace", 0, `(?m)^  admin: debug\n(.*\n)*  http: trace\n(.*\n)*  router: debug$`, `^$`},
		{"--admin " + proxy.Admin + " --level warn,htp:trace", 1, `^$`, `^Error: admin interface 127\.0\.0\.1:\d+: unrecognized logger name: "htp", did you mean "http"\?\n$`},
		{"--admin " + proxy.Admin, 0, `(?m)^  admin: debug\n(.*\n)*  http: trace$`, `^$`}, // unchanged
		{"--admin " + proxy.Admin + " -r", 0, `(?m)^  admin: error\n(.*\n)*  http: critical\n(.*\n)*  router: info$`, `^$`},
		{"deploy/web --reset", 1, `^$`, `^Error: deployment/web\.NS: there is no such deployment`},
		{"web-1 --level off -o json", 0, `^\[\n +\{\n +"envoy": "web-1\.NS",\n +"loggers": \{\n(.*\n)* +"http": "off",`, `^$`},
		{"-l app=web -o yaml --level router=info", 0, `^- envoy: web-0\.NS\n  loggers:\n(.*\n)*    router: info\n(.*\n)*- envoy: web-1\.NS\n`, `^$`},
		{"-l app=web --reset", 0, `^web-0\.NS:\nactive loggers:\n(.*\n)*\nweb-1\.NS:\nactive loggers:\n`, `^$`},
		{"-l app=web --proxy-admin-port 1 -o json", 1, `(?m)^ +"envoy": "web-0\.NS",\n +"error": "ask Envoy's admin interface`, `^ask Envoy's admin interface localhost:1 by port-forward to pod NS/web-0: .*\nask Envoy's .* pod NS/web-1: .*\nError: 2 of 2 Envoys failed, see above\n$`},
		{"-l app=nobody", 1, `^$`, `no pods match "app=nobody": none in namespace NS has the labels app=nobody\n$`},

		{"", 2, `^$`, `--context is for a workload`},
		{"-l a=,=", 2, `^$`, `--selector "a=,=": `},
		{"web-1 -l app=web", 2, `^$`, `give one source: either workload web-1 or --selector`},
		{"-l app=web --admin 127.0.0.1:1", 2, `^$`, `(?s)selector.*admin`},
		{"web-1 --level info -r", 2, `^$`, `(?s)level.*reset`},
		{"web-1 --level=", 2, `^$`, `--level: unrecognized logging level: "" is none of trace, debug`},
		{"web-1 --level loud", 2, `^$`, `--level: unrecognized logging level: "loud" is none of trace, debug`},
	} {
		args := append([]string{"pc", "log"}, strings.Fields(tc.args)...)
		if !strings.Contains(tc.args, "--admin") {
			args = append(args, "--context", "cluster2", "-n", ns, "--kubeconfig", config)
			if !strings.Contains(tc.args, "--proxy-admin-port") {
				args = append(args, "--proxy-admin-port", port)
			}
		}
		var out, errs strings.Builder
		code := Run(t.Context(), &cli.Env{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Now: time.Now,
			LookupEnv: func(string) (string, bool) { return "", false },
		}, args)
		wantOut, wantErr := strings.ReplaceAll(tc.stdout, "NS", ns), strings.ReplaceAll(tc.stderr, "NS", ns)
		if code != tc.code || !regexp.MustCompile(wantOut).MatchString(out.String()) || !regexp.MustCompile(wantErr).MatchString(errs.String()) {
			t.Errorf("%s: exit code %d, want %d, %s and %s:\n%s\n%s", tc.args, code, tc.code, wantOut, wantErr, out.String(), errs.String())
		}
	}
}
