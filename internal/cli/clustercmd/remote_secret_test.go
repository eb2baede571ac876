package clustercmd

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	corekube "github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/test/kube"
)

// TestNoCommandRunsPlugins: no command runs a plugin that a remote secret names.
func TestNoCommandRunsPlugins(t *testing.T) {
	t.Parallel()
	_, cluster2, kubeconfig := twoClusters(t)
	namespace := cluster2.Namespace(t, "plugin")
	ran := filepath.Join(t.TempDir(), "ran")
	secret := corev1.Secret{StringData: map[string]string{"evil": `apiVersion: v1
kind: Config
current-context: e
clusters: [{name: e, cluster: {server: "https://10.0.0.1"}}]
users: [{name: e, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: ["` + ran + `"], interactiveMode: Never}}}]
contexts: [{name: e, context: {cluster: e, user: e}}]
`}}
	secret.APIVersion, secret.Kind = "v1", "Secret"
	secret.Name, secret.Namespace, secret.Labels = "istio-remote-secret-evil", namespace, map[string]string{remotesecret.Label: remotesecret.LabelValue}
	text, err := yaml.Marshal(secret)
	if err != nil {
		t.Fatal(err)
	}
	cluster2.Apply(t, string(text))
	path := filepath.Join(t.TempDir(), "evil.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args []string
		code int
		want string
	}{
		"check of a file":    {[]string{"remote-secret", "check", path}, 3, "exec is not allowed"},
		"check of a cluster": {[]string{"remote-secret", "check", "--context", "cluster2", "-n", namespace}, 3, "users[0].user.exec"},
		"list":               {[]string{"remote-secret", "list", "--context", "cluster2", "-n", namespace}, 0, "evil"},
		"rotate":             {[]string{"remote-secret", "rotate", "--context", "cluster1", "--name", "evil", "--to", "cluster2", "-n", namespace, "--no-wait"}, 1, "no token of a service account"},
		"delete": {
			[]string{"remote-secret", "delete", "evil", "--to", "cluster2", "--revoke-in", "cluster1", "-n", namespace},
			1, "no token of a service account",
		},
	} {
		r := meshctl(t, kubeconfig, tc.args...)
		if r.code != tc.code || !strings.Contains(r.stdout+r.stderr, tc.want) {
			t.Errorf("%s: exit %d, want %d with %q\n%s%s", name, r.code, tc.code, tc.want, r.stdout, r.stderr)
		}
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the plug-in ran")
	}
}

func TestRemoteSecretCheckAndList(t *testing.T) {
	t.Parallel()
	_, cluster2, kubeconfig := twoClusters(t)
	namespace, args := prepared(t, cluster2, "--ttl", "1h")
	r := must(t, kubeconfig, args...)
	cluster2.Kubectl(t, r.stdout, "apply", "-f", "-")
	c := decoded(t, r.stdout)

	checked := must(t, kubeconfig, "remote-secret", "check", "--context", "cluster2", "-n", namespace)
	if !strings.Contains(checked.stdout, "loopback") || !strings.Contains(checked.stderr, "1 cluster can be used") {
		t.Errorf("loopback is a warning:\n%s%s", checked.stdout, checked.stderr)
	}
	checked = meshctl(t, kubeconfig, "remote-secret", "check", "--context", "cluster2", "-n", namespace, "--in-pod", "-o", "json")
	var findings []remotesecret.Finding
	if err := json.Unmarshal([]byte(checked.stdout), &findings); err != nil || checked.code != 3 || len(findings) != 1 || findings[0].Severity != remotesecret.Refused {
		t.Errorf("in a pod: exit %d, error %v\n%s%s", checked.code, err, checked.stdout, checked.stderr)
	}
	must(t, kubeconfig, "remote-secret", "check", "--context", "cluster2", "-n", namespace, "--in-pod", "--insecure-remote", "cluster2=loopback")

	mine := strings.Replace(r.stdout, "token: "+c.User.Token, "token: refused", 1)
	if mine == r.stdout {
		t.Fatal("the secret has no such token")
	}
	cluster2.Kubectl(t, mine, "apply", "-f", "-")
	refused := meshctl(t, kubeconfig, "remote-secret", "check", "--context", "cluster2", "-n", namespace)
	if refused.code != 3 || !strings.Contains(refused.stdout, "credential-refused") || !strings.Contains(refused.stdout, "remote-secret rotate") {
		t.Errorf("a refused credential: exit %d\n%s%s", refused.code, refused.stdout, refused.stderr)
	}
	cluster2.Kubectl(t, r.stdout, "apply", "-f", "-")
	account, err := create.AccountOf(c)
	if err != nil {
		t.Fatal(err)
	}
	bindings := cluster2.Kubectl(t, "", "get", "clusterrolebindings", "-o", "name")
	for line := range strings.Lines(bindings) {
		if strings.Contains(line, "meshctl-reader-"+account.Namespace+"-"+account.Name) {
			cluster2.Kubectl(t, "", "delete", strings.TrimSpace(line))
		}
	}
	lacks := meshctl(t, kubeconfig, "remote-secret", "check", "--context", "cluster2", "-n", namespace)
	if lacks.code != 3 || !strings.Contains(lacks.stdout, "missing-rights") || !strings.Contains(lacks.stdout, "list services") {
		t.Errorf("missing rights: exit %d\n%s%s", lacks.code, lacks.stdout, lacks.stderr)
	}

	list := must(t, kubeconfig, "remote-secret", "list", "--context", "cluster2", "-n", namespace)
	for _, want := range []string{"cluster2", namespace + "/istio-remote-secret-cluster2", c.Server.Server, ", renewed", c.CredentialHash()} {
		if !strings.Contains(list.stdout, want) {
			t.Errorf("no %q in\n%s", want, list.stdout)
		}
	}
	for _, out := range []result{checked, list, must(t, kubeconfig, "remote-secret", "list", "--context", "cluster2", "-n", namespace, "-o", "yaml")} {
		if strings.Contains(out.stdout+out.stderr, c.User.Token) {
			t.Error("the token is printed")
		}
	}
	if r := meshctl(t, kubeconfig, "remote-secret", "check", "--insecure-remote", "cluster2=all"); r.code != 2 {
		t.Errorf("--insecure-remote cluster2=all: exit %d, %s", r.code, r.stderr)
	}
}

// linked creates a namespace in both clusters.
func linked(t *testing.T) (cluster1, cluster2 *kube.Cluster, kubeconfig, namespace string) {
	t.Helper()
	cluster1, cluster2, kubeconfig = twoClusters(t)
	namespace = cluster1.Namespace(t, "link")
	cluster2.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}")
	return cluster1, cluster2, kubeconfig, namespace
}

// held returns the remote secret of a cluster in another cluster.
func held(t *testing.T, in *kube.Cluster, namespace, id string) *remotesecret.Cluster {
	t.Helper()
	return decoded(t, in.Kubectl(t, "", "get", "secret", "-n", namespace, "istio-remote-secret-"+id, "-o", "yaml"))
}

// ends checks that the API server refuses the credential.
func ends(t *testing.T, c *remotesecret.Cluster, of *kube.Cluster) {
	t.Helper()
	wantValid(t, of, false, map[string]string{"of " + c.String(): c.User.Token})
}

// accessOf returns the access of a remote secret.
func accessOf(t *testing.T, c *remotesecret.Cluster) *rest.Config {
	t.Helper()
	access, err := corekube.Remote(c, corekube.RemoteOptions{Options: remotesecret.Options{Now: time.Now()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { corekube.Close(access) })
	return access
}

func TestMulticlusterLink(t *testing.T) {
	t.Parallel()
	cluster1, cluster2, kubeconfig, namespace := linked(t)
	for _, more := range [][]string{nil, {"--ttl", "1h"}} {
		args := append([]string{"multicluster", "link", "cluster1", "cluster2", "-n", namespace}, more...)
		r := must(t, kubeconfig, args...)
		if r.stdout != "2 clusters linked\n" || !strings.Contains(r.stderr, "[1/2] wrote secret of cluster cluster1 in context cluster2\n[2/2] wrote secret of cluster cluster2 in context cluster1\n") {
			t.Errorf("%s%s", r.stdout, r.stderr)
		}
		inWest, inEast := held(t, cluster2, namespace, "cluster1"), held(t, cluster1, namespace, "cluster2")
		asReader(t, inWest, cluster1, "get", "services", "-A")
		asReader(t, inEast, cluster2, "get", "services", "-A")
		r = must(t, kubeconfig, args...)
		if held(t, cluster2, namespace, "cluster1").Hash != inWest.Hash || held(t, cluster1, namespace, "cluster2").Hash != inEast.Hash {
			t.Errorf("a second call changes secrets:\n%s", r.stderr)
		}
	}
	for range 2 {
		must(t, kubeconfig, "multicluster", "unlink", "cluster1", "cluster2", "-n", namespace)
		for _, c := range []*kube.Cluster{cluster1, cluster2} {
			if got := c.Kubectl(t, "", "get", "secrets", "-n", namespace, "-l", "istio/multiCluster=true", "-o", "name"); got != "" {
				t.Errorf("left are\n%s", got)
			}
		}
	}
	for args, want := range map[string]string{
		"cluster1":                                   "at least two",
		"cluster1 cluster2 --name north=n":           "is not one of cluster1, cluster2",
		"cluster1 cluster2 --name cluster1=a.b":      "is not a valid DNS 1123 label",
		"cluster1 cluster2 --ttl 1m":                 "the least that API servers allow is 10m",
		"cluster1 cluster2 --name cluster1=cluster2": "would both be cluster cluster2",
		"cluster1 cluster1":                          "are the same cluster",
	} {
		r := meshctl(t, kubeconfig, append([]string{"multicluster", "link", "-n", namespace}, strings.Fields(args)...)...)
		if r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("link %s: exit %d, %s", args, r.code, r.stderr)
		}
	}
}

// fakeReplica serves the status of a control plane with a credential for cluster2.
type fakeReplica struct {
	mu         sync.Mutex
	state      string
	credential string
	asked      chan struct{}
}

func (r *fakeReplica) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == replicas.IdentityPath {
		fmt.Fprint(w, `{"Replica":"slow"}`)
		return
	}
	r.mu.Lock()
	fmt.Fprintf(w, `{"Clusters":[{"Cluster":"own","State":"synced"},{"Cluster":"cluster2","State":%q,"Credential":%q}]}`, r.state, r.credential)
	r.mu.Unlock()
	select {
	case r.asked <- struct{}{}:
	default:
	}
}

func (r *fakeReplica) is(state, credential string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state, r.credential = state, credential
}

func TestRemoteSecretRotate(t *testing.T) {
	t.Parallel()
	cluster1, cluster2, kubeconfig, namespace := linked(t)
	for _, more := range [][]string{nil, {"--ttl", "1h"}} {
		must(t, kubeconfig, append([]string{"create-remote-secret", "--context", "cluster2", "--name", "cluster2", "-n", namespace, "--apply", "--to", "cluster1"}, more...)...)
		before := held(t, cluster1, namespace, "cluster2")
		slow := &fakeReplica{state: "synced", credential: before.CredentialHash(), asked: make(chan struct{}, 1)}
		server := httptest.NewServer(slow)
		t.Cleanup(server.Close)
		args := []string{"remote-secret", "rotate", "--context", "cluster2", "--to", "cluster1", "-n", namespace, "--replica", strings.TrimPrefix(server.URL, "http://")}

		// Without replicas nothing is written.
		if r := meshctl(t, kubeconfig, args[:len(args)-2]...); r.code != 1 || !strings.Contains(r.stderr, "Error: nothing is written: context cluster1: no control plane of meshctl was found: ") ||
			!strings.Contains(r.stderr, "name the replicas with --replica") || held(t, cluster1, namespace, "cluster2").Hash != before.Hash {
			t.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
		}

		if more != nil { // found by their Leases; one address does not answer
			args = args[:len(args)-2]
			cluster1.ReplicaLease(t, namespace, "slow", server.Listener.Addr().String(), "")
			cluster1.ReplicaLease(t, namespace, "away", "127.0.0.1:1", before.CredentialHash())
		}

		// A replica with the old credential stops the rotation.
		r := meshctl(t, kubeconfig, append(args, "--timeout", "2s")...)
		if r.code != 1 || !strings.Contains(r.stderr, "uses credential "+before.CredentialHash()) || !strings.Contains(r.stderr, "the old credential is kept") {
			t.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		next := held(t, cluster1, namespace, "cluster2")
		if next.CredentialHash() == before.CredentialHash() || next.Renewed != before.Renewed || next.Server.Server != before.Server.Server {
			t.Errorf("new credential %s, old %s", next.CredentialHash(), before.CredentialHash())
		}
		for _, c := range []*remotesecret.Cluster{before, next} {
			asReader(t, c, cluster2, "get", "services", "-A")
		}
		must(t, kubeconfig, "remote-secret", "rotate", "--context", "cluster2", "--to", "cluster1", "-n", namespace, "--abort")
		if back := held(t, cluster1, namespace, "cluster2"); back.Hash != before.Hash || back.Renewed != before.Renewed {
			t.Error("the old secret is not back")
		}
		asReader(t, before, cluster2, "get", "services", "-A")
		ends(t, next, cluster2)

		// The copy of a killed run is not a rotation to continue.
		cluster1.Apply(t, strings.ReplaceAll(cluster1.Kubectl(t, "", "get", "secret", "-n", namespace, "istio-remote-secret-cluster2",
			"-o", `go-template={apiVersion: v1, kind: Secret, metadata: {name: {{.metadata.name}}-previous, namespace: {{.metadata.namespace}}}, `+
				`data: { {{range $k, $v := .data}}{{$k}}: {{$v}}{{end}} }}`), "\n", ""))

		// When it uses the new credential, the old one is revoked.
		done := make(chan result, 1)
		go func() { done <- meshctl(t, kubeconfig, args...) }()
		for next = held(t, cluster1, namespace, "cluster2"); next.Hash == before.Hash; next = held(t, cluster1, namespace, "cluster2") {
		}
		slow.is("syncing", next.CredentialHash())
		for range 2 { // one answer may be older
			<-slow.asked
		}
		asReader(t, before, cluster2, "get", "services", "-A")
		if more != nil {
			cluster1.ReplicaLease(t, namespace, "away", "127.0.0.1:1", next.CredentialHash())
		}
		slow.is("synced", next.CredentialHash())
		if r := <-done; r.code != 0 || !strings.Contains(r.stdout, "has credential "+next.CredentialHash()+", and the old one is revoked") {
			t.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
		}
		asReader(t, next, cluster2, "get", "services", "-A")
		ends(t, before, cluster2)
		if got := cluster1.Kubectl(t, "", "get", "secrets", "-n", namespace, "-o", "name"); strings.Contains(got, "previous") {
			t.Errorf("left are\n%s", got)
		}
		must(t, kubeconfig, "remote-secret", "delete", "cluster2", "--to", "cluster1", "--revoke-in", "cluster2", "-n", namespace)
		ends(t, next, cluster2)
	}
	for args, want := range map[string]string{
		"--from cluster2": "--context and --to are required",
		"--from cluster2 --to cluster1 --no-wait --replica a:1": "give one of them",
		"--from cluster2 --to cluster1 --replica a":             "want host:port",
		"--from cluster2 --to cluster1 --no-wait --ttl 1m":      "the least that API servers allow is 10m",
		"--from cluster2 --to cluster1 --abort -n " + namespace: "there is no secret",
	} {
		r := meshctl(t, kubeconfig, append([]string{"remote-secret", "rotate"}, strings.Fields(args)...)...)
		if r.code == 0 || !strings.Contains(r.stderr, want) {
			t.Errorf("rotate %s: exit %d, %s", args, r.code, r.stderr)
		}
	}
}
