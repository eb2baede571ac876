package clustercmd

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
	"github.com/meshctl/meshctl/test/kube"
)

// twoClusters returns the clusters cluster1 and cluster2, and a kubeconfig with both.
func twoClusters(t *testing.T) (cluster1, cluster2 *kube.Cluster, kubeconfig string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs two API servers")
	}
	cluster1, cluster2 = kube.Shared(t, "cluster1"), kube.Shared(t, "cluster2")
	return cluster1, cluster2, cluster1.KubeconfigFile(t) + string(os.PathListSeparator) + cluster2.KubeconfigFile(t)
}

// result is the result of a command.
type result struct {
	code           int
	stdout, stderr string
}

// meshctl runs a command with a kubeconfig.
func meshctl(t *testing.T, kubeconfig string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	env := &cli.Env{
		Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr, Now: time.Now,
		LookupEnv: func(name string) (string, bool) {
			if name == "KUBECONFIG" {
				return kubeconfig, true
			}
			return "", false
		},
	}
	code := run(t.Context(), env, args)
	return result{code, stdout.String(), stderr.String()}
}

// must runs a command that must succeed.
func must(t *testing.T, kubeconfig string, args ...string) result {
	t.Helper()
	r := meshctl(t, kubeconfig, args...)
	if r.code != 0 {
		t.Fatalf("meshctl %s: exit %d\n%s%s", strings.Join(args, " "), r.code, r.stdout, r.stderr)
	}
	return r
}

// decoded returns the only cluster in the YAML of a remote secret.
func decoded(t *testing.T, text string) *remotesecret.Cluster {
	t.Helper()
	clusters, err := remotesecret.DecodeFile("-", []byte(text))
	if err != nil || len(clusters) != 1 || clusters[0].Err != nil {
		t.Fatalf("decoded %v, error %v, of\n%s", clusters, err, text)
	}
	return &clusters[0]
}

// asReader runs kubectl with the credential of a remote secret.
func asReader(t *testing.T, c *remotesecret.Cluster, cluster *kube.Cluster, args ...string) string {
	t.Helper()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, c.Server.CertificateAuthorityData, 0o600); err != nil {
		t.Fatal(err)
	}
	return cluster.Kubectl(t, "", append([]string{
		"--kubeconfig=/dev/null", "--server=" + c.Server.Server, "--certificate-authority=" + ca, "--token=" + c.User.Token,
		"--tls-server-name=" + c.Server.TLSServerName,
	}, args...)...)
}

// TestCreateRemoteSecret pipes the secret into kubectl, in both directions.
func TestCreateRemoteSecret(t *testing.T) {
	t.Parallel()
	cluster1, cluster2, kubeconfig := twoClusters(t)
	for _, way := range []struct{ from, to *kube.Cluster }{{cluster1, cluster2}, {cluster2, cluster1}} {
		from, to := way.from, way.to
		namespace := to.Namespace(t, "create")
		from.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}")
		r := must(t, kubeconfig, "create-remote-secret", "--context", from.Name(), "--name", from.Name(), "-n", namespace)
		to.Kubectl(t, r.stdout, "apply", "-f", "-")
		got := to.Kubectl(t, "", "get", "secret", "-n", namespace, "-l", "istio/multiCluster=true", "-o", "name")
		if strings.TrimSpace(got) != "secret/istio-remote-secret-"+from.Name() {
			t.Errorf("the target has %q", got)
		}
		c := decoded(t, r.stdout)
		if string(c.ID) != from.Name() || c.Server.Server != "https://"+from.Addr() {
			t.Errorf("cluster %s at %s", c.ID, c.Server.Server)
		}
		if out := asReader(t, c, from, "get", "services", "-A"); !strings.Contains(out, "kubernetes") {
			t.Errorf("the reader sees the services\n%s", out)
		}
		if !strings.Contains(r.stderr, "Warning: server in Kubeconfig is https://127.0.0.1") || strings.Contains(r.stderr, "may not") {
			t.Errorf("warnings:\n%s", r.stderr)
		}
		again := must(t, kubeconfig, "create-remote-secret", "--context", from.Name(), "--name", from.Name(), "-n", namespace)
		if again.stdout != r.stdout {
			t.Error("a second call makes another secret")
		}
	}
}

// prepared creates a namespace and returns the arguments that create the remote secret
// of the cluster with it.
func prepared(t *testing.T, from *kube.Cluster, more ...string) (namespace string, args []string) {
	t.Helper()
	namespace = from.Namespace(t, "mint")
	return namespace, append([]string{"create-remote-secret", "--context", from.Name(), "--name", from.Name(), "-n", namespace}, more...)
}

// TestCreateRemoteSecretTTL: a token that expires is bound to a Secret, and ends with it.
func TestCreateRemoteSecretTTL(t *testing.T) {
	t.Parallel()
	_, cluster2, kubeconfig := twoClusters(t)
	namespace, args := prepared(t, cluster2, "--ttl", "1h")
	first := decoded(t, must(t, kubeconfig, args...).stdout)
	r := must(t, kubeconfig, args...)
	c := decoded(t, r.stdout)
	if c.CredentialHash() == first.CredentialHash() {
		t.Error("a second call gives the same token")
	}
	if !c.Renewed {
		t.Error("the control plane would not renew it")
	}
	var secret corev1.Secret
	if err := yaml.Unmarshal([]byte(r.stdout), &secret); err != nil {
		t.Fatal(err)
	}
	expires, err := time.Parse(time.RFC3339, secret.Annotations[remotesecret.AnnotationExpires])
	claims, peekErr := remotesecret.ReadToken(c.User.Token)
	if err != nil || peekErr != nil || !claims.Expiry.Equal(expires) || time.Until(expires) > 61*time.Minute || time.Until(expires) < 50*time.Minute {
		t.Errorf("expires %v of %v, errors %v, %v", expires, claims.Expiry, err, peekErr)
	}
	if got := secret.Annotations[remotesecret.AnnotationCredential]; got != c.CredentialHash() {
		t.Errorf("credential %s, annotated as %s", c.CredentialHash(), got)
	}
	if got, want := secret.Annotations[remotesecret.AnnotationIssuer], namespace+"/istio-reader-service-account"; got != want {
		t.Errorf("issuer %s, want %s", got, want)
	}

	// The account may create its own next token, but no token of another account.
	access := accessOf(t, c)
	_, bound, _ := strings.Cut(secret.Annotations[remotesecret.AnnotationBoundTo], "/")
	account := create.Account{Namespace: namespace, Name: "istio-reader-service-account"}
	renewed, end, err := create.Renew(t.Context(), access, account, bound, time.Hour)
	if err != nil || renewed == c.User.Token || end.Before(expires) {
		t.Errorf("renewed until %v, error %v", end, err)
	}
	other := account
	other.Name = "default"
	if _, _, err := create.Renew(t.Context(), access, other, bound, time.Hour); err == nil {
		t.Error("the account may be another one")
	}

	asReader(t, c, cluster2, "get", "services", "-A")
	cluster2.Kubectl(t, "", "delete", "secret", "-n", namespace, bound)
	ends(t, c, cluster2)
	asReader(t, first, cluster2, "get", "services", "-A") // the other token still works
}

// objects lists the objects in the namespace and the roles of the account, without the
// service account default, which the cluster creates at any time.
func objects(t *testing.T, c *kube.Cluster, namespace string) string {
	t.Helper()
	return c.Kubectl(t, "", "get", "serviceaccounts,secrets,roles,rolebindings", "-n", namespace, "--field-selector", "metadata.name!=default", "-o", "name") +
		c.Kubectl(t, "", "get", "roles,rolebindings", "-A", "--field-selector", "metadata.name=meshctl-reader-"+namespace+"-istio-reader-service-account", "-o", "name") +
		c.Kubectl(t, "", "get", "clusterroles,clusterrolebindings", "--field-selector", "metadata.name=meshctl-reader-"+namespace+"-istio-reader-service-account", "-o", "name")
}

func TestCreateRemoteSecretDryRun(t *testing.T) {
	t.Parallel()
	_, cluster2, kubeconfig := twoClusters(t)
	namespace, args := prepared(t, cluster2)
	before := objects(t, cluster2, namespace)
	r := must(t, kubeconfig, append(args, "--dry-run")...)
	if after := objects(t, cluster2, namespace); after != before {
		t.Errorf("it wrote: before\n%s\nafter\n%s", before, after)
	}
	for _, want := range []string{"kind: ServiceAccount", "kind: ClusterRole\n", "kind: ClusterRoleBinding", "kind: Secret"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("no %q in\n%s", want, r.stdout)
		}
	}
	if !strings.Contains(r.stderr, "would write 4 objects in this cluster, and the secret of cluster cluster2 with server https://127.0.0.1") {
		t.Errorf("stderr\n%s", r.stderr)
	}
	// The printed objects are complete.
	cluster2.Kubectl(t, r.stdout, "apply", "--server-side", "-f", "-")
	if again := must(t, kubeconfig, append(args, "--dry-run")...); !strings.Contains(again.stderr, "would write 0 objects") {
		t.Errorf("after it was applied:\n%s%s", again.stdout, again.stderr)
	}
}

// TestPrivateFile: --out writes a file with mode 0600.
func TestPrivateFile(t *testing.T) {
	t.Parallel()
	_, cluster2, kubeconfig := twoClusters(t)
	_, args := prepared(t, cluster2)
	path := filepath.Join(t.TempDir(), "cluster2.yaml")
	r := must(t, kubeconfig, append(args, "--out", path)...)
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v", info.Mode(), err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c := decoded(t, string(text))
	if strings.Contains(r.stdout+r.stderr, c.User.Token) || r.stdout != "wrote "+path+"\n" {
		t.Errorf("printed\n%s%s", r.stdout, r.stderr)
	}
}

func TestCreateRemoteSecretApply(t *testing.T) {
	t.Parallel()
	cluster1, cluster2, kubeconfig := twoClusters(t)
	namespace, args := prepared(t, cluster2, "--apply", "--to", "cluster1")

	r := meshctl(t, kubeconfig, args...)
	if r.code != 1 || !strings.Contains(r.stderr, "context cluster1: read namespace "+namespace) {
		t.Errorf("without the namespace: exit %d\n%s", r.code, r.stderr)
	}
	if got := cluster2.Kubectl(t, "", "get", "serviceaccounts", "-n", namespace, "-o", "name"); strings.Contains(got, "reader") {
		t.Errorf("it wrote in cluster2 before it knew:\n%s", got)
	}
	r = meshctl(t, kubeconfig, append(args, "--to", "cluster2")...)
	if r.code != 1 || !strings.Contains(r.stderr, "context cluster2: this is the cluster that the secret is for") {
		t.Errorf("into itself: exit %d\n%s", r.code, r.stderr)
	}

	cluster1.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}")
	r = must(t, kubeconfig, args...)
	if r.stdout != "wrote secret "+namespace+"/istio-remote-secret-cluster2 in context cluster1\n" {
		t.Errorf("stdout\n%s", r.stdout)
	}
	written := cluster1.Kubectl(t, "", "get", "secret", "-n", namespace, "istio-remote-secret-cluster2", "-o", "yaml")
	if out := asReader(t, decoded(t, written), cluster2, "get", "nodes"); strings.Contains(out, "rror") {
		t.Errorf("the reader sees\n%s", out)
	}
}

// TestCreateRemoteSecretRights: the command writes nothing when a right is missing, and lists the missing rights.
func TestCreateRemoteSecretRights(t *testing.T) {
	t.Parallel()
	_, cluster2, kubeconfig := twoClusters(t)
	namespace, args := prepared(t, cluster2, "--as", "clerk")
	cluster2.WaitOutput(t, "/default", "get", "serviceaccounts", "-n", namespace, "-o", "name") // created by Kubernetes
	before := objects(t, cluster2, namespace)
	cluster2.Apply(t, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: clerk}
rules:
- {apiGroups: [""], resources: [namespaces, serviceaccounts, secrets, configmaps], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: clerk}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: clerk}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: clerk}]
`)
	var r result
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); { // until the role applies
		if r = meshctl(t, kubeconfig, args...); strings.Contains(r.stderr, "may not create") {
			break
		}
	}
	if r.code != 1 || r.stdout != "" {
		t.Errorf("exit %d, stdout\n%s", r.code, r.stdout)
	}
	for _, want := range []string{
		"context cluster2: user \"clerk\" may not create serviceaccounts in " + namespace + "; without it, the account cannot be made",
		"context cluster2: user \"clerk\" may not create clusterroles.rbac.authorization.k8s.io; without it, the account cannot be given its role",
		"context cluster2: user \"clerk\" may not create secrets in " + namespace + "; without it, there is no token",
	} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("no %q in\n%s", want, r.stderr)
		}
	}
	if after := objects(t, cluster2, namespace); after != before {
		t.Errorf("it wrote: before\n%s\nafter\n%s", before, after)
	}
}

// TestCreateRemoteSecretLacking: an existing account is not changed, and its missing rights are listed.
func TestCreateRemoteSecretLacking(t *testing.T) {
	t.Parallel()
	_, cluster2, kubeconfig := twoClusters(t)
	namespace, args := prepared(t, cluster2, "--create-service-account=false", "--service-account", "poor")
	r := meshctl(t, kubeconfig, args...)
	if r.code != 1 || !strings.Contains(r.stderr, "failed retrieving service account poor."+namespace+" required for creating the remote secret "+
		"(hint: try installing a minimal Istio profile on the cluster first, or run with '--create-service-account=true')") {
		t.Errorf("without the account: exit %d\n%s", r.code, r.stderr)
	}
	cluster2.Kubectl(t, "", "create", "serviceaccount", "-n", namespace, "poor")
	r = must(t, kubeconfig, args...)
	for _, want := range []string{
		"Warning: service account " + namespace + "/poor may not get services, list services, watch services: the cluster has no services",
		"may not create tokenreviews.authentication.k8s.io: callers of the cluster cannot prove themselves with its tokens",
	} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("no %q in\n%s", want, r.stderr)
		}
	}
	for name, want := range map[string]string{
		"none":             "could not get specified secret " + namespace + "/none:",
		"kube-root-ca.crt": "could not get specified secret",
		"other":            "secret " + namespace + "/other does not reference ServiceAccount poor",
	} {
		if name == "other" {
			cluster2.Kubectl(t, "", "create", "secret", "generic", "-n", namespace, "other")
		}
		r := meshctl(t, kubeconfig, append(args, "--secret-name", name)...)
		if r.code != 1 || !strings.Contains(r.stderr, want) {
			t.Errorf("--secret-name %s: exit %d\n%s", name, r.code, r.stderr)
		}
	}
}

// TestCreateRemoteSecretOfIstio: the objects of an Istio installation suffice and are not changed.
func TestCreateRemoteSecretOfIstio(t *testing.T) {
	t.Parallel()
	_, cluster2, kubeconfig := twoClusters(t)
	namespace, args := prepared(t, cluster2)
	cluster2.Apply(t, strings.ReplaceAll(istioReader, "NAMESPACE", namespace))
	r := must(t, kubeconfig, args...)
	if got := objects(t, cluster2, namespace); strings.Contains(got, "meshctl-reader") || strings.Contains(r.stderr, "may not") {
		t.Errorf("there are\n%s\nand it says\n%s", got, r.stderr)
	}
	asReader(t, decoded(t, r.stdout), cluster2, "get", "endpointslices,pods,nodes,namespaces", "-A")

	other := must(t, kubeconfig, append(args, "--service-account", "another", "--rbac", "istio")...)
	if c := decoded(t, other.stdout); !strings.Contains(asReader(t, c, cluster2, "auth", "whoami"), namespace+":another") {
		t.Error("the account that is asked for is not the one that is bound")
	} else {
		asReader(t, c, cluster2, "get", "secrets", "-A")
	}
}

const istioReader = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: istio-reader-service-account, namespace: NAMESPACE, labels: {app: istio-reader}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: istio-reader-clusterrole-NAMESPACE}
rules:
- {apiGroups: [config.istio.io, security.istio.io, networking.istio.io, authentication.istio.io, rbac.istio.io, telemetry.istio.io, extensions.istio.io], resources: ["*"], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [endpoints, pods, services, nodes, replicationcontrollers, namespaces, secrets, configmaps], verbs: [get, list, watch]}
- {apiGroups: [networking.istio.io], resources: [workloadentries], verbs: [get, watch, list]}
- {apiGroups: [networking.x-k8s.io, gateway.networking.k8s.io], resources: [gateways], verbs: [get, watch, list]}
- {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [get, list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}
- {apiGroups: [multicluster.x-k8s.io], resources: [serviceexports], verbs: [get, list, watch, create, delete]}
- {apiGroups: [multicluster.x-k8s.io], resources: [serviceimports], verbs: [get, list, watch]}
- {apiGroups: [apps], resources: [replicasets], verbs: [get, list, watch]}
- {apiGroups: [authentication.k8s.io], resources: [tokenreviews], verbs: [create]}
- {apiGroups: [authorization.k8s.io], resources: [subjectaccessreviews], verbs: [create]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: istio-reader-clusterrole-NAMESPACE}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: istio-reader-clusterrole-NAMESPACE}
subjects: [{kind: ServiceAccount, name: istio-reader-service-account, namespace: NAMESPACE}]
`

// TestCreateRemoteSecretNamespaces: a role for some namespaces cannot read others, and can be reduced.
func TestCreateRemoteSecretNamespaces(t *testing.T) {
	t.Parallel()
	_, cluster2, kubeconfig := twoClusters(t)
	one, two := cluster2.Namespace(t, "one"), cluster2.Namespace(t, "two")
	_, args := prepared(t, cluster2)
	c := decoded(t, must(t, kubeconfig, append(args, "--namespaces", one+","+two, "--credential-namespaces", two)...).stdout)
	if !slices.Equal(c.Namespaces, []string{one, two}) || !slices.Equal(c.CredentialNamespaces, []string{two}) {
		t.Errorf("the control plane would read %v, Secrets of %v", c.Namespaces, c.CredentialNamespaces)
	}
	asReader(t, c, cluster2, "get", "services,endpointslices,pods", "-n", one)
	asReader(t, c, cluster2, "get", "services,endpointslices,pods,secrets", "-n", two)
	asReader(t, c, cluster2, "get", "namespaces,nodes")
	access := accessOf(t, c)
	reader, err := create.Connect("cluster2", access)
	if err != nil {
		t.Fatal(err)
	}
	lacks := func(rights ...create.Right) int {
		missing, err := reader.Missing(t.Context(), rights)
		if err != nil {
			t.Fatal(err)
		}
		return len(missing)
	}
	elsewhere := []create.Right{
		{Verb: "list", Resource: "services"},
		{Verb: "list", Resource: "services", Namespace: "default"},
		{Verb: "list", Resource: "secrets", Namespace: one},
		{Verb: "delete", Resource: "services", Namespace: one},
	}
	if n := lacks(elsewhere...); n != len(elsewhere) {
		t.Errorf("it lacks %d of %v", n, elsewhere)
	}
	r := must(t, kubeconfig, append(args, "--namespaces", one, "--ttl", "1h")...) // --ttl adds a right, so roles are written
	if strings.Contains(r.stderr, "may not") {
		t.Errorf("stderr\n%s", r.stderr)
	}
	for deadline := time.Now().Add(time.Minute); lacks(create.Right{Verb: "list", Resource: "services", Namespace: two}) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("it still reads the other namespace")
		}
	}
}

func TestCreateRemoteSecretServerAuto(t *testing.T) {
	t.Parallel()
	_, cluster2, kubeconfig := twoClusters(t)
	namespace, args := prepared(t, cluster2, "--server", "auto")
	cluster2.WaitOutput(t, "/default", "get", "serviceaccounts", "-n", namespace, "-o", "name") // created by Kubernetes
	before := objects(t, cluster2, namespace)
	r := meshctl(t, kubeconfig, args...)
	if r.code != 1 || !strings.Contains(r.stderr, "loopback addresses only") || !strings.Contains(r.stderr, "NAMED BY") ||
		!strings.Contains(r.stderr, "works, but is this machine, CA: the service account's") {
		t.Errorf("exit %d\n%s", r.code, r.stderr)
	}
	if after := objects(t, cluster2, namespace); after != before {
		t.Errorf("it wrote: before\n%s\nafter\n%s", before, after)
	}
	r = must(t, kubeconfig, append(args, "--force")...)
	if c := decoded(t, r.stdout); c.Server.Server != "https://"+cluster2.Addr() {
		t.Errorf("server %s", c.Server.Server)
	}

	// A reachable node, by a name in its certificate.
	host := otherAddress(t)
	node := net.JoinHostPort(host, "6443") // the default port on nodes
	relay(t, node, cluster2.Addr())
	cluster2.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Node, metadata: {name: kind-control-plane, labels: {node-role.kubernetes.io/control-plane: ""}},
spec: {providerID: "kind://docker/kind/kind-control-plane"}, status: {addresses: [{type: InternalIP, address: %s}, {type: ExternalIP, address: 127.0.0.9}]}}`, host))
	defer cluster2.Kubectl(t, "", "delete", "node", "kind-control-plane")
	r = must(t, kubeconfig, args...)
	c := decoded(t, r.stdout)
	if c.Server.Server != "https://"+node || c.Server.TLSServerName == "" {
		t.Errorf("server %s, name %q\n%s", c.Server.Server, c.Server.TLSServerName, r.stderr)
	}
	for _, want := range []string{"Node kind-control-plane InternalIP", "works as " + c.Server.TLSServerName, "container of kind"} {
		if !strings.Contains(r.stderr, want) {
			t.Errorf("no %q in\n%s", want, r.stderr)
		}
	}
	asReader(t, c, cluster2, "get", "services", "-A")
}

// otherAddress returns an address of this machine that is not loopback.
func otherAddress(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			return p.Addr().String()
		}
	}
	t.Skip("this machine has loopback addresses only")
	return ""
}

// relay forwards connections from one address to another until the test ends.
func relay(t *testing.T, from, to string) {
	t.Helper()
	l, err := net.Listen("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", to)
				if err != nil {
					return
				}
				defer out.Close()
				go func() { _, _ = io.Copy(out, in) }()
				_, _ = io.Copy(in, out)
			}()
		}
	}()
}

func TestCreateRemoteSecretUsage(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--name a.b":              "a.b is not a valid DNS 1123 label",
		"--type local":            "unsupported type: local",
		"--auth-type password":    "unsupported authentication type: password",
		"--auth-type plugin":      "--auth-type plugin needs --auth-plugin-name",
		"--auth-plugin-name oidc": "need --auth-type plugin",
		"--auth-type plugin --auth-plugin-name a --ttl 1h": "--ttl is for tokens",
		"--ttl 5m":                    "the least that API servers allow is 10m",
		"--ttl 1h --secret-name a":    "leave out --ttl",
		"--ca none":                   "want auto, sa, kubeconfig, file:FILE or system",
		"--apply":                     "--apply and --to CONTEXT go together",
		"--to cluster1":               "--apply and --to CONTEXT go together",
		"-n a/b":                      "is not a DNS label",
		"--rbac admin":                "use minimal or istio",
		"--rbac istio --namespaces a": "are for --rbac minimal",
		"--namespaces a..b":           "is not a DNS label",
		"extra":                       "unexpected argument",
	} {
		r := meshctl(t, "/dev/null", append([]string{"create-remote-secret"}, strings.Fields(args)...)...)
		if r.code != 2 || !strings.Contains(r.stderr, want) || r.stdout != "" {
			t.Errorf("%s: exit %d, %s", args, r.code, r.stderr)
		}
	}
	if r := meshctl(t, "/dev/null", "create-remote-secret"); r.code != 1 || !strings.Contains(r.stderr, "has no clusters") {
		t.Errorf("no kubeconfig: exit %d, %s", r.code, r.stderr)
	}
}

// TestCreateRemoteSecretPlugin: the secret holds the settings of the plugin, and no token.
func TestCreateRemoteSecretPlugin(t *testing.T) {
	t.Parallel()
	_, cluster2, kubeconfig := twoClusters(t)
	_, args := prepared(t, cluster2, "--auth-type", "plugin", "--auth-plugin-name", "oidc", "--auth-plugin-config", "client-id=meshctl,idp-issuer-url=https://login.example.com")
	c := decoded(t, must(t, kubeconfig, args...).stdout)
	p := c.User.AuthProvider
	if p == nil || p.Name != "oidc" || p.Config["client-id"] != "meshctl" || p.Config["idp-issuer-url"] != "https://login.example.com" || c.User.Token != "" {
		t.Errorf("user %+v", p)
	}
	if len(c.Server.CertificateAuthorityData) == 0 {
		t.Error("there is no CA")
	}
}
