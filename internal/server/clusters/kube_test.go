package clusters

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
	testkube "github.com/meshctl/meshctl/test/kube"
)

// kubeTest is a managerTest with a real own cluster, and remote secrets in its own
// namespace.
type kubeTest struct {
	*managerTest
	own     *testkube.Cluster
	secrets kube.Objects[*corev1.Secret, *corev1.SecretList]
	system  string // the namespace of the secrets
	sample  string // of the service hello, in all clusters
}

func startReal(t *testing.T, change ...func(*Config, *Kubernetes)) *kubeTest {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a Kubernetes API")
	}
	r := &kubeTest{own: testkube.Shared(t, "own")}
	api, err := kube.NewClient(r.own.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	r.system = r.own.Namespace(t, "system")
	r.sample = r.own.Namespace(t, "sample")
	r.secrets = api.Secrets(r.system)
	helloIn(t, r.own, r.sample, "10.1.0.1")
	r.managerTest = start(t, func(c *Config) {
		k := &Kubernetes{SystemNamespace: r.system, Log: c.Log, Now: time.Now}
		c.Now = time.Now
		c.Finders = []Finder{&Secrets{API: r.own.Config(), Namespace: r.system, Spec: k.Spec, Log: c.Log}}
		c.OwnAccess = k.Own("c1", r.own.Config())
		for _, f := range change {
			f(c, k)
		}
	})
	r.mu.Lock()
	r.host = fmt.Sprintf("hello.%s.svc.cluster.local", r.sample)
	r.mu.Unlock()
	r.until("own cluster", r.has("10.1.0.1"))
	return r
}

// helloIn creates the service hello with the addresses.
func helloIn(t *testing.T, c *testkube.Cluster, namespace string, ips ...string) {
	t.Helper()
	endpoints := ""
	for _, ip := range ips {
		endpoints += fmt.Sprintf("- addresses: [%s]\n  conditions: {ready: true}\n", ip)
	}
	c.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: Service
metadata: {name: hello, namespace: %[1]s}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: hello-x, namespace: %[1]s, labels: {kubernetes.io/service-name: hello}}
addressType: IPv4
ports: [{name: http, port: 80}]
endpoints:
%[2]s`, namespace, endpoints))
}

// put writes a remote secret.
func (r *kubeTest) put(name string, labels map[string]string, kubeconfigs map[string]string) {
	r.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: r.system, Labels: labels}, StringData: kubeconfigs}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := r.secrets.Create(ctx, secret, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = r.secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func label() map[string]string {
	return map[string]string{remotesecret.Label: remotesecret.LabelValue}
}

// kubeconfig returns a kubeconfig for the cluster. Different numbers give different
// contents.
func kubeconfig(c *testkube.Cluster, number int) string {
	return fmt.Sprintf("# %d\n%s", number, c.Kubeconfig())
}

// TestOnlyLabelledSecrets: only labelled secrets of the system namespace register
// clusters, when they are added, changed and deleted.
func TestOnlyLabelledSecrets(t *testing.T) {
	t.Parallel()
	r := startReal(t)
	remote := testkube.Shared(t, "remote")
	helloIn(t, remote, r.sample, "10.2.0.1")
	r.put("unlabelled", nil, map[string]string{"c9": kubeconfig(remote, 0)})
	other := r.own.Namespace(t, "other")
	r.own.Apply(t, fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: elsewhere, namespace: %s, labels: {istio/multiCluster: \"true\"}}\ndata: {c8: %s}\n",
		other, base64.StdEncoding.EncodeToString([]byte(kubeconfig(remote, 0)))))
	r.put("good", label(), map[string]string{"c2": kubeconfig(remote, 0)})
	r.until("read", func() bool { return r.has("10.1.0.1", "10.2.0.1")() && r.status("c2").State == Synced })
	if s := r.status("c2"); s.Origin != r.system+"/good" || s.Credential == "" || s.Heard.IsZero() {
		t.Errorf("status %+v", s)
	}
	helloIn(t, remote, r.sample, "10.2.0.1", "10.2.0.2")
	r.until("a change there", r.has("10.1.0.1", "10.2.0.1", "10.2.0.2"))
	r.put("good", label(), map[string]string{"c3": kubeconfig(remote, 0)})
	r.until("another name", func() bool { return r.Has("c3") && !r.Has("c2") && r.status("c3").State == Synced })
	r.put("good", nil, map[string]string{"c3": kubeconfig(remote, 0)})
	r.until("the label is gone", func() bool { return !r.Has("c3") })
	if r.Has("c8") || r.Has("c9") {
		t.Error("a secret counts that is not labelled or of another namespace")
	}
}

// TestRotationAtRealServers: no snapshot lacks an endpoint during 100 changes of the
// credential.
func TestRotationAtRealServers(t *testing.T) {
	t.Parallel()
	r := startReal(t)
	remote := testkube.Shared(t, "remote")
	helloIn(t, remote, r.sample, "10.2.0.1", "10.2.0.2")
	for i := range 100 {
		text := kubeconfig(remote, i)
		c := remotesecret.DecodeKubeconfig("", []byte(text))
		if c.Err != nil {
			t.Fatal(c.Err)
		}
		r.put("a", label(), map[string]string{"c2": text})
		r.until(fmt.Sprint("rotation ", i), func() bool {
			p := r.published.Load()
			j := slices.IndexFunc(p.clusters, func(e publishedCluster) bool { return e.Cluster == "c2" })
			return j >= 0 && p.clusters[j].spec.Hash == c.Hash && p.clusters[j].State == Synced
		})
	}
	r.until("endpoints", r.has("10.1.0.1", "10.2.0.1", "10.2.0.2"))
	r.stop()
	r.always("10.2.0.1")
	r.always("10.2.0.2")
}

// TestNothingLeaksAtRealServers: no connections, files or goroutines are left after a real
// cluster was added and removed 150 times.
func TestNothingLeaksAtRealServers(t *testing.T) {
	r := startReal(t)
	remote := testkube.Shared(t, "remote")
	helloIn(t, remote, r.sample, "10.2.0.1")
	cycle := func(i int) {
		text := kubeconfig(remote, i)
		k := &Kubernetes{SystemNamespace: r.system, Log: slog.New(slog.DiscardHandler), Now: time.Now}
		r.Set(secret("a"), []Spec{k.Spec(named("c2", text))})
		r.until("read", r.has("10.1.0.1", "10.2.0.1"))
		r.Set(secret("a"), nil)
		r.until("gone", func() bool { return !r.Has("c2") && r.has("10.1.0.1")() })
	}
	cycle(0)
	files, goroutines := openFiles(t), runtime.NumGoroutine()
	for i := range 150 {
		cycle(i + 1)
	}
	r.until("everything is closed", func() bool {
		return openFiles(t) <= files+2 && runtime.NumGoroutine() <= goroutines+4 // the API server's own connection may be a new one
	})
}

func named(id mesh.ClusterID, text string) remotesecret.Cluster {
	c := remotesecret.DecodeKubeconfig("test", []byte(text))
	c.ID = id
	return c
}

func openFiles(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestRemoteServerIsAway: when the API server of a remote cluster stops, the own cluster
// goes on, the status has the cause, and the cluster recovers.
func TestRemoteServerIsAway(t *testing.T) {
	t.Parallel()
	r := startReal(t, func(c *Config, _ *Kubernetes) {
		c.OnLost, c.timing.lost = mesh.Demote, time.Millisecond
	})
	remote := testkube.Start(t, testkube.Named("away"))
	helloIn(t, remote, r.sample, "10.2.0.1")
	r.put("a", label(), map[string]string{"c2": kubeconfig(remote, 0)})
	r.until("read", r.has("10.1.0.1", "10.2.0.1"))
	remote.Stop(t)
	r.until("lost", func() bool { s := r.status("c2"); return s.State == Lost && s.Cause == "tcp" && s.Demoted })
	helloIn(t, r.own, r.sample, "10.1.0.1", "10.1.0.2")
	r.until("a change of the own cluster", r.has("10.1.0.1", "10.1.0.2", "10.2.0.1"))
	remote.Restart(t)
	began := time.Now()
	r.until("back", func() bool { s := r.status("c2"); return s.State == Synced && !s.Demoted })
	t.Logf("back after %v", time.Since(began))
	helloIn(t, remote, r.sample, "10.2.0.1", "10.2.0.2")
	r.until("a change there", r.has("10.1.0.1", "10.1.0.2", "10.2.0.1", "10.2.0.2"))
	r.stop()
	r.always("10.2.0.1")
}

// TestHostileServers: API servers that send invalid, endless or no responses, or redirect
// to a metadata service, are reported, and the other clusters are read.
func TestHostileServers(t *testing.T) {
	t.Parallel()
	r := startReal(t)
	remote := testkube.Shared(t, "remote")
	helloIn(t, remote, r.sample, "10.2.0.1")
	configs := map[string]string{"c2": kubeconfig(remote, 0)}
	want := map[mesh.ClusterID]string{}
	for name, h := range map[string]struct {
		answer http.HandlerFunc
		cause  string
	}{
		"nonsense": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, "answer"},
		"endless": {func(w http.ResponseWriter, req *http.Request) {
			w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
			for chunk := make([]byte, 64<<10); req.Context().Err() == nil; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, ""},
		"redirect": {func(w http.ResponseWriter, req *http.Request) {
			http.Redirect(w, req, "http://169.254.169.254/latest/meta-data", http.StatusFound)
		}, ""},
		"refuses": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, "401"},
	} {
		server := httptest.NewTLSServer(h.answer)
		t.Cleanup(server.Close)
		server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
		configs[name] = kubeconfigOf(server)
		want[mesh.ClusterID(name)] = h.cause
	}
	r.put("hostile", label(), configs)
	r.until("the good one", r.has("10.1.0.1", "10.2.0.1"))
	for id, cause := range want {
		r.until(string(id), func() bool {
			s := r.status(id)
			return s.State != Synced && s.Reason != "" && (cause == "" || s.Cause == cause)
		})
	}
	helloIn(t, remote, r.sample, "10.2.0.1", "10.2.0.2")
	r.until("a change beside them", r.has("10.1.0.1", "10.2.0.1", "10.2.0.2"))
}

func kubeconfigOf(server *httptest.Server) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: c, user: {token: secret}}]
contexts: [{name: c, context: {cluster: c, user: c}}]
`, server.URL, base64.StdEncoding.EncodeToString(pemOf(server)))
}

// TestRefusedKubeconfigs: a kubeconfig with a forbidden field is refused with the name of
// the field, before anything is started or opened. The other cluster in the same secret is
// read.
func TestRefusedKubeconfigs(t *testing.T) {
	t.Parallel()
	r := startReal(t, func(_ *Config, k *Kubernetes) {
		k.InPod = true
		k.Allow = remotesecret.Allow{"good": {remotesecret.Loopback}}
	})
	remote := testkube.Shared(t, "remote")
	helloIn(t, remote, r.sample, "10.2.0.1")
	started := filepath.Join(t.TempDir(), "started")
	config := func(cluster, user string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {%s}}]\nusers: [{name: c, user: {%s}}]\ncontexts: [{name: c, context: {cluster: c, user: c}}]\n", cluster, user)
	}
	const server = `server: "https://192.0.2.1:6443"`
	configs := map[string]string{"good": kubeconfig(remote, 0)}
	want := map[string]string{}
	for name, c := range map[string]struct{ config, field string }{
		"d1-exec":       {config(server, "exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: ["+started+"], interactiveMode: Never}"), "exec is not allowed"},
		"d3-provider":   {config(server, "auth-provider: {name: gcp}"), "auth provider gcp is not allowed"},
		"d3-token":      {config(server, "tokenFile: /etc/passwd"), "tokenFile is not allowed"},
		"d3-key":        {config(server, "client-key: /etc/passwd"), "clientKey is not allowed"},
		"d3-cert":       {config(server, "client-certificate: /etc/passwd"), "clientCertificate is not allowed"},
		"d4-ca":         {config(server+", certificate-authority: /etc/passwd", "token: t"), "certificateAuthority is not allowed"},
		"d5-insecure":   {config(server+", insecure-skip-tls-verify: true", "token: t"), "insecure-skip-tls-verify is not allowed"},
		"d6-proxy":      {config(server+`, proxy-url: "http://169.254.169.254"`, "token: t"), "proxy-url is not allowed"},
		"d6-metadata":   {config(`server: "https://169.254.169.254"`, "token: t"), "169.254.169.254"},
		"d6-loopback":   {config(`server: "https://127.0.0.1:6443"`, "token: t"), "127.0.0.1"},
		"d7-as":         {config(server, "token: t, as: \"system:admin\""), "as is not allowed"},
		"d8-anchors":    {"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n", "kubeconfig:"},
		"d8-large":      {"# " + strings.Repeat("x", 300<<10), "want at most"},
		"d8-duplicates": {"apiVersion: v1\napiVersion: v1\n", "line 2"},
		"d10-empty":     {"", "kubeconfig is empty"},
	} {
		configs[name] = c.config
		want[name] = c.field
	}
	r.put("hostile", label(), configs)
	r.until("the good one", r.has("10.1.0.1", "10.2.0.1"))
	r.until("all are told of", func() bool { _, p := r.Status(); return len(p) == len(want) })
	_, problems := r.Status()
	for _, p := range problems {
		field, known := want[string(p.Cluster)]
		if !known || !strings.Contains(p.Reason, field) || p.Origin != r.system+"/hostile" {
			t.Errorf("%+v, want %q", p, field)
		}
		if text, refusal := strings.CutPrefix(p.Reason, "kubeconfig is not allowed: "); refusal != (len(p.Refused) > 0) ||
			refusal && (p.Refused[0].Field == "" || p.Refused[0].Fix == "" || !strings.HasPrefix(text, p.Refused[0].Reason)) {
			t.Errorf("got findings %+v, reason %q", p.Refused, p.Reason)
		}
	}
	if list, _ := r.Status(); len(list) != 2 {
		t.Errorf("clusters %+v", list)
	}
	if notes := strings.Join(r.status("good").Notes, " "); !strings.Contains(notes, "allowed: loopback") {
		t.Errorf("permissions are missing in notes %q", notes)
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("the plug-in was started")
	}
	for _, id := range []mesh.ClusterID{"c1", "good"} {
		r.until("the version of "+string(id), func() bool { return strings.HasPrefix(r.status(id).Version, "v1.") })
	}
}

// TestReach: the permissions in the settings of a cluster apply to Reach, too.
func TestReach(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(server.Close)
	k := &Kubernetes{InPod: true, Log: slog.New(slog.DiscardHandler), Now: time.Now}
	c := named("c2", kubeconfigOf(server))
	if _, err := k.Reach(&c, mesh.ClusterSetting{}); err == nil || !strings.Contains(err.Error(), "not allowed") {
		t.Errorf("loopback in a pod: %v", err)
	}
	access, err := k.Reach(&c, mesh.ClusterSetting{Allow: []string{string(remotesecret.Loopback)}})
	if err != nil || access.Host != server.URL {
		t.Errorf("allowed by a setting: %v", err)
	}
}

// TestKubeconfigDirectory: added, changed and deleted files take effect, also when the
// kubelet replaces them.
func TestKubeconfigDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := startReal(t, func(c *Config, k *Kubernetes) {
		c.Finders = append(c.Finders, &Files{Dir: dir, Spec: k.Spec, Log: c.Log})
	})
	remote := testkube.Shared(t, "remote")
	helloIn(t, remote, r.sample, "10.2.0.1")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(".hidden", "x")
	write("a", kubeconfig(remote, 0))
	r.until("read", r.has("10.1.0.1", "10.2.0.1"))
	if s := r.status("remote"); s.OriginKind != OriginFile || s.Origin != filepath.Join(dir, "a") {
		t.Errorf("status %+v", s)
	}
	write("a", "no kubeconfig")
	r.until("malformed", r.problem("; the last good one stays in use"))
	write("b", kubeconfig(remote, 1))
	r.until("claimed twice", r.problem("claims the cluster, too"))
	if err := os.Remove(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	r.until("taken over", func() bool {
		_, p := r.Status()
		return len(p) == 0 && r.status("remote").Origin == filepath.Join(dir, "b")
	})
	if err := os.Rename(dir, dir+"-away"); err != nil {
		t.Fatal(err)
	}
	r.until("the directory is gone", func() bool { return strings.Contains(r.log.String(), "the directory of kubeconfigs cannot be read") })
	if !r.Has("remote") {
		t.Error("a cluster went with the directory")
	}
	if err := os.Rename(dir+"-away", dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	r.until("gone", func() bool { return !r.Has("remote") })
	r.stop()
	r.always("10.1.0.1")
}

func pemOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}

// TestDrainByConfigMap: settings in the own cluster take effect until they are deleted.
func TestDrainByConfigMap(t *testing.T) {
	t.Parallel()
	r := startReal(t)
	remote := testkube.Shared(t, "remote")
	helloIn(t, remote, r.sample, "10.2.0.1")
	r.put("a", label(), map[string]string{"c2": kubeconfig(remote, 0)})
	r.until("read", r.has("10.1.0.1", "10.2.0.1"))
	drained := func() bool {
		eps := r.registry.Current().Endpoints.Get(r.host).ByPort["http"]
		return len(eps) == 2 && eps[1].Drained && eps[1].Weight == 1 && eps[0].Weight == 2 && r.status("c2").Drained
	}
	r.own.Apply(t, fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: meshctl-clusters, namespace: %s}\ndata:\n  clusters.yaml: |\n    clusters: {c2: {drain: true, weight: 50}}\n", r.system))
	r.until("drained", drained)
	r.own.Kubectl(t, "", "delete", "configmap", "meshctl-clusters", "-n", r.system)
	r.until("not drained", func() bool { return !drained() && !r.status("c2").Drained })
}

// TestMissingRightIsNoLoss: a missing permission to read nodes is reported, but the
// cluster does not count as lost.
func TestMissingRightIsNoLoss(t *testing.T) {
	t.Parallel()
	r := startReal(t, func(c *Config, _ *Kubernetes) { c.OnLost, c.Grace, c.timing.lost = mesh.Drop, 0, 0 })
	remote := testkube.Shared(t, "remote")
	helloIn(t, remote, r.sample, "10.2.0.1")
	remote.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: ServiceAccount, metadata: {name: reader, namespace: %[1]s}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %[1]s}
rules:
- {apiGroups: [""], resources: [namespaces, services, pods], verbs: [get, list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}
- {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %[1]s}
subjects: [{kind: ServiceAccount, name: reader, namespace: %[1]s}]
`, r.sample))
	token := strings.TrimSpace(remote.Kubectl(t, "", "-n", r.sample, "create", "token", "reader"))
	with := func(token string) map[string]string {
		return map[string]string{"c2": fmt.Sprintf(
			`{apiVersion: v1, kind: Config, current-context: x, clusters: [{name: x, cluster: {server: %q, certificate-authority-data: %s}}],
users: [{name: x, user: {token: %s}}], contexts: [{name: x, context: {cluster: x, user: x}}]}`,
			remote.Config().Host, base64.StdEncoding.EncodeToString(remote.CA()), token)}
	}
	r.put("reader", label(), with(token))
	r.until("read", r.has("10.1.0.1", "10.2.0.1"))
	r.until("told of", func() bool { return r.status("c2").Cause == "403" })
	helloIn(t, remote, r.sample, "10.2.0.1", "10.2.0.2")
	r.until("followed", r.has("10.1.0.1", "10.2.0.1", "10.2.0.2"))
	if s := r.status("c2"); s.State != Synced || !s.LostSince.IsZero() || s.Drained || s.Demoted || !strings.HasPrefix(s.Reason, "may not list nodes (") {
		t.Errorf("status %+v", s)
	}
	r.put("reader", label(), with("refused"))
	r.until("a new credential that is refused", func() bool { return r.status("c2").Cause == "401" })
	s := r.status("c2")
	if s.State != Synced || len(s.Faults) != 2 || !strings.HasPrefix(s.Faults[0].Fix, "meshctl remote-secret rotate --name c2 ") ||
		!strings.HasPrefix(s.Faults[1].Reason, "may not list nodes (") || !strings.HasPrefix(s.Faults[1].Fix, "meshctl create-remote-secret --name c2 ") {
		t.Errorf("status %+v", s)
	}
}
