package commands

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/kube"
)

// podsOfTwo returns the pods of one of two clusters: web-0 is in both, and the Service single selects
// pods in one of them only.
func podsOfTwo(ns, node, own string) string {
	pod := func(name, app string) string {
		return fmt.Sprintf(`
---
{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %s, labels: {app: %s}}, status: {phase: Running},
  spec: {nodeName: %s, automountServiceAccountToken: false, containers: [{name: istio-proxy, image: none}]}}`, name, ns, app, node)
	}
	service := func(app string) string {
		return fmt.Sprintf("\n---\n{apiVersion: v1, kind: Service, metadata: {name: %s, namespace: %s}, spec: {selector: {app: %[1]s}, ports: [{port: 80}]}}", app, ns)
	}
	text := pod("web-0", "web") + pod("only-"+own, "web") + service("web") + service("single")
	if own == "b" {
		text += pod("alone", "single")
	}
	return strings.TrimPrefix(text, "\n---\n")
}

// ofTwo is a command about the pods of podsOfTwo, and its result. NS is their namespace.
type ofTwo struct {
	args           string
	code           int
	stdout, stderr string
}

func workloadsOfTwo() []ofTwo {
	const inBoth = ` is in several clusters, of the contexts cluster1, cluster2: name `
	return []ofTwo{
		{"pc c only-a", 0, `EDS`, `^This is only-a\.NS of cluster1\n$`},
		{"pc c only-b", 0, `EDS`, `^This is only-b\.NS of cluster2\n$`},
		{"pc l pod/only-b.NS -o json", 0, `^\[`, `^This is only-b\.NS of cluster2\n$`},
		{"pc all svc/single", 0, `EDS`, `^This is alone\.NS of cluster2\n`},
		{"pc s only-b", 0, `ROOTCA`, `of cluster2`},
		{"pc b only-b -o short", 0, `Istio Version`, `of cluster2`},
		{"authz list only-b", 0, ``, `of cluster2`},
		{"authz check only-b --port 1", 0, `^allowed`, `of cluster2`},
		{"pc c web-0", 2, `^$`, `^Error: pod/web-0\.NS` + inBoth + `one of them with --context\n`},
		{"pc r svc/web.NS", 2, `^$`, `^Error: service/web\.NS` + inBoth},
		{"authz list web-0.NS", 2, `^$`, `^Error: pod/web-0\.NS` + inBoth},
		{"authz check svc/web", 2, `^$`, `^Error: service/web\.NS` + inBoth},
		{"pc c nowhere", 1, `^$`, `^Error: nowhere is not found in 2 clusters: cluster1: namespace NS has no pod nowhere.*; cluster2: namespace NS has no pod nowhere`},
		{"pc c deploy/web", 1, `^$`, `cluster1: deployment/web\.NS: there is no such deployment in namespace NS; cluster2: `},
		{"pc c nosuch/web", 2, `^$`, `^Error: "nosuch/web": kind "nosuch" is none of`},
		{"pc log svc/web", 0, `(?s)(only-a\.NS of cluster1:\n.*web-0|web-0\.NS of cluster1:\n.*only-a)\.NS of cluster1:\n.*(only-b\.NS of cluster2:\n.*web-0|web-0\.NS of cluster2:\n.*only-b)\.NS of cluster2:\n`, `^$`},
		{"pc log -l app=single -o json", 0, `"envoy": "alone\.NS of cluster2"`, `^$`},
		{"pc diff only-a only-b", 0, `no difference`, `^This is only-a\.NS of cluster1\nThis is only-b\.NS of cluster2\n$`},
		{"pc rc only-a only-b", 0, `O=cluster`, `Both \[only-a\.NS of cluster1\] and \[only-b\.NS of cluster2\]`},
		{"pc diff only-a web-0", 2, `^$`, inBoth + `that of A with --context and that of B with --context-b`},
		{"pc diff only-a web-0 --context-b cluster2", 0, `no difference`, `^This is only-a\.NS of cluster1\n$`},
	}
}

// TestWorkloadsOfSeveralClusters: a workload is found in the cluster that has it, and one of two clusters
// is an error that names both, for each command that reads an Envoy in a pod.
func TestWorkloadsOfSeveralClusters(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	dump, err := os.ReadFile("../../proxyconfig/testdata/c1-sleep.config.json")
	if err != nil {
		t.Fatal(err)
	}
	envoy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/logging") {
			_, _ = w.Write([]byte("active loggers:\n  http: info\n"))
			return
		}
		_, _ = w.Write(dump)
	}))
	defer envoy.Close()
	_, port, _ := strings.Cut(envoy.Listener.Addr().String(), ":")
	clusters := []*kube.Cluster{kube.Shared(t, "cluster1"), kube.Shared(t, "cluster2")}
	ns := clusters[0].Namespace(t, "several")
	clusters[1].Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+ns+"}}")
	for i, c := range clusters {
		c.Apply(t, podsOfTwo(ns, c.Kubelet(t).Node, string(rune('a'+i))))
	}
	config := kube.MergedKubeconfig(t, clusters...)
	now := time.Now
	run := func(args ...string) (int, string, string) {
		args = slices.Insert(args, len(args)-1, "--kubeconfig", config)
		var out, errs strings.Builder
		code := Run(t.Context(), &cli.Env{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Now: now,
			LookupEnv: func(string) (string, bool) { return "", false },
		}, args)
		return code, out.String(), errs.String()
	}
	link := []string{"create-remote-secret", "--context", "cluster2", "--name", "two", "-n", ns, "--to", "cluster1", "--apply"}
	if code, stdout, stderr := run(link...); code != 0 {
		t.Fatalf("create-remote-secret: %d: %s%s", code, stdout, stderr)
	}
	now = func() time.Time { return time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC) } // of the dump
	for _, flags := range []string{"--context cluster1,cluster2", "--context cluster1 --all-clusters -i " + ns, "--context one=cluster1 --context two=cluster2"} {
		for _, tc := range workloadsOfTwo() {
			args := append(strings.Fields(strings.ReplaceAll(tc.args, "NS", ns)), strings.Fields(flags)...)
			code, stdout, stderr := run(append(args, "-n", ns, "--proxy-admin-port="+port)...)
			wantOut, wantErr := strings.ReplaceAll(tc.stdout, "NS", ns), strings.ReplaceAll(tc.stderr, "NS", ns)
			if code != tc.code || !regexp.MustCompile(wantOut).MatchString(stdout) || !regexp.MustCompile(wantErr).MatchString(stderr) {
				t.Errorf("%s %s: exit code %d, want %d, %s and %s:\n%.500s\n%s", tc.args, flags, code, tc.code, wantOut, wantErr, stdout, stderr)
			}
		}
	}
	// A cluster that cannot be read is told, and the others are used.
	code, stdout, stderr := run("pc", "c", "only-b", "-n", ns, "--context", "cluster3,cluster2", "--proxy-admin-port="+port)
	if code != 0 || !strings.Contains(stdout, "EDS") || !strings.Contains(stderr, `Warning: cluster cluster3 is not read: the kubeconfig has no context "cluster3"`) {
		t.Errorf("a context that does not exist: exit code %d: %.300s%s", code, stdout, stderr)
	}
	code, stdout, stderr = run("__complete", "pc", "c", "-n", ns, "--context", "cluster1,cluster2", "only")
	if code != 0 || stdout != "only-a\nonly-b\n:4\n" {
		t.Errorf("completed: %d %q %s", code, stdout, stderr)
	}
}
