package commands

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/kube"
)

// TestProxyConfigOfTwoPods compares pods in two clusters, and a pod with a file and an address.
func TestProxyConfigOfTwoPods(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	dump, err := os.ReadFile("../../proxyconfig/testdata/c1-sleep.config.json")
	if err != nil {
		t.Fatal(err)
	}
	envoy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(dump) }))
	defer envoy.Close()
	_, port, _ := strings.Cut(envoy.Listener.Addr().String(), ":")
	changed := filepath.Join(t.TempDir(), "changed.json")
	text := strings.ReplaceAll(string(dump), "10.97.21.11", "10.97.21.12") // an endpoint of helloworld
	if err := os.WriteFile(changed, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	clusters := []*kube.Cluster{kube.Shared(t, "cluster1"), kube.Shared(t, "cluster2")}
	var nodes []*kube.Kubelet
	var ns []string
	for _, c := range clusters {
		nodes, ns = append(nodes, c.Kubelet(t)), append(ns, c.Namespace(t, "pair"))
		last := len(ns) - 1
		c.Apply(t, fmt.Sprintf(`
{apiVersion: v1, kind: Pod, metadata: {name: web-1, namespace: %[1]s, labels: {app: web}}, status: {phase: Running},
  spec: {nodeName: %[2]s, automountServiceAccountToken: false, containers: [{name: istio-proxy, image: none}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: %[1]s}, spec: {selector: {app: web}, ports: [{port: 80}]}}`, ns[last], nodes[last].Node))
	}
	clusters[1].Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: only-b, namespace: %s}, status: {phase: Running},
  spec: {nodeName: %s, automountServiceAccountToken: false, containers: [{name: istio-proxy, image: none}]}}`, ns[1], nodes[1].Node))
	config := kube.MergedKubeconfig(t, clusters...)
	run := func(args ...string) (int, string, string) {
		var out, errs strings.Builder
		code := Run(t.Context(), &cli.Env{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs,
			// The time of the dump, whose certificates were valid for a day.
			Now:       func() time.Time { return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) },
			LookupEnv: func(string) (string, bool) { return "", false },
		}, args)
		return code, out.String(), errs.String()
	}
	names := strings.NewReplacer("NS1", ns[0], "NS2", ns[1], "CHANGED", changed, "ADDRESS", envoy.Listener.Addr().String())
	const two = " --context cluster1 --context-b cluster2"
	for _, tc := range []struct {
		args           string
		code           int
		stdout, stderr string
		asked          [2]int // requests to the nodes of the clusters
	}{
		{"diff web-1.NS1 svc/web.NS2" + two, 0, `^Clusters: \d+, no difference\n`, `^$`, [2]int{1, 1}},
		{
			"diff web-1.NS1 svc/web.NS2 -o json" + two, 0, `"name": "web-1\.NS1 of cluster1",\n +"source": "admin interface localhost:\d+ by port-forward to pod NS1/web-1"\n(.*\n)* +"name": "web-1\.NS2 of cluster2"`,
			`^$`,
			[2]int{1, 1},
		},
		{"diff web-1 web-1 -n NS1 --context cluster1", 0, `no difference`, `^$`, [2]int{2, 0}},
		{
			"diff web-1.NS2 file:CHANGED --context cluster2 --name 5000", 3, `(?m)^\+\+\+ CHANGED Routes: 5000\n(.*\n)*-.*"10\.97\.21\.11",\n\+.*"10\.97\.21\.12",$`,
			`^web-1\.NS2 and CHANGED differ: RDS: 1 of \d+ differ\n$`,
			[2]int{0, 1},
		},
		{"diff file:CHANGED http://ADDRESS --names-only --type rds", 3, `^Routes: 3 and 3, 1 different\nDiffers in Routes: 5000\n$`, `differ`, [2]int{}},
		{
			"rc web-1.NS1 web-1.NS2" + two, 0, `^  "O=cluster\.local" until .*\n$`,
			`^Both \[web-1\.NS1 of cluster1\] and \[web-1\.NS2 of cluster2\] have the identical ROOTCA.*\n$`,
			[2]int{1, 1},
		},
		{"rc web-1.NS1 http://ADDRESS --context cluster1", 0, `^  "O=cluster\.local"`, `^Both \[web-1\.NS1\] and \[ADDRESS\] have.*\n$`, [2]int{1, 0}},

		{"diff web-1.NS1 only-b.NS2 --context cluster1", 1, `^$`, `^Error: namespace NS2 has no pod only-b.*; if B is in another cluster, name it with --context-b\n$`, [2]int{}},
		{"diff web-1.NS1 web-1.NS1 --context cluster1 --context-b cluster3", 1, `^$`, `cluster3`, [2]int{}},
		{"rc web-1.NS1 Web.NS2" + two, 2, `^$`, `"Web" is not a name of Kubernetes`, [2]int{}},
	} {
		before := [2]int{nodes[0].Forwards(), nodes[1].Forwards()}
		args := append([]string{"pc"}, strings.Fields(names.Replace(tc.args))...)
		if strings.Contains(tc.args, "web") {
			args = append(args, "--kubeconfig", config, "--proxy-admin-port", port)
		}
		code, stdout, stderr := run(args...)
		wantOut, wantErr := names.Replace(tc.stdout), names.Replace(tc.stderr)
		if code != tc.code || !regexp.MustCompile(wantOut).MatchString(stdout) || !regexp.MustCompile(wantErr).MatchString(stderr) {
			t.Errorf("%s: exit code %d, want %d, %s and %s:\n%.900s\n%s", tc.args, code, tc.code, wantOut, wantErr, stdout, stderr)
		}
		for i, n := range nodes {
			if got := n.Forwards() - before[i]; got != tc.asked[i] {
				t.Errorf("%s: %d port-forwards in cluster%d, want %d", tc.args, got, i+1, tc.asked[i])
			}
		}
	}

	for typed, want := range map[string]string{
		"-n " + ns[0] + two + " ":               "web-1\n:4\n",
		"-n " + ns[1] + two + " web-1 ":         "only-b\nweb-1\n:4\n",
		"-n " + ns[1] + two + " web-1 o":        "only-b\n:4\n",
		"-n " + ns[1] + two + " web-1 web-1 ":   ":4\n",
		"-n " + ns[1] + two + " web-1 http://1": ":4\n",
	} {
		args := append([]string{"__complete", "pc", "diff", "--kubeconfig", config}, strings.Split(typed, " ")...)
		if _, stdout, _ := run(args...); stdout != want {
			t.Errorf("completed %q: %q, want %q", typed, stdout, want)
		}
	}
}
