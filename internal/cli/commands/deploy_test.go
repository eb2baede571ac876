package commands

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
	"github.com/meshctl/meshctl/test/clitest"
	"github.com/meshctl/meshctl/test/kube"
)

// deployRBAC is the file with the role of the control plane in a pod.
const deployRBAC = "../../../deploy/rbac.yaml"

// TestDeployRights: the role in deploy/ equals the table of rights that serve needs.
func TestDeployRights(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	text.WriteString("# The rights of meshctl serve in the cluster where it runs, for the namespace\n" +
		"# istio-system. For --credential-namespaces, let it get, list and watch\n# secrets and configmaps there.\n")
	scope := create.Scope{Style: create.Minimal, Authenticate: true, Configuration: true, Serve: true}
	for i, o := range scope.Objects(create.Account{Namespace: "istio-system", Name: "meshctl"}) {
		doc, err := yaml.Marshal(o)
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

// istioService is the Service of an Istio installation. Its Deployment and its
// PodDisruptionBudget have the same selector.
const istioService = `apiVersion: v1
kind: Service
metadata: {name: istiod, namespace: istio-system, labels: {app: istiod, istio: pilot}}
spec:
  selector: {app: istiod, istio: pilot}
  ports:
  - {name: grpc-xds, port: 15010}
  - {name: https-dns, port: 15012}
  - {name: https-webhook, port: 443, targetPort: 15017}
  - {name: http-monitoring, port: 15014}
`

// account is the service account of the installation beside an Istio.
const account = "istiod-meshctl"

// besideIstio applies the objects of an installation with a revision next to an Istio, whose
// Service does not change and does not select the pods. It returns the arguments of the pods.
func besideIstio(t *testing.T, c *kube.Cluster) []string {
	t.Helper()
	c.Apply(t, istioService)
	service := func(field string) string {
		return c.Kubectl(t, "", "get", "service", "istiod", "-n", "istio-system", "-o", "jsonpath={"+field+"}")
	}
	version := service(".metadata.resourceVersion")
	v := install.Default("registry.example/meshctl:v1")
	v.Revision = "meshctl"
	objects, err := install.Objects(&v)
	if err != nil {
		t.Fatal(err)
	}
	text, err := install.YAML(objects)
	if err != nil {
		t.Fatal(err)
	}
	c.Apply(t, string(text))
	if got := service(".metadata.resourceVersion"); got != version {
		t.Errorf("the installation changes the Service istiod of an Istio:\n%s", service(".spec"))
	}
	i := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Deployment" })
	var d appsv1.Deployment
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(objects[i].Object, &d); err != nil {
		t.Fatal(err)
	}
	labels := d.Spec.Template.Labels
	if labels["app"] != "istiod" {
		t.Errorf("istioctl finds no pods with the labels %v", labels)
	}
	if labels["istio"] == "pilot" || labels["istio.io/rev"] != "meshctl" {
		t.Errorf("an Istio may select pods with the labels %v", labels)
	}
	return d.Spec.Template.Spec.Containers[0].Args
}

// TestDeploy runs serve with the rights of the manifests: it reads, signs and writes
// without a forbidden request, and serves the pages that istioctl reads.
func TestDeploy(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes: make kube")
	}
	t.Parallel()
	c := kube.Start(t) // has the only namespace istio-system
	c.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}\n---\n{apiVersion: v1, kind: Namespace, metadata: {name: shop}}")
	args := besideIstio(t, c)
	pod := t.TempDir()
	for name, text := range map[string]string{
		"token":     strings.TrimSpace(c.Kubectl(t, "", "create", "token", account, "-n", "istio-system")),
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
		"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port, "POD_NAME": "meshctl-0", "POD_NAMESPACE": "istio-system", "REVISION": "meshctl",
	}
	address, secure, monitoring := clitest.FreeAddr(t), clitest.FreeAddr(t), clitest.FreeAddr(t)
	args = append(args, "--http-addr", address, "--secure-grpc-addr", secure, "--grpc-addr", "127.0.0.1:0", "--monitoring-addr", monitoring)
	// serve returns functions that stop it and that wait for its end; both return its log.
	serve := func(more ...string) (stop, wait func() string) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan string, 1)
		go func() {
			var log strings.Builder
			Run(ctx, &cli.Env{
				Stdin: strings.NewReader(""), Stdout: &log, Stderr: &log, Now: time.Now, PodDir: pod,
				LookupEnv: func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
			}, append(slices.Clone(args), more...))
			done <- log.String()
		}()
		wait = func() string {
			defer cancel()
			return <-done
		}
		return func() string { cancel(); return wait() }, wait
	}
	stop, _ := serve()
	c.WaitOutput(t, "istio-ca-root-cert", "get", "configmaps", "-n", "shop", "-o", "name")
	c.WaitOutput(t, "meshctl-replica-meshctl-0-", "get", "leases", "-n", "istio-system", "-o", "name")
	c.WaitOutput(t, "istio-ca-secret", "get", "secrets", "-n", "istio-system", "-o", "name")
	c.Kubectl(t, "", "delete", "configmap", "istio-ca-root-cert", "-n", "shop")
	c.WaitOutput(t, "istio-ca-root-cert", "get", "configmaps", "-n", "shop", "-o", "name")
	code, stdout, stderr := runMeshctl(t, home, "remote-clusters", "--server", address, "--wait", "--timeout", "1m", "-o", "json")
	forbidden := regexp.MustCompile(`(?i)forbidden|[ "(]403[ ")]`) // but not a port that begins with 403
	if code != cli.ExitOK || forbidden.MatchString(stdout) {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	askAsIstioctl(t, monitoring)
	askAsAgent(t, c, secure)
	policies(t, c, home, address)
	log := stop()
	if forbidden.MatchString(log) || !strings.Contains(log, "cluster is read") {
		t.Error(log)
	}
	if left := c.Kubectl(t, "", "get", "leases", "-n", "istio-system", "-o", "name"); strings.Contains(left, "meshctl-replica-") {
		t.Errorf("a replica that stopped has left %s", left)
	}
	// A security policy of a tenant that no proxy can enforce does not prevent a start.
	const notEnforced = "security policies that are not enforced: AuthorizationPolicy shop/deny-all"
	for flag, ignored := range map[string]bool{"--ignore-security-policies": true, "--ignore-security-policies=false": false} {
		stop, _ = serve(flag)
		if code, _, stderr := runMeshctl(t, home, "remote-clusters", "--server", address, "--wait", "--timeout", "1m"); code != cli.ExitOK || strings.Contains(stderr, notEnforced) != ignored {
			t.Errorf("%s: exit code %d: %s", flag, code, stderr)
		}
		stop()
	}
	// Later requests are allowed, and no others.
	for question, want := range map[string]string{
		"namespace: istio-system, verb: update, resource: secrets":                             "true",
		"namespace: istio-system, verb: delete, resource: leases, group: coordination.k8s.io":  "true",
		"verb: create, resource: subjectaccessreviews, group: authorization.k8s.io":            "true",
		"namespace: shop, verb: get, resource: secrets":                                        "false",
		"namespace: shop, verb: update, resource: configmaps":                                  "false",
		"namespace: istio-system, verb: create, resource: serviceaccounts, subresource: token": "false",
	} {
		review := "{apiVersion: authorization.k8s.io/v1, kind: SubjectAccessReview, spec: {user: \"system:serviceaccount:istio-system:" + account + "\", resourceAttributes: {" + question + "}}}"
		if got := c.Kubectl(t, review, "create", "-f", "-", "-o", "jsonpath={.status.allowed}"); got != want {
			t.Errorf("%s: %s", question, got)
		}
	}
}

// askAsIstioctl sends the requests of istioctl to the monitoring port.
func askAsIstioctl(t *testing.T, address string) {
	t.Helper()
	get := func(path string) string {
		r, err := http.Get("http://" + address + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %s %v", path, r.Status, body, err)
		}
		return string(body)
	}
	var clusters []struct{ ID, SecretName, SyncStatus string }
	if err := json.Unmarshal([]byte(get("/debug/clusterz")), &clusters); err != nil || len(clusters) != 1 || clusters[0].ID != "Kubernetes" || clusters[0].SyncStatus != "synced" {
		t.Errorf("/debug/clusterz: %+v, %v", clusters, err)
	}
	if got := get("/version"); strings.Count(got, "-") < 2 || !strings.HasSuffix(got, "-Clean") && !strings.HasSuffix(got, "-Modified") {
		t.Errorf("/version: %s, want version-revision-status", got)
	}
}

// askAsAgent verifies the control plane with both names that agents use.
func askAsAgent(t *testing.T, c *kube.Cluster, address string) {
	t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(c.Kubectl(t, "", "get", "configmap", "istio-ca-root-cert", "-n", "shop", "-o", `jsonpath={.data.root-cert\.pem}`))) {
		t.Fatal("no roots")
	}
	for _, service := range []string{account, "istiod"} {
		conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots, ServerName: service + ".istio-system.svc", MinVersion: tls.VersionTLS13})
		if err != nil {
			t.Errorf("%s: %v", service, err)
			continue
		}
		_ = conn.Close()
	}
}

// policies creates a policy that no proxy can enforce and waits until it is reported.
func policies(t *testing.T, c *kube.Cluster, home, address string) {
	t.Helper()
	c.Apply(t, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: authorizationpolicies.security.istio.io}
spec:
  group: security.istio.io
  scope: Namespaced
  names: {kind: AuthorizationPolicy, plural: authorizationpolicies, singular: authorizationpolicy}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
---
{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: deny-all, namespace: shop}, spec: {targetRefs: [{kind: Service, name: web}], action: DENY, rules: [{}]}}`)
	const want = "AuthorizationPolicy shop/deny-all: spec.targetRefs[0]: refers to the Service web"
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		_, stdout, stderr := runMeshctl(t, home, "x", "internal-debug", "clusters", "--server", address)
		if strings.Contains(stdout, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("internal-debug clusters writes %q and %q", stdout, stderr)
		}
	}
}

// update rewrites the golden files of this package.
var update = flag.Bool("update", false, "rewrite golden files")

// runMeshctl runs a command and returns its exit code and output.
func runMeshctl(t *testing.T, home string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return clitest.Run(t, home, args, groups()...)
}
