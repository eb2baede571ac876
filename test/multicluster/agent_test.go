package multicluster

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/harness"
)

// agent runs a workload of west with a token as the kubelet projects it, and
// has it get its certificate from the control plane of east, which knows west
// by its remote secret. Its Envoy then shows it.
func agent(t *testing.T, m *mesh) {
	t.Helper()
	m.west.Apply(t, `
apiVersion: v1
kind: ServiceAccount
metadata: {namespace: sample, name: client}
---
apiVersion: v1
kind: Pod
metadata: {namespace: sample, name: client, labels: {app: client}}
spec:
  serviceAccountName: client
  containers: [{name: app, image: app}]
`)
	core, err := kube.NewClient(m.west.Config())
	if err != nil {
		t.Fatal(err)
	}
	pod, err := kube.ObjectsOf[corev1.Pod, corev1.PodList](core, corev1.SchemeGroupVersion, "pods", "sample").Get(t.Context(), "client")
	if err != nil {
		t.Fatal(err)
	}
	answer, err := core.CreateToken(t.Context(), "sample", "client", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			Audiences: []string{"istio-ca"}, ExpirationSeconds: new(int64(43200)),
			BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	// As in a container, but in another root: all paths are defaults.
	work := harness.ShortDir(t)
	for path, text := range map[string]string{
		"var/run/secrets/tokens/istio-token":  answer.Status.Token,
		"var/run/secrets/istio/root-cert.pem": m.west.Kubectl(t, "", "get", "configmap", "-n", "sample", "istio-ca-root-cert", "-o", `jsonpath={.data.root-cert\.pem}`),
	} {
		path = filepath.Join(work, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const bind = "127.11.3.1"
	stop := m.backgroundIn(t, work, "agent", []string{
		"POD_NAME=client", "POD_NAMESPACE=sample", "SERVICE_ACCOUNT=client", "INSTANCE_IP=10.2.0.9",
		"CA_ADDR=" + m.east.secure(), `PROXY_CONFIG={"discoveryAddress":"` + m.east.secure() + `","concurrency":1,"terminationDrainDuration":"0s"}`,
		"ISTIO_META_CLUSTER_ID=west", "ISTIO_META_NETWORK=flat",
	}, "agent", "--type", "sidecar", "--envoy", envoy.Path(t), "--bind-address", bind)
	defer stop()
	client := dial.HTTPClient(10*time.Second, nil)
	defer client.CloseIdleConnections()
	get := func(port, path string) (string, error) {
		resp, err := client.Get("http://" + net.JoinHostPort(bind, port) + path)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		var text strings.Builder
		if _, err := io.Copy(&text, resp.Body); err != nil {
			return "", err
		}
		if resp.StatusCode != http.StatusOK {
			return "", errNotReady
		}
		return text.String(), nil
	}
	took := eventually(t, "the agent is ready", func() error { _, err := get("15020", "/healthz/ready"); return err })
	t.Logf("the agent was ready after %s", took.Round(10*time.Millisecond))
	certs, err := get("15000", "/certs")
	if err != nil || !strings.Contains(certs, "spiffe://cluster.local/ns/sample/sa/client") {
		t.Errorf("Envoy has %s, %v", certs, err)
	}
	text, err := m.east.get("15014", "/metrics")
	if err != nil || !strings.Contains(string(text), `meshctl_token_reviews_total{cluster="west",result="accepted"}`) {
		t.Errorf("no review of west is counted, %v", err)
	}
}
