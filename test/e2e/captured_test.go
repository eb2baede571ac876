package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/harness"
)

// TestCapturedProxiesAccepted gives real Envoys the resources of proxies with redirected
// connections: virtualOutbound, virtualInbound and a listener for each service, in the mesh
// of the generator's golden files. For traffic, which needs root, see
// redirected_linux_test.go.
func TestCapturedProxiesAccepted(t *testing.T) {
	mesh := filepath.Join("..", "..", "internal", "server", "xdsgen", "testdata", "two-networks")
	for _, variant := range []string{"delta", "sotw"} {
		t.Run(variant, func(t *testing.T) {
			dir := harness.ShortDir(t)
			plain, secure := controlPlane(t, dir, mesh)
			for _, p := range []proxy{
				{"helloworld-v1", "sidecar", "sample", "helloworld", "10.11.0.5", nil},
				{"client", "sidecar", "elsewhere", "client", "10.11.0.77", map[string]string{"app": "client"}},
				{"gw", "router", "istio-system", "gw", "10.11.0.9", map[string]string{"istio": "eastwestgateway"}},
			} {
				t.Run(p.name, func(t *testing.T) {
					stop := p.start(t, dir, secure, fmt.Sprintf("ISTIO_DELTA_XDS=%t", variant == "delta"))
					defer stop()
					node, _, _ := dumpOf(t, admin)
					holds(t, admin, sentTo(t, plain, node))
					refusedNothing(t, admin)
				})
			}
		})
	}
}

// admin is the admin interface of the one proxy that start starts.
const admin = "127.3.0.1:15000"

// proxy is an Envoy with its agent.
type proxy struct {
	name, kind, namespace, account, ip string
	labels                             map[string]string
}

// start runs the agent, with env besides what every agent gets, and waits
// until it is ready. Only one runs at a time: they share their addresses.
func (p *proxy) start(t *testing.T, dir, secure string, env ...string) (stop func()) {
	t.Helper()
	return p.startAt(t, "127.3.0.1", dir, secure, env...)
}

// startAt is start with an address of its own.
func (p *proxy) startAt(t *testing.T, address, dir, secure string, env ...string) (stop func()) {
	t.Helper()
	labels, err := json.Marshal(p.labels)
	if err != nil {
		t.Fatal(err)
	}
	token := filepath.Join(dir, p.name+".token")
	mustRun(t, "token", "create", "--issuer", filepath.Join(dir, "issuer"), "--service-account", p.namespace+"/"+p.account, "--out", token)
	work := filepath.Join(dir, p.name)
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	stop = background(t, filepath.Join(dir, p.name+".log"), work, append([]string{
		"POD_NAME=" + p.name, "POD_NAMESPACE=" + p.namespace, "SERVICE_ACCOUNT=" + p.account, "INSTANCE_IP=" + p.ip,
		"CA_ADDR=" + secure, `PROXY_CONFIG={"discoveryAddress":"` + secure + `","concurrency":1,"terminationDrainDuration":"0s","drainDuration":"1s"}`,
		"ISTIO_META_CLUSTER_ID=cluster1", "ISTIO_META_NETWORK=network1", "ISTIO_METAJSON_LABELS=" + string(labels),
	}, env...), "agent", "--type", p.kind, "--envoy", envoy.Path(t), "--bind-address", address,
		"--root-ca", filepath.Join(dir, "ca", "cluster1", "root-cert.pem"), "--token", token)
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	eventually(t, "the proxy is ready", func() error {
		resp, err := client.Get("http://" + address + ":15020/healthz/ready")
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
	return stop
}

// controlPlane runs meshctl serve as cluster1 of a mesh of two directories,
// with a CA and a token issuer in dir, and returns its two xDS addresses.
func controlPlane(t *testing.T, dir, mesh string, flags ...string) (plain, secure string) {
	t.Helper()
	makeAuthorities(t, dir)
	t.Cleanup(serveMesh(t, dir, mesh, flags...))
	return plainXDS, secureXDS
}

// makeAuthorities makes the CA and the token issuer of a control plane in dir.
func makeAuthorities(t *testing.T, dir string) {
	t.Helper()
	mustRun(t, "certs", "root-ca", "--out", filepath.Join(dir, "root"))
	mustRun(t, "certs", "intermediate-ca", "--root", filepath.Join(dir, "root"), "--out", filepath.Join(dir, "ca"), "cluster1")
	mustRun(t, "token", "issuer", "--out", filepath.Join(dir, "issuer"))
}

// Addresses of the control plane that serveMesh starts.
const plainXDS, secureXDS = "127.3.0.2:15010", "127.3.0.2:15012"

// serveMesh runs meshctl serve as cluster1 of a mesh of two directories, with the CA and the
// issuer in dir, until stop is called.
func serveMesh(t *testing.T, dir, mesh string, flags ...string) (stop func()) {
	t.Helper()
	return serveMeshAt(t, secureXDS, dir, mesh, flags...)
}

// serveMeshAt is serveMesh with another address for proxies with certificates.
func serveMeshAt(t *testing.T, secure, dir, mesh string, flags ...string) (stop func()) {
	t.Helper()
	stop = background(t, filepath.Join(dir, "serve.log"), dir, nil, append([]string{
		"serve", "--cluster-id", "cluster1",
		"--config-dir", absolute(t, filepath.Join(mesh, "cluster1")), "--remote-dir", "cluster2=" + absolute(t, filepath.Join(mesh, "cluster2")),
		"--ca-dir", filepath.Join(dir, "ca", "cluster1"), "--token-issuer", "cluster1=" + filepath.Join(dir, "issuer"),
		"--grpc-addr", plainXDS, "--secure-grpc-addr", secure, "--http-addr", "127.3.0.2:8080", "--monitoring-addr", "127.3.0.2:15014",
	}, flags...)...)
	eventually(t, "the control plane listens", func() error {
		conn, err := net.Dial("tcp", secure)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	return stop
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// mustRun runs a meshctl command to its end.
func mustRun(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(meshctl, args...).CombinedOutput(); err != nil {
		t.Fatalf("meshctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// background runs a meshctl command until the returned function is called;
// its log is shown when the test fails.
func background(t *testing.T, log, work string, env []string, args ...string) (stop func()) {
	t.Helper()
	return backgroundAs(t, nil, log, work, env, args...)
}

// backgroundAs is background with attributes of the process.
func backgroundAs(t *testing.T, attributes *syscall.SysProcAttr, log, work string, env []string, args ...string) (stop func()) {
	t.Helper()
	cmd := exec.Command(meshctl, args...)
	cmd.SysProcAttr = attributes
	return backgroundCommand(t, cmd, log, work, env)
}

// backgroundCommand is background for any command.
func backgroundCommand(t *testing.T, cmd *exec.Cmd, log, work string, env []string) (stop func()) {
	t.Helper()
	// Envoy may append to it, too.
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.TrimSuffix(filepath.Base(log), ".log")
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, work
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + work}, env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("%s ended by itself: %v", name, err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = out.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log)
			t.Logf("log of %s:\n%s", name, text)
		}
	}
}

// answers serves HTTP with one answer at an address and port until the test ends.
func answers(t *testing.T, at, answer string) {
	t.Helper()
	serves(t, at, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) })
}

// serves serves HTTP at an address and port until the test ends.
func serves(t *testing.T, at string, handler http.HandlerFunc) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	servesOn(t, l, handler)
}

// servesOn is serves on a listener.
func servesOn(t *testing.T, l net.Listener, handler http.HandlerFunc) {
	t.Helper()
	server := &http.Server{ReadHeaderTimeout: deadline, Handler: handler}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("server at %s: %v", l.Addr(), err)
		}
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-done
	})
}
