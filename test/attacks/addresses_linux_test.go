package attacks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/harness"
	"github.com/meshctl/meshctl/test/kube"
)

// addressWorld is a control plane, whose configuration a tenant writes, and one proxy.
type addressWorld struct {
	dir   string // of all files
	ip    string // of the control plane
	proxy string // the address of the proxy
}

// newAddressWorld makes the CA and the token issuer.
func newAddressWorld(t *testing.T, network string) *addressWorld {
	t.Helper()
	w := &addressWorld{dir: harness.ShortDir(t), ip: network + ".1", proxy: network + ".2"}
	for _, args := range [][]string{
		{"certs", "root-ca", "--out", w.path("root")},
		{"certs", "intermediate-ca", "--root", w.path("root"), "--out", w.path("ca"), "cluster1"},
		{"token", "issuer", "--out", w.path("issuer")},
	} {
		if out, err := exec.Command(meshctl, args...).CombinedOutput(); err != nil {
			t.Fatalf("meshctl %v: %v\n%s", args, err, out)
		}
	}
	if err := os.Mkdir(w.path("mesh"), 0o700); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *addressWorld) path(name string) string { return filepath.Join(w.dir, name) }

// run runs a program until the test ends. Its log is shown when the test fails.
func (w *addressWorld) run(t *testing.T, name string, env []string, args ...string) {
	t.Helper()
	work := w.path(name)
	if err := os.MkdirAll(work, 0o700); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(w.path(name + ".log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = work, log, log
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + work}, env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("%s ended by itself: %v", name, err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = log.Close()
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, harness.Tail(log.Name()))
		}
	})
}

// serve runs the control plane, with the flags for its source.
func (w *addressWorld) serve(t *testing.T, flags ...string) {
	t.Helper()
	w.run(t, "serve", nil, append([]string{
		meshctl, "serve", "--cluster-id", "cluster1", "--ca-dir", w.path("ca/cluster1"), "--token-issuer", "cluster1=" + w.path("issuer"),
		"--grpc-addr", "", "--secure-grpc-addr", w.ip + ":15012", "--http-addr", w.ip + ":8080", "--monitoring-addr", w.ip + ":15014",
	}, flags...)...)
	eventually(t, "the control plane is ready", func() error { return statusOK("http://" + w.ip + ":8080/ready") })
}

// agent runs the proxy of a workload edge/proxy. wrapper precedes its command line.
func (w *addressWorld) agent(t *testing.T, kind string, wrapper []string, env ...string) {
	t.Helper()
	out, err := exec.Command(meshctl, "token", "create", "--issuer", w.path("issuer"), "--service-account", "edge/proxy", "--out", w.path("token")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	labels, err := json.Marshal(map[string]string{"app": "proxy"})
	if err != nil {
		t.Fatal(err)
	}
	w.run(t, "agent", append([]string{
		"POD_NAME=proxy", "POD_NAMESPACE=edge", "SERVICE_ACCOUNT=proxy", "INSTANCE_IP=" + w.proxy, "CA_ADDR=" + w.ip + ":15012",
		`PROXY_CONFIG={"discoveryAddress":"` + w.ip + `:15012","concurrency":1,"terminationDrainDuration":"0s","drainDuration":"1s"}`,
		"ISTIO_META_CLUSTER_ID=cluster1", "ISTIO_METAJSON_LABELS=" + string(labels),
	}, env...), append(wrapper, meshctl, "agent", "--type", kind, "--envoy", envoy.Path(t), "--bind-address", w.proxy,
		"--root-ca", w.path("ca/cluster1/root-cert.pem"), "--token", w.path("token"))...)
	eventually(t, "the proxy is ready", func() error { return statusOK("http://" + w.proxy + ":15020/healthz/ready") })
}

// write writes objects into the directory that the control plane reads.
func (w *addressWorld) write(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(w.dir, name+".tmp")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file, filepath.Join(w.dir, "mesh", name+".yaml")); err != nil {
		t.Fatal(err)
	}
}

// logged reports whether the control plane logged a text.
func (w *addressWorld) logged(t *testing.T, text string) bool {
	t.Helper()
	log, err := os.ReadFile(w.path("serve.log"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(log), text)
}

// sockets returns the Unix sockets of the agent.
func (w *addressWorld) sockets(t *testing.T) map[string]fs.FileInfo {
	t.Helper()
	out := map[string]fs.FileInfo{}
	err := filepath.WalkDir(w.path("agent"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type() != fs.ModeSocket {
			return err
		}
		out[path], err = d.Info()
		return err
	})
	if err != nil || len(out) == 0 {
		t.Fatalf("the agent has %d sockets: %v", len(out), err)
	}
	return out
}

func statusOK(url string) error {
	_, err := body(url, "")
	return err
}

// body returns the body of a response with status 200.
func body(url, host string) (string, error) {
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	r.Host = host
	resp, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return string(text), err
}

// refusedUnder waits until the control plane has refused an attack. The attack must not succeed
// before nor after.
func (w *addressWorld) refusedUnder(t *testing.T, refusal string, attack func() error) {
	t.Helper()
	try := func() {
		if err := attack(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the control plane refuses the object", func() error {
		try()
		if !w.logged(t, refusal) {
			return fmt.Errorf("its log lacks %q", refusal)
		}
		return nil
	})
	try()
}

const sharedGateway = `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: shared, namespace: edge}
spec:
  selector: {app: proxy}
  servers: [{port: {number: %d, name: http, protocol: HTTP}, bind: %s, hosts: ["*"]}]
`

// TestGatewayBindsSocketsOfTheAgent: a server of a tenant at the path of a socket of the agent
// would make Envoy delete the socket, and serve the tenant's secrets and configuration to Envoy itself.
func TestGatewayBindsSocketsOfTheAgent(t *testing.T) {
	t.Parallel()
	w := newAddressWorld(t, "127.35.1")
	w.write(t, "shared", fmt.Sprintf(sharedGateway, 8880, w.proxy))
	w.serve(t, "--config-dir", w.path("mesh"))
	w.agent(t, "router", nil)
	before := w.sockets(t)
	tenant := fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: evil, namespace: tenant}
spec: {hosts: [evil.example], resolution: STATIC, ports: [{number: 80, name: tcp, protocol: TCP}], endpoints: [{address: %s, ports: {tcp: 9}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: evil, namespace: tenant}
spec: {hosts: ["*"], gateways: [tenant/evil], tcp: [{route: [{destination: {host: evil.example}}]}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: evil, namespace: tenant}
spec:
  selector: {app: proxy}
  servers:
`, w.ip)
	for path := range before {
		tenant += fmt.Sprintf("  - {port: {number: 0, name: %q, protocol: TCP}, bind: %q, hosts: [\"*\"]}\n", filepath.Base(path), "unix://"+path)
	}
	w.write(t, "tenant", tenant)
	w.refusedUnder(t, "is a Unix socket", func() error {
		for path, was := range before {
			is, err := os.Lstat(path)
			if err != nil {
				return err
			}
			if !os.SameFile(was, is) {
				return fmt.Errorf("the tenant's server has replaced the socket %s of the agent", path)
			}
		}
		return nil
	})
	w.write(t, "shared", fmt.Sprintf(sharedGateway, 8881, w.proxy))
	eventually(t, "the gateway gets changes", func() error {
		conn, err := net.Dial("tcp", w.proxy+":8881")
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// TestSidecarForwardsToSocketsOfTheAgent: a Sidecar must not publish the socket at which the agent
// serves the key of the workload, to callers without credentials.
func TestSidecarForwardsToSocketsOfTheAgent(t *testing.T) {
	t.Parallel()
	w := newAddressWorld(t, "127.35.2")
	w.serve(t, "--config-dir", w.path("mesh"))
	w.agent(t, "sidecar", nil, "ISTIO_META_INTERCEPTION_MODE=NONE")
	ingress, ports := "", []string{}
	for path := range w.sockets(t) {
		port := fmt.Sprint(9080 + len(ports))
		ports = append(ports, port)
		ingress += fmt.Sprintf("  - {port: {number: %s, name: p%s, protocol: TCP}, bind: %s, defaultEndpoint: %q}\n", port, port, w.proxy, "unix://"+path)
	}
	w.write(t, "tenant", `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: edge}
spec: {mtls: {mode: DISABLE}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: edge}
spec:
  ingress:
`+ingress)
	w.refusedUnder(t, "is a Unix socket", func() error {
		for _, port := range ports {
			if key := keyOf(t, w.proxy+":"+port); key != "" {
				return fmt.Errorf("port %s gives a private key of %d bytes to a caller without credentials", port, len(key))
			}
		}
		return nil
	})
}

// keyOf asks an address for the key of the workload, as Envoy asks its agent.
func keyOf(t *testing.T, address string) string {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
	defer stop()
	stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(ctx)
	if err != nil {
		return ""
	}
	request := &discoveryv3.DiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", ResourceNames: []string{mesh.SecretCertificate}}
	if stream.Send(request) != nil {
		return ""
	}
	resp, err := stream.Recv()
	if err != nil {
		return ""
	}
	for _, a := range resp.GetResources() {
		var secret tlsv3.Secret
		if a.UnmarshalTo(&secret) == nil {
			return string(secret.GetTlsCertificate().GetPrivateKey().GetInlineBytes())
		}
	}
	return ""
}

// TestServiceEntryOfLoopbackNames: a name that the hosts file of every pod has for a loopback address
// must not lead a shared gateway to the programs of its own pod.
func TestServiceEntryOfLoopbackNames(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: loopback names at a gateway, because a hosts file of its own needs root")
	}
	t.Parallel()
	own, err := net.Listen("tcp", "127.0.0.1:0") // a program that trusts its machine
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: deadline, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "secret") })}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(own) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	_, port, _ := net.SplitHostPort(own.Addr().String())

	c := kube.Start(t)
	c.Apply(t, istioDefinitions("Gateway", "VirtualService", "ServiceEntry"))
	for _, namespace := range []string{"edge", "tenant", "istio-system"} {
		c.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: "+namespace+"}}")
	}
	w := newAddressWorld(t, "127.35.3")
	c.Apply(t, fmt.Sprintf(sharedGateway, 8880, w.proxy))
	w.serve(t, "--kubeconfig", c.KubeconfigFile(t), "--system-namespace", "istio-system")
	if err := os.WriteFile(w.path("hosts"), []byte("127.0.0.1 localhost ip6-loopback ip6-localhost localhost.localdomain\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.agent(t, "router", []string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`, w.path("hosts")})
	names := []string{"ip6-loopback", "ip6-localhost", "localhost.localdomain"}
	for i, name := range names {
		c.Apply(t, fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: evil%[1]d, namespace: tenant}
spec: {hosts: [evil%[1]d.example], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: %[2]s, ports: {http: %[3]s}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: evil%[1]d, namespace: tenant}
spec: {hosts: [evil%[1]d.example], gateways: [edge/shared], http: [{route: [{destination: {host: evil%[1]d.example}}]}]}
`, i, name, port))
	}
	for i, name := range names {
		w.refusedUnder(t, name+" is a loopback name", func() error {
			if text, _ := body("http://"+w.proxy+":8880/", fmt.Sprintf("evil%d.example", i)); strings.Contains(text, "secret") {
				return fmt.Errorf("a caller reads the program of the gateway's own machine by the name %s", name)
			}
			return nil
		})
	}
}

// istioDefinitions returns definitions of kinds that accept everything.
func istioDefinitions(kinds ...string) string {
	var out strings.Builder
	for _, kind := range kinds {
		plural := strings.ReplaceAll(strings.ToLower(kind)+"s", "ys", "ies")
		fmt.Fprintf(&out, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[2]s.networking.istio.io}
spec:
  group: networking.istio.io
  scope: Namespaced
  names: {kind: %[1]s, plural: %[2]s, singular: %[3]s}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
---
`, kind, plural, strings.ToLower(kind))
	}
	return out.String()
}
