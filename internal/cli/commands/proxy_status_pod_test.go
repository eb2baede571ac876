package commands

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"

	"github.com/meshctl/meshctl/test/clitest"
	"github.com/meshctl/meshctl/test/kube"
)

// TestProxyStatusOfARefusal compares a proxy while a response waits for its answer, and
// after the proxy refused it.
func TestProxyStatusOfARefusal(t *testing.T) {
	m := clitest.StartMesh(t, groups()...)
	m.Eventually("SYNCED", "ps")
	admin := holdsWhatWasSent(m).Listener.Addr().String()
	code, stdout, stderr := m.Run("ps", "client-1.apps", "--admin", admin)
	if code != 0 || stdout != "Clusters Match\nListeners Match\nRoutes Match\n" || stderr != "" {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}

	m.Service(81)
	r, err := m.Stream.Recv() // without an answer
	if err != nil {
		t.Fatal(err)
	}
	m.Eventually("STALE CDS", "ps")
	code, stdout, stderr = m.Run("ps", "client-1.apps", "--admin", admin)
	if code != 3 || !strings.Contains(stdout, "Clusters Don't Match\n") || !strings.Contains(stdout, "Only in Istiod Clusters: outbound|81||web.apps.svc.cluster.local\n") ||
		!regexp.MustCompile(`^client-1\.apps: CDS: 2 of \d differ; CDS: the proxy has not answered the last response yet\n$`).MatchString(stderr) {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}

	err = m.Stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(),
		ErrorDetail: &statuspb.Status{Message: "Error adding/updating cluster(s) outbound|81||web.apps.svc.cluster.local: no \x1b good"},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.Eventually("ERROR CDS", "ps")
	if _, _, stderr = m.Run("ps", "client-1.apps", "--admin", admin); !regexp.MustCompile(`^client-1\.apps: .*CDS: the proxy refused a version: .*no \\x1b good\n$`).MatchString(stderr) {
		t.Errorf("said is %q", stderr)
	}
}

// TestProxyStatusOfAPod reads the Envoy of a pod by port-forward in the cluster of
// --proxy-context.
func TestProxyStatusOfAPod(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	one, two := kube.Shared(t, "cluster1"), kube.Shared(t, "cluster2")
	config := kube.MergedKubeconfig(t, one, two)
	m := clitest.StartMesh(t, groups()...)
	m.Eventually("SYNCED", "ps")
	kubelet := two.Kubelet(t)
	two.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: apps}}
---
{apiVersion: v1, kind: Pod, metadata: {name: client-1, namespace: apps},
spec: {nodeName: %s, automountServiceAccountToken: false, serviceAccountName: default, containers: [{name: istio-proxy, image: none}]},
status: {phase: Running, podIP: 10.9.9.9, podIPs: [{ip: 10.9.9.9}]}}`, kubelet.Node))
	// Other tests share the cluster.
	defer two.Kubectl(t, "", "delete", "pod", "client-1", "-n", "apps", "--grace-period=0", "--force")
	_, port, _ := strings.Cut(holdsWhatWasSent(m).Listener.Addr().String(), ":")
	for _, tc := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{[]string{"--proxy-context", "cluster2", "--proxy-admin-port", port}, 0, `^Clusters Match\nListeners Match\nRoutes Match\n$`, `^$`},
		{[]string{"--context", "cluster2", "--proxy-admin-port", port, "-o", "json"}, 0, `"envoy": "admin interface localhost:\d+ by port-forward to pod apps/client-1"`, `^$`},
		{[]string{"--proxy-context", "cluster2", "--proxy-admin-port", "1"}, 1, `^$`, `ask Envoy's admin interface localhost:1 by port-forward to pod apps/client-1: .*connection refused.*; if the pod is in another cluster, name it with --proxy-context`},
		{[]string{"--context", "cluster1"}, 1, `^$`, `port-forward to pod apps/client-1: .*not found.*; if the pod is in another cluster, name it with --proxy-context`},
		{[]string{"--proxy-context", "cluster3"}, 1, `^$`, `cluster3`},
	} {
		code, stdout, stderr := m.Run(append([]string{"ps", "client-1.apps", "--kubeconfig", config}, tc.args...)...)
		if code != tc.code || !regexp.MustCompile(tc.stdout).MatchString(stdout) || !regexp.MustCompile(tc.stderr).MatchString(stderr) {
			t.Errorf("%v: exit code %d, want %d, %s and %s:\n%s%s", tc.args, code, tc.code, tc.stdout, tc.stderr, stdout, stderr)
		}
	}
}

// holdsWhatWasSent serves the admin interface of an Envoy that accepted everything.
func holdsWhatWasSent(m *clitest.Mesh) *httptest.Server {
	m.T.Helper()
	code, dump, stderr := m.Run("x", "internal-debug", "config_dump?proxyID=client-1.apps")
	if code != 0 {
		m.T.Fatal(stderr)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, dump) }))
	m.T.Cleanup(s.Close)
	return s
}
