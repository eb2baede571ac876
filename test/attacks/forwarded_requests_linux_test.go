package attacks

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/harness"
)

// Addresses of the shared gateway with its agent, and of the control plane. Nothing else on the
// machine listens there.
const (
	gatewayAddress     = "127.79.0.1"
	sharedControlPlane = "127.79.0.2"
)

// loopbackMesh is a shared gateway and the objects of a tenant, whose name server answers with the
// address of the gateway itself: the hosts file of the gateway stands for it.
const loopbackMesh = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: shared, namespace: edge}
spec:
  selector: {istio: ingress}
  servers:
  - {port: {number: 8880, name: http, protocol: HTTP}, hosts: ["*"]}
  - {port: {number: 9000, name: tcp-admin, protocol: TCP}, hosts: ["*"]}
  - {port: {number: 9020, name: tcp-status, protocol: TCP}, hosts: ["*"]}
  - {port: {number: 9463, name: tcp-sts, protocol: TCP}, hosts: ["*"]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: database, namespace: tenant}
spec:
  hosts: [database.tenant.example]
  resolution: DNS
  ports:
  - {number: 15000, name: http-admin, protocol: HTTP}
  - {number: 15020, name: http-status, protocol: HTTP}
  - {number: 15463, name: http-sts, protocol: HTTP}
  - {number: 9000, name: tcp-admin, protocol: TCP, targetPort: 15000}
  - {number: 9020, name: tcp-status, protocol: TCP, targetPort: 15020}
  - {number: 9463, name: tcp-sts, protocol: TCP, targetPort: 15463}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: database, namespace: tenant}
spec:
  hosts: ["*"]
  gateways: [edge/shared]
  http:
  - {match: [{headers: {port: {exact: "15000"}}}], route: [{destination: {host: database.tenant.example, port: {number: 15000}}}]}
  - {match: [{headers: {port: {exact: "15463"}}}], route: [{destination: {host: database.tenant.example, port: {number: 15463}}}]}
  - {route: [{destination: {host: database.tenant.example, port: {number: 15020}}}]}
  tcp:
  - {match: [{port: 9000}], route: [{destination: {host: database.tenant.example, port: {number: 9000}}}]}
  - {match: [{port: 9020}], route: [{destination: {host: database.tenant.example, port: {number: 9020}}}]}
  - {match: [{port: 9463}], route: [{destination: {host: database.tenant.example, port: {number: 9463}}}]}
`

// TestForwardedRequests: a route that leads the shared gateway to itself, by a name that resolves to
// its loopback address, gives callers from outside neither its admin interface nor what its agent
// does for local processes, over HTTP and as bytes over TCP. Local processes still have both.
func TestForwardedRequests(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: requests that a gateway forwards to itself, because a hosts file of its own needs root")
	}
	dir := harness.ShortDir(t)
	startSharedControlPlane(t, dir, loopbackMesh)
	log, ended := startSharedGateway(t, dir, "")
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()

	// Readiness is for everybody, so it shows that the routes lead to the agent.
	for _, way := range []struct {
		over string
		send func(port uint16, method, path, body string) string
	}{{"TCP", overTCP}, {"HTTP", overHTTP(client)}} {
		over, send := way.over, way.send
		eventually(t, "the route over "+over+" leads to the agent", func() error {
			if got := send(15020, "GET", "/healthz/ready", ""); !strings.HasPrefix(got, "200 ") {
				return errors.New(got)
			}
			return nil
		})
		for _, tc := range []struct {
			port                     uint16
			method, path, body, want string
		}{
			{15000, "GET", "/config_dump", "", "403 Only requests that do not come through the proxy are allowed"},
			{15000, "GET", "/", "", "403 Only requests"},
			{15000, "POST", "/logging?level=trace", "", "403 Only requests"},
			{15020, "GET", "/debug/pprof/goroutine?debug=1", "", "403 Only requests"},
			{15020, "GET", "/app-lifecycle/web/prestopz", "", "403 Only requests"},
			{15020, "GET", "/app-health/web/readyz", "", "403 Only requests"},
			{15020, "POST", "/drain", "", "403 Only requests"},
			{15020, "POST", "/quitquitquit", "", "403 Only requests"},
			{15000, "POST", "/quitquitquit", "", "403 Only requests"},
		} {
			if got := send(tc.port, tc.method, tc.path, tc.body); !strings.HasPrefix(got, tc.want) {
				t.Errorf("over %s: %s %s of port %d: %.300q, want %q", over, tc.method, tc.path, tc.port, got, tc.want)
			}
		}
		if got := send(15463, "POST", "/token", exchange); strings.Contains(got, "issued-for-the-workload") || strings.HasPrefix(got, "200 ") {
			t.Errorf("over %s: the exchange of tokens answers %q", over, got)
		}
	}
	if text := log(); !strings.Contains(text, "refused a request that the proxy forwarded") {
		t.Error("the log of the agent does not name the refused requests")
	}
	leaveAtOnce(t)
	localProcesses(t, client)
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("after /quitquitquit of a local process the agent ended with %v", err)
		}
	case <-time.After(deadline):
		t.Error("/quitquitquit of a local process does not end the agent")
	}
}

var exchange = url.Values{
	"grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"}, "subject_token": {"any"},
	"subject_token_type": {"urn:ietf:params:oauth:token-type:jwt"},
}.Encode()

// overHTTP returns a function that sends a request through a route for HTTP to a port of the gateway
// itself, and returns status and body of the response.
func overHTTP(client *http.Client) func(port uint16, method, path, body string) string {
	return func(port uint16, method, path, body string) string {
		req, err := http.NewRequest(method, "http://"+gatewayAddress+":8880"+path, strings.NewReader(body))
		if err != nil {
			return err.Error()
		}
		req.Host = "localhost"
		req.Header.Set("Port", fmt.Sprint(port))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		return answered(client.Do(req))
	}
}

func answered(resp *http.Response, err error) string {
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, text)
}

// overTCP is overHTTP through a route for TCP, which forwards any bytes.
func overTCP(port uint16, method, path, body string) string {
	conn, err := dialShared(port)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, rawRequest(method, path, body)); err != nil {
		return err.Error()
	}
	return answered(http.ReadResponse(bufio.NewReader(conn), nil))
}

func dialShared(port uint16) (net.Conn, error) {
	conn, err := net.Dial("tcp", fmt.Sprintf("%s:9%03d", gatewayAddress, port%1000))
	if err == nil {
		err = conn.SetDeadline(time.Now().Add(deadline))
	}
	return conn, err
}

func rawRequest(method, path, body string) string {
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n%s",
		method, path, len(body), body)
}

// leaveAtOnce sends requests that need no answer, and closes or resets their connections at once,
// so that Envoy has often closed its own before the agent reads the request.
func leaveAtOnce(t *testing.T) {
	t.Helper()
	for i := range 300 {
		for port, path := range map[uint16]string{15020: "/quitquitquit", 15000: "/quitquitquit"} {
			conn, err := dialShared(port)
			if err == nil {
				_, err = io.WriteString(conn, rawRequest("POST", path, ""))
			}
			if tcp, ok := conn.(*net.TCPConn); ok && i%2 == 1 {
				err = errors.Join(err, tcp.SetLinger(0))
			}
			if err = errors.Join(err, conn.Close()); err != nil {
				t.Fatalf("request %d to port %d: %v", i, port, err)
			}
		}
	}
}

// localProcesses sends the requests of local processes, the last of which ends the agent.
func localProcesses(t *testing.T, client *http.Client) {
	t.Helper()
	for _, tc := range []struct {
		port                     uint16
		method, path, body, want string
	}{
		{15020, "GET", "/healthz/ready", "", ""},
		{15021, "GET", "/healthz/ready", "", ""},
		{15090, "GET", "/stats/prometheus", "", "envoy_server_live"},
		{15000, "GET", "/config_dump", "", "database.tenant.example"},
		{15000, "POST", "/logging?level=warning", "", "active loggers"},
		{15020, "GET", "/debug/pprof/goroutine?debug=1", "", "goroutine profile"},
		{15463, "POST", "/token", exchange, "issued-for-the-workload"},
		{15020, "POST", "/drain", "", "OK"},
	} {
		req, err := http.NewRequest(tc.method, fmt.Sprintf("http://%s:%d%s", gatewayAddress, tc.port, tc.path), strings.NewReader(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if got := answered(client.Do(req)); !strings.HasPrefix(got, "200 ") || !strings.Contains(got, tc.want) {
			t.Errorf("a local process: %s %s of port %d: %.300q, want %q", tc.method, tc.path, tc.port, got, tc.want)
		}
	}
	out, err := exec.CommandContext(t.Context(), meshctl, "proxy-config", "clusters", "--admin", gatewayAddress+":15000").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "database.tenant.example") {
		t.Errorf("meshctl proxy-config: %v\n%s", err, out)
	}
	out, err = exec.CommandContext(t.Context(), meshctl, "agent", "request", "--bind-address", gatewayAddress, "--debug-port", "15020", "POST", "quitquitquit").CombinedOutput()
	if err != nil {
		t.Errorf("meshctl agent request: %v\n%s", err, out)
	}
}

// startSharedControlPlane starts a control plane with objects.
func startSharedControlPlane(t *testing.T, dir, objects string) {
	t.Helper()
	mesh := filepath.Join(dir, "mesh")
	if err := os.Mkdir(mesh, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mesh, "mesh.yaml"), []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"certs", "root-ca", "--out", filepath.Join(dir, "root")},
		{"certs", "intermediate-ca", "--root", filepath.Join(dir, "root"), "--out", filepath.Join(dir, "ca"), "cluster1"},
		{"token", "issuer", "--out", filepath.Join(dir, "issuer")},
		{"token", "create", "--issuer", filepath.Join(dir, "issuer"), "--service-account", "edge/ingress", "--out", filepath.Join(dir, "token")},
	} {
		if out, err := exec.CommandContext(t.Context(), meshctl, args...).CombinedOutput(); err != nil {
			t.Fatalf("meshctl %v: %v\n%s", args, err, out)
		}
	}
	_, ended := startProgram(t, dir, "serve", nil, meshctl, "serve", "--cluster-id", "cluster1", "--config-dir", mesh,
		"--ca-dir", filepath.Join(dir, "ca", "cluster1"), "--token-issuer", "cluster1="+filepath.Join(dir, "issuer"),
		"--grpc-addr", sharedControlPlane+":15010", "--secure-grpc-addr", sharedControlPlane+":15012",
		"--http-addr", sharedControlPlane+":8080", "--monitoring-addr", sharedControlPlane+":15014")
	eventually(t, "the control plane listens", func() error {
		select {
		case err := <-ended:
			t.Fatalf("the control plane ended: %v", err)
		default:
		}
		conn, err := net.Dial("tcp", sharedControlPlane+":15012")
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// startSharedGateway starts the agent of the gateway, whose hosts file has the name of the tenant,
// and returns its log and its end. group takes its process into a cgroup, unless it is empty.
func startSharedGateway(t *testing.T, dir, group string) (log func() string, ended <-chan error) {
	t.Helper()
	hosts, token := filepath.Join(dir, "hosts"), filepath.Join(dir, "sts-token")
	for file, text := range map[string]string{hosts: gatewayAddress + " database.tenant.example\n", token: "issued-for-the-workload"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log, ended = startProgram(t, dir, "agent", []string{
		"POD_NAME=ingress", "POD_NAMESPACE=edge", "SERVICE_ACCOUNT=ingress", "INSTANCE_IP=10.11.0.9", "CA_ADDR=" + sharedControlPlane + ":15012",
		`PROXY_CONFIG={"discoveryAddress":"` + sharedControlPlane + `:15012","concurrency":1,"terminationDrainDuration":"0s"}`,
		"ISTIO_META_CLUSTER_ID=cluster1", `ISTIO_METAJSON_LABELS={"istio":"ingress"}`,
		`ISTIO_KUBE_APP_PROBERS={"/app-health/web/readyz":{"httpGet":{"host":"` + sharedControlPlane + `","path":"/","port":1}},"/app-lifecycle/web/prestopz":{"httpGet":{"host":"` + sharedControlPlane + `","path":"/","port":1}}}`,
		"MEMORY_GROUP=" + group,
	}, "sh", "-c", `mount --make-rprivate / && mount --bind "$0" /etc/hosts && if [ "$MEMORY_GROUP" ]; then echo $$ >"$MEMORY_GROUP"; fi && exec "$@"`, hosts,
		meshctl, "agent", "--type", "router", "--envoy", envoy.Path(t), "--bind-address", gatewayAddress, "--profiling",
		"--sts-port", "15463", "--sts-file", token,
		"--root-ca", filepath.Join(dir, "ca", "cluster1", "root-cert.pem"), "--token", filepath.Join(dir, "token"))
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	eventually(t, "the gateway is ready", func() error {
		select {
		case err := <-ended:
			t.Fatalf("the agent ended: %v", err)
		default:
		}
		if got := answered(client.Get("http://" + gatewayAddress + ":15021/healthz/ready")); !strings.HasPrefix(got, "200 ") {
			return errors.New(got)
		}
		return nil
	})
	return log, ended
}

// startProgram runs a program in a mount namespace of its own until the test ends. ended gets its
// error if it ends before.
func startProgram(t *testing.T, dir, name string, env []string, program string, args ...string) (log func() string, ended <-chan error) {
	t.Helper()
	work := filepath.Join(dir, name)
	if err := os.Mkdir(work, 0o700); err != nil {
		t.Fatal(err)
	}
	out := &harness.LogBuffer{}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = work, out, out
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + work}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done, all := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(all)
		done <- cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		<-all
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, out.String())
		}
	})
	return out.String, done
}
