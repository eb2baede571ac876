package cli

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/remotesecret/mint"
	"github.com/meshctl/meshctl/test/kube"
)

// deployRBAC is the file with the rights of the control plane in a pod.
const deployRBAC = "../../deploy/rbac.yaml"

// TestDeployRights: the rights in deploy/ are what serve needs by the table of
// what it reads and writes.
func TestDeployRights(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	text.WriteString("# The rights of meshctl serve in the cluster where it runs, for the namespace\n" +
		"# istio-system. For --credential-namespaces, let it get, list and watch\n# secrets and configmaps there.\n")
	scope := mint.Scope{Style: mint.Minimal, Authenticate: true, Configuration: true, Serve: true}
	for i, o := range scope.Objects(mint.Account{Namespace: "istio-system", Name: "meshctl"}) {
		doc, err := yaml.Marshal(o.Value)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			text.WriteString("---\n")
		}
		text.Write(doc)
	}
	if *update {
		if err := os.WriteFile(deployRBAC, text.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(deployRBAC)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text.String()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", deployRBAC, diff)
	}
}

// TestDeploy runs serve as a pod of the manifests would, with no more rights
// than those: it reads, signs and writes, and nothing is forbidden to it.
func TestDeploy(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes: make kube")
	}
	t.Parallel()
	c := kube.Start(t) // has the only namespace istio-system
	c.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: shop}}")
	for _, name := range []string{deployRBAC, "../../deploy/meshctl.yaml"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		c.Apply(t, string(text))
	}
	pod := t.TempDir()
	for name, text := range map[string]string{
		"token":     strings.TrimSpace(c.Kubectl(t, "", "create", "token", "meshctl", "-n", "istio-system")),
		"ca.crt":    string(c.CA()),
		"namespace": "istio-system",
	} {
		if err := os.WriteFile(filepath.Join(pod, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	host, port, err := net.SplitHostPort(c.Addr())
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	vars := map[string]string{
		"HOME":                    home,
		"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "POD_NAME": "meshctl-0", "POD_NAMESPACE": "istio-system",
	}
	address := freeAddr(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan string, 1)
	go func() {
		var log strings.Builder
		Run(ctx, &Env{
			Stdin: strings.NewReader(""), Stdout: &log, Stderr: &log, Now: time.Now, PodDir: pod,
			LookupEnv: func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
		}, []string{
			"serve", "--cluster-id=Kubernetes", "--log-format=json",
			"--http-addr", address, "--secure-grpc-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0", "--monitoring-addr", "127.0.0.1:0",
		})
		done <- log.String()
	}()
	waitOutput(t, c, "istio-ca-root-cert", "get", "configmaps", "-n", "shop", "-o", "name")
	waitOutput(t, c, "meshctl-replica-meshctl-0-", "get", "leases", "-n", "istio-system", "-o", "name")
	waitOutput(t, c, "istio-ca-secret", "get", "secrets", "-n", "istio-system", "-o", "name")
	c.Kubectl(t, "", "delete", "configmap", "istio-ca-root-cert", "-n", "shop")
	waitOutput(t, c, "istio-ca-root-cert", "get", "configmaps", "-n", "shop", "-o", "name")
	code, stdout, stderr := remoteClusters(t, home, "remote-clusters", "--server", address, "--wait", "--timeout", "1m", "-o", "json")
	forbidden := regexp.MustCompile(`(?i)forbidden|[ "(]403[ ")]`) // and no port of that beginning
	if code != exitOK || forbidden.MatchString(stdout) {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	stop()
	log := <-done
	if forbidden.MatchString(log) || !strings.Contains(log, "cluster is read") {
		t.Error(log)
	}
	if left := c.Kubectl(t, "", "get", "leases", "-n", "istio-system", "-o", "name"); strings.Contains(left, "meshctl-replica-") {
		t.Errorf("a replica that stopped has left %s", left)
	}
	// What is done only after a while is allowed, too, and no more than that.
	for question, want := range map[string]string{
		"namespace: istio-system, verb: update, resource: secrets":                             "true",
		"namespace: istio-system, verb: delete, resource: leases, group: coordination.k8s.io":  "true",
		"verb: create, resource: subjectaccessreviews, group: authorization.k8s.io":            "true",
		"namespace: shop, verb: get, resource: secrets":                                        "false",
		"namespace: shop, verb: update, resource: configmaps":                                  "false",
		"namespace: istio-system, verb: create, resource: serviceaccounts, subresource: token": "false",
	} {
		review := "{apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {user: \"system:serviceaccount:istio-system:meshctl\", resourceAttributes: {" + question + "}}}"
		if got := c.Kubectl(t, review, "create", "-f", "-", "-o", "jsonpath={.status.allowed}"); got != want {
			t.Errorf("%s: %s", question, got)
		}
	}
}

// waitOutput waits until kubectl writes want.
func waitOutput(t *testing.T, c *kube.Cluster, want string, args ...string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		out := c.Kubectl(t, "", args...)
		if strings.Contains(out, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("kubectl %v says %s, not %s", args, out, want)
		}
	}
}
