package e2e

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/test/envoy"
)

// istioContainer is the environment that Istio's injection gives to the container of the proxy, in
// its order.
var istioContainer = []string{
	"PILOT_CERT_PROVIDER=istiod", "CA_ADDR=istiod.istio-system.svc:15012",
	"POD_NAME=server", "POD_NAMESPACE=shop", "INSTANCE_IP=10.11.0.5", "SERVICE_ACCOUNT=server", "HOST_IP=10.11.0.1",
	"ISTIO_CPU_LIMIT=2", "PROXY_CONFIG={}\n",
	`ISTIO_META_POD_PORTS=[{"name":"http","containerPort":8080,"protocol":"TCP"}]`,
	"ISTIO_META_APP_CONTAINERS=web", "GOMEMLIMIT=1073741824", "ISTIO_META_CLUSTER_ID=cluster1", "ISTIO_META_NODE_NAME=node-7",
	"ISTIO_META_INTERCEPTION_MODE=REDIRECT", "ISTIO_META_NETWORK=network1", "ISTIO_META_WORKLOAD_NAME=server",
	"ISTIO_META_OWNER=kubernetes://apis/apps/v1/namespaces/shop/deployments/server", "ISTIO_META_MESH_ID=mesh1",
	"TRUST_DOMAIN=cluster.local", "ISTIO_META_DNS_CAPTURE=true",
	`ISTIO_KUBE_APP_PROBERS={"/app-health/web/readyz":{"httpGet":{"path":"/ready","port":8080,"scheme":"HTTP"},"timeoutSeconds":5}}`,
	`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","path":"/metrics","port":"8080"}`,
	"KUBERNETES_SERVICE_HOST=10.96.0.1",
}

// istioNode is the node that Istio's agent makes of this environment and of the files of the test,
// without the version of Istio and the path of Envoy.
const istioNode = `{
	"id": "sidecar~10.11.0.5~server.shop~shop.svc.cluster.local",
	"cluster": "server.shop",
	"locality": {},
	"metadata": {
		"ANNOTATIONS": {"istio.io/rev": "default", "prometheus.io/port": "15020"},
		"APP_CONTAINERS": "web",
		"CLUSTER_ID": "cluster1",
		"DNS_CAPTURE": "true",
		"ENVOY_PROMETHEUS_PORT": 15090,
		"ENVOY_SKIP_DEPRECATED_LOGS": "true",
		"ENVOY_STATUS_PORT": 15021,
		"INSTANCE_IPS": "10.11.0.5,fd00:a::5",
		"INTERCEPTION_MODE": "REDIRECT",
		"LABELS": {"app": "server", "security.istio.io/tlsMode": "istio", "service.istio.io/canonical-name": "server"},
		"MESH_ID": "mesh1",
		"METADATA_DISCOVERY": "false",
		"NAME": "server",
		"NAMESPACE": "shop",
		"NETWORK": "network1",
		"NODE_NAME": "node-7",
		"OWNER": "kubernetes://apis/apps/v1/namespaces/shop/deployments/server",
		"PILOT_SAN": ["istiod.istio-system.svc"],
		"POD_PORTS": "[{\"name\":\"http\",\"containerPort\":8080,\"protocol\":\"TCP\"}]",
		"PROXY_CONFIG": {
			"concurrency": 2, "configPath": "./etc/istio/proxy", "controlPlaneAuthPolicy": "MUTUAL_TLS",
			"discoveryAddress": "istiod.istio-system.svc:15012", "drainDuration": "45s", "proxyAdminPort": 15000,
			"serviceCluster": "istio-proxy", "statNameLength": 189, "statusPort": 15020, "terminationDrainDuration": "5s"
		},
		"SERVICE_ACCOUNT": "server",
		"WORKLOAD_IDENTITY_SOCKET_FILE": "socket",
		"WORKLOAD_NAME": "server"
	}
}`

// TestPodOfIstio starts the containers of a pod that Istio injected, with their arguments,
// environment and files, and only the image replaced: init container and proxy. The node of Envoy is
// the node of Istio's agent, the control plane configures it, and probes and metrics of the
// application arrive.
func TestPodOfIstio(t *testing.T) {
	if !inPod(t) {
		return
	}
	n := startNode(t, redirectedMesh)
	p := n.newPod(t, "REDIRECT", "server", "10.11.0.5", "fd00:a::5")
	file := func(name string) string { return filepath.Join(p.work, name) }
	for _, dir := range []string{"etc/istio/proxy", "etc/istio/pod", "var/run/secrets/tokens", "var/run/secrets/istio", "var/run/secrets/workload-spiffe-uds"} {
		if err := os.MkdirAll(file(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{
		"etc/istio/pod/labels":      "app=\"server\"\npod-template-hash=\"7d9\"\nsecurity.istio.io/tlsMode=\"istio\"\nservice.istio.io/canonical-name=\"server\"\n",
		"etc/istio/pod/annotations": "istio.io/rev=\"default\"\nkubectl.kubernetes.io/last-applied-configuration=\"{}\"\nprometheus.io/port=\"15020\"\n",
	} {
		if err := os.WriteFile(file(name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p.writeCredentials(t, file("var/run/secrets/tokens/istio-token"), file("var/run/secrets/istio/root-cert.pem"))
	user, _ := strconv.Atoi(proxyUser)
	if err := filepath.WalkDir(p.work, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chown(path, user, user))
	}); err != nil {
		t.Fatal(err)
	}
	servesOn(t, p.listen(t, "8080"), func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ready":
			http.Error(w, "warm", http.StatusOK)
		case "/metrics":
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			_, _ = w.Write([]byte("app_requests 7\n"))
		}
	})
	t.Cleanup(backgroundCommand(t, p.command(proxyUser, "env", "--chdir="+p.work, meshctl, "agent",
		"proxy", "sidecar", "--domain", "shop.svc.cluster.local", "--proxyLogLevel=warning", "--proxyComponentLogLevel=misc:error",
		"--log_output_level=default:info"), filepath.Join(n.dir, "server.log"), p.work,
		append([]string{"PATH=" + filepath.Dir(envoy.Path(t)) + ":" + os.Getenv("PATH")}, istioContainer...)))
	p.waitReady(t)

	var dump struct {
		Configs []struct {
			Bootstrap struct {
				Node map[string]any `json:"node"`
			} `json:"bootstrap"`
		} `json:"configs"`
	}
	text := p.run(t, "0", meshctl, "agent", "request", "GET", "config_dump")
	if err := json.Unmarshal([]byte(text), &dump); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	var want map[string]any
	if err := json.Unmarshal([]byte(istioNode), &want); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	for _, c := range dump.Configs {
		if c.Bootstrap.Node != nil {
			got = c.Bootstrap.Node
		}
	}
	for key := range got { // of Envoy itself
		if strings.HasPrefix(key, "user_agent") || key == "extensions" {
			delete(got, key)
		}
	}
	metadata, ok := got["metadata"].(map[string]any)
	if !ok {
		t.Fatalf("the node is %v", got)
	}
	if v, _ := metadata["ISTIO_VERSION"].(string); !strings.HasPrefix(v, "meshctl-") {
		t.Errorf("ISTIO_VERSION is %q", v)
	}
	for _, own := range []string{"ISTIO_VERSION", "MESHCTL_METRICS", "MESHCTL_RELAY", "MESHCTL_VIRTUAL_HOSTS"} {
		delete(metadata, own)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the node (-of Istio's agent +of meshctl's):\n%s", diff)
	}

	status := exec.Command(meshctl, "ps", "--server", "127.3.0.2:8080")
	status.Env = append(os.Environ(), "HOME="+n.dir)
	if out, err := status.CombinedOutput(); err != nil || !strings.Contains(string(out), "server.shop") || !strings.Contains(string(out), "SYNCED") {
		t.Errorf("proxy-status: %v\n%s", err, out)
	}
	if body, _, err := get("http://" + net.JoinHostPort(p.v4, "15020") + "/app-health/web/readyz"); err != nil || body != "warm\n" {
		t.Errorf("the probe of the application: %v, %q", err, body)
	}
	if body, _, err := get("http://" + net.JoinHostPort(p.v4, "15020") + "/stats/prometheus"); err != nil ||
		!strings.Contains(body, "app_requests 7\n") || !strings.Contains(body, "envoy_server_live") || !strings.Contains(body, "istio_agent_cert_expiry_seconds") {
		t.Errorf("the metrics: %v, %.300s", err, body)
	}
}
