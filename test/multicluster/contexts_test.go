package multicluster

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/test/kube"
)

// severalContexts asks the control planes of both clusters with one command.
func severalContexts(t *testing.T, m *mesh) {
	config := kube.MergedKubeconfig(t, m.east.Cluster, m.west.Cluster)
	ask := func(args ...string) (stdout, stderr string, err error) {
		t.Helper()
		cmd := exec.Command(meshctl, append(args, "--kubeconfig", config)...)
		var out, talk bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &talk
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + m.dir}
		err = cmd.Run()
		return out.String(), talk.String(), err
	}
	replicasIn := func(table string) []string {
		var out []string
		for _, name := range []string{"east/", "west/"} {
			if strings.Contains(table, name) {
				out = append(out, name)
			}
		}
		return out
	}
	both := []string{"east/", "west/"}
	for _, flags := range [][]string{{"--context", "east,west"}, {"--context", "west", "--context", "east"}, {"--context", "east", "--all-clusters"}} {
		for _, command := range [][]string{{"remote-clusters"}, {"ps"}, {"x", "internal-debug", "xds/nacks", "--all"}} {
			out, talk, err := ask(append(slices.Clone(command), flags...)...)
			if got := replicasIn(out); err != nil || !slices.Equal(got, both) {
				t.Errorf("%s %s: %v, control planes in %s\n%s%s", command, flags, err, got, out, talk)
			}
		}
	}
	out, talk, err := ask("ps", "--context", "east")
	if got := replicasIn(out); err != nil || len(got) > 0 {
		t.Errorf("one context: %v\n%s%s", err, out, talk)
	}
	out, talk, err = ask("ps", "--context", "east,nowhere")
	if got := replicasIn(out); err == nil || !slices.Equal(got, both[:1]) || !strings.Contains(talk, `nowhere: the kubeconfig has no context "nowhere"`) {
		t.Errorf("a context that does not exist: %v\n%s%s", err, out, talk)
	}
	workloadsOfContexts(t, m, ask)
	config = m.east.kubeconfig
	out, talk, err = ask("ps", "--all-clusters")
	if got := replicasIn(out); err == nil || !slices.Equal(got, both[:1]) || !strings.Contains(talk, "west: no context of the kubeconfig has the API server https://") {
		t.Errorf("a cluster without a context: %v\n%s%s", err, out, talk)
	}
	if _, talk, err = ask("ps", "--all-clusters", "--server", "127.0.0.1:1"); err == nil || !strings.Contains(talk, "leave out --all-clusters") {
		t.Errorf("--server with --all-clusters: %v\n%s", err, talk)
	}
}

// workloadsOfContexts names workloads of both clusters. Both have a connected proxy client.sample.
func workloadsOfContexts(t *testing.T, m *mesh, ask func(...string) (string, string, error)) {
	t.Helper()
	for _, p := range []*plane{m.east, m.west} {
		p.Apply(t, `{apiVersion: v1, kind: Pod, metadata: {name: client, namespace: sample, labels: {app: client}}, status: {phase: Running},
  spec: {nodeName: nowhere, automountServiceAccountToken: false, containers: [{name: istio-proxy, image: none}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: client, namespace: sample}, spec: {selector: {app: client}, ports: [{port: 80}]}}`)
	}
	const ambiguous = "client.sample is in clusters east west: name one with --cluster"
	for _, tc := range []struct{ args, stdout, stderr string }{
		{"explain policies client.sample --context east,west", "", ambiguous},
		{"explain policies svc/client.sample --context east --all-clusters", "", ambiguous},
		{"explain policies svc/client.sample --context east,west --cluster west", "", "client.sample is in cluster west"},
		{"explain endpoints helloworld.sample --from svc/client -n sample --context west", "10.2.0.1:5000", "client.sample is in cluster west"},
		{"explain policies nobody.sample --context east,west", "", `no proxy "nobody.sample" is connected`},
		{"explain policies svc/nobody -n sample --context east,west", "", "svc/nobody is not found in 2 clusters: east: service/nobody.sample: there is no such service in namespace sample; west: "},
		{"xds nacks --context east,west", "", "No response was refused by 2 proxies of control planes east/"},
	} {
		out, talk, _ := ask(strings.Fields(tc.args)...)
		if !strings.Contains(out, tc.stdout) || !strings.Contains(talk, tc.stderr) {
			t.Errorf("%s: want %q and %q:\n%s%s", tc.args, tc.stdout, tc.stderr, out, talk)
		}
	}
	for _, p := range []*plane{m.east, m.west} {
		p.Kubectl(t, "", "delete", "pod/client", "service/client", "-n", "sample", "--grace-period=0", "--force")
	}
}
