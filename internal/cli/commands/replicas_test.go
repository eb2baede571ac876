package commands

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/clitest"
	"github.com/meshctl/meshctl/test/kube"
)

// TestReplicasOfACluster: every command with status pages finds the replica by its Lease in
// the cluster of a context.
func TestReplicasOfACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	cluster := kube.Shared(t, "cluster1")
	namespace := cluster.Namespace(t, "asked")
	m := clitest.StartMesh(t, groups()...)
	m.Eventually("SYNCED", "ps")
	code, page, stderr := m.Run("x", "internal-debug", "replica")
	var is struct{ Replica string }
	if err := json.Unmarshal([]byte(page), &is); code != 0 || err != nil || is.Replica == "" {
		t.Fatalf("exit code %d, %v: %s%s", code, err, page, stderr)
	}
	cluster.ReplicaLease(t, namespace, is.Replica, m.Debug, "")
	there := []string{"--kubeconfig", kube.MergedKubeconfig(t, cluster, kube.Shared(t, "cluster2")), "--context", "cluster1", "-i", namespace}
	for _, tc := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{[]string{"ps"}, 0, `client-1\.apps`, `^$`},
		{[]string{"xds", "history", "client-1.apps"}, 0, `client-1\.apps-1 +CDS +request`, `^$`},
		{[]string{"xds", "timeline"}, 0, `Cluster c1`, `^$`},
		{[]string{"xds", "views"}, 0, `CDS +shared`, `^$`},
		{[]string{"xds", "nacks"}, 0, `^AT `, `No response was refused by`},
		{[]string{"x", "internal-debug", "--list"}, 0, `"config_dump"`, `^$`},
		{[]string{"certs", "status"}, 0, `on disk +CN=meshctl self-signed CA`, `^$`},
		{[]string{"xds", "views", "-i", "nowhere"}, 1, `^$`, `namespace nowhere has no Lease .*; --server takes the addresses of replicas`},
	} {
		var out, talk bytes.Buffer
		code := Run(t.Context(), &cli.Env{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &talk, Now: time.Now, LookupEnv: clitest.HomeOnly(m.Home),
		}, slices.Concat(tc.args[:1], there, tc.args[1:]))
		if code != tc.code || !regexp.MustCompile(tc.stdout).MatchString(out.String()) || !regexp.MustCompile(tc.stderr).MatchString(talk.String()) {
			t.Errorf("%v: exit code %d, want %d: %s%s", tc.args, code, tc.code, out.String(), talk.String())
		}
	}
}

// TestCompleteNamesOfACluster completes namespaces, Secrets and clusters of remote secrets.
func TestCompleteNamesOfACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	cluster1 := kube.Shared(t, "cluster1")
	kubeconfig := kube.MergedKubeconfig(t, cluster1, kube.Shared(t, "cluster2"))
	namespace := cluster1.Namespace(t, "completed")
	cluster1.Kubectl(t, "", "create", "secret", "generic", "cacerts", "-n", namespace)
	cluster1.Apply(t, `{apiVersion: v1, kind: Secret, metadata: {name: istio-remote-secret-west, namespace: `+namespace+`, labels: {istio/multiCluster: "true"}}, data: {west: e30=}}`)
	env := map[string]string{"KUBECONFIG": kubeconfig}
	for _, tc := range []struct {
		words string
		want  string
	}{
		{"pc clusters --context cluster1 -n " + namespace, "[" + namespace + "]"},
		{"pc diff --context cluster1 -n " + namespace, "[" + namespace + "]"},
		{"remote-secret list --context cluster1 -i " + namespace, "[" + namespace + "]"},
		{"certs verify --context c1=cluster1,cluster2 -n " + namespace, "[" + namespace + "]"},
		{"certs verify --context cluster1 -n " + namespace + " secret/ca", "[secret/cacerts]"},
		{"remote-secret delete --to cluster1 -n " + namespace + " w", "[west]"},
		{"remote-secret delete --to nowhere -n " + namespace + " w", "[]"},
	} {
		if got, talk := complete(t, t.TempDir(), env, strings.Fields(tc.words)...); fmt.Sprint(got) != tc.want || talk != completed {
			t.Errorf("%s: got %v, want %s; stderr %q", tc.words, got, tc.want, talk)
		}
	}
	m := clitest.StartMesh(t, groups()...)
	m.Eventually("SYNCED", "ps")
	if got, talk := complete(t, m.Home, nil, "ps", "--server", m.Debug, "-n", "a"); fmt.Sprint(got) != "[apps]" || talk != completed {
		t.Errorf("ps -n: got %v, stderr %q", got, talk)
	}
}
