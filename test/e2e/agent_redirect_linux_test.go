package e2e

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/harness"
)

// Users of the processes in a pod.
const (
	proxyUser       = "1337"
	applicationUser = "2000"
)

// node is the network namespace of the test, to which the pods are connected. It has the
// control plane, a name server and the world outside of the mesh.
type node struct {
	dir                 string
	bridge, outside     string // addresses
	bridge6, outside6   string
	discovery           string
	stopControlPlane    func()
	controlPlaneStopped bool
}

// startNode turns the test's network namespace into a node whose control plane has the
// objects.
func startNode(t *testing.T, objects string) *node {
	t.Helper()
	n := &node{
		dir: harness.ShortDir(t), bridge: "10.11.0.1", bridge6: "fd00:a::1", outside: "192.0.2.80", outside6: "2001:db8::80",
		discovery: "10.11.0.1:15012",
	}
	// The users of the pods read it.
	for _, dir := range []string{n.dir, filepath.Dir(meshctl)} {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range []string{
		"link set lo up", "link add br0 type bridge", "link set br0 up",
		"address add " + n.bridge + "/24 dev br0", "address add " + n.bridge6 + "/64 dev br0 nodad",
		"address add " + n.outside + "/32 dev lo", "address add " + n.outside6 + "/128 dev lo nodad",
	} {
		runTool(t, "", "ip", strings.Fields(line)...)
	}
	n.nameServer(t)
	mesh := filepath.Join(n.dir, "mesh")
	for _, cluster := range []string{"cluster1", "cluster2"} {
		if err := os.MkdirAll(filepath.Join(mesh, cluster), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(mesh, "cluster1", "mesh.yaml"), []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	makeAuthorities(t, n.dir)
	stop := serveMeshAt(t, n.discovery, n.dir, mesh)
	n.stopControlPlane = func() {
		if !n.controlPlaneStopped {
			n.controlPlaneStopped = true
			stop()
		}
	}
	t.Cleanup(n.stopControlPlane)
	return n
}

// nameServer runs the name server of the pods, which knows one name.
func (n *node) nameServer(t *testing.T) {
	t.Helper()
	at := net.JoinHostPort(n.bridge, "53")
	udp, err := net.ListenPacket("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	for _, server := range []*dns.Server{{PacketConn: udp}, {Listener: tcp}} {
		server.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			r := new(dns.Msg).SetReply(q)
			header := dns.RR_Header{Name: q.Question[0].Name, Rrtype: q.Question[0].Qtype, Class: dns.ClassINET}
			switch {
			case header.Name != "www.outside.test.":
				r.Rcode = dns.RcodeNameError
			case header.Rrtype == dns.TypeA:
				r.Answer = append(r.Answer, &dns.A{Hdr: header, A: net.ParseIP(n.outside)})
			case header.Rrtype == dns.TypeAAAA:
				r.Answer = append(r.Answer, &dns.AAAA{Hdr: header, AAAA: net.ParseIP(n.outside6)})
			}
			_ = w.WriteMsg(r)
		})
		done := make(chan error, 1)
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		go func() { done <- server.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			if err := errors.Join(server.Shutdown(), <-done); err != nil {
				t.Error(err)
			}
		})
	}
}

// agentPod is a pod in network and mount namespaces of its own, with a proxy.
type agentPod struct {
	node   *node
	name   string
	pid    string // of the process that holds the namespaces
	v4, v6 string
	work   string
	mode   string // of interception
}

// startPod starts a pod of the namespace shop, whose connections are redirected to its proxy.
func (n *node) startPod(t *testing.T, name, v4, v6 string) *agentPod {
	t.Helper()
	return n.startPodIn(t, "REDIRECT", name, v4, v6)
}

// startPodIn starts a pod with an interception mode.
func (n *node) startPodIn(t *testing.T, mode, name, v4, v6 string) *agentPod {
	t.Helper()
	p := n.newPod(t, mode, name, v4, v6)
	p.startProxy(t)
	return p
}

// newPod makes the namespaces of a pod and redirects its connections to a proxy that does not run yet.
func (n *node) newPod(t *testing.T, mode, name, v4, v6 string) *agentPod {
	t.Helper()
	p := n.newMachine(t, mode, name, v4, v6)
	p.run(t, "0", meshctl, "agent", "redirect", "istio-iptables", "-p", "15001", "-z", "15006", "-u", proxyUser, "-m", mode,
		"-i", "*", "-x", "", "-b", "*", "-d", "15090,15021,15020", "--log_output_level=default:info", "--redirect-dns")
	return p
}

// newMachine makes the namespaces of a pod or of a virtual machine. The name of the control plane is
// in its /etc/hosts.
func (n *node) newMachine(t *testing.T, mode, name, v4, v6 string) *agentPod {
	t.Helper()
	p := &agentPod{node: n, name: name, v4: v4, v6: v6, work: filepath.Join(n.dir, name), mode: mode}
	conf, hosts := filepath.Join(n.dir, name+".conf"), filepath.Join(n.dir, name+".hosts")
	text := "nameserver " + n.bridge + "\nsearch shop.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
	if err := errors.Join(
		os.WriteFile(conf, []byte(text), 0o644),
		os.WriteFile(hosts, []byte("127.0.0.1 localhost\n"+n.bridge+" istiod.istio-system.svc\n"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	holder := exec.Command("sh", "-c", `mount --bind "$1" /etc/resolv.conf && mount --bind "$2" /etc/hosts && echo && exec cat`, "sh", conf, hosts)
	holder.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
	held, err := holder.StdinPipe() // it ends with the test
	if err != nil {
		t.Fatal(err)
	}
	started, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(held.Close(), holder.Wait()); err != nil {
			t.Error(err)
		}
	})
	if _, err := started.Read(make([]byte, 1)); err != nil {
		t.Fatalf("no namespaces: %v", err)
	}
	p.pid = strconv.Itoa(holder.Process.Pid)
	runTool(t, "", "ip", "link", "add", "v-"+name, "type", "veth", "peer", "name", "eth0", "netns", p.pid)
	runTool(t, "", "ip", "link", "set", "v-"+name, "master", "br0", "up")
	for _, line := range []string{
		"link set lo up", "link set eth0 up", "address add " + v4 + "/24 dev eth0", "address add " + v6 + "/64 dev eth0 nodad",
		"route add default via " + n.bridge, "-6 route add default via " + n.bridge6,
	} {
		p.run(t, "0", append([]string{"ip"}, strings.Fields(line)...)...)
	}
	return p
}

// command returns a command in the namespaces of the pod, as a user and its group, or as user:group.
func (p *agentPod) command(user string, args ...string) *exec.Cmd {
	user, group, _ := strings.Cut(user, ":")
	return exec.Command("nsenter", append([]string{
		"--target", p.pid, "--net", "--mount", "--", "setpriv", "--reuid", user, "--regid", cmp.Or(group, user), "--clear-groups", "--",
	}, args...)...)
}

// run runs a command of the pod to its end, and returns its output.
func (p *agentPod) run(t *testing.T, user string, args ...string) string {
	t.Helper()
	out, err := p.command(user, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s: %s: %v\n%s", p.name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (p *agentPod) startProxy(t *testing.T) {
	t.Helper()
	token, roots := filepath.Join(p.node.dir, p.name+".token"), filepath.Join(p.node.dir, p.name+".pem")
	p.writeCredentials(t, token, roots)
	if err := os.Mkdir(p.work, 0o700); err != nil {
		t.Fatal(err)
	}
	user := proxyUser
	if p.mode == "TPROXY" {
		user = "0:" + proxyUser
	} else {
		id, _ := strconv.Atoi(user)
		for _, path := range []string{p.work, token} {
			if err := os.Chown(path, id, id); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Cleanup(backgroundCommand(t, p.command(user, meshctl, "agent", "--envoy", envoy.Path(t), "--root-ca", roots, "--token", token, "--config-path", p.work),
		filepath.Join(p.node.dir, p.name+".log"), p.work, []string{
			"POD_NAME=" + p.name, "POD_NAMESPACE=shop", "SERVICE_ACCOUNT=" + p.name, "INSTANCE_IP=" + p.v4 + "," + p.v6,
			"CA_ADDR=" + p.node.discovery, `PROXY_CONFIG={"discoveryAddress":"` + p.node.discovery + `","concurrency":1,"terminationDrainDuration":"0s"}`,
			"ISTIO_META_CLUSTER_ID=cluster1", "ISTIO_META_DNS_CAPTURE=true", "ISTIO_META_INTERCEPTION_MODE=" + p.mode, `ISTIO_METAJSON_LABELS={"app":"` + p.name + `"}`,
		}))
	p.waitReady(t)
}

// writeCredentials writes the token of the pod and the roots of the mesh.
func (p *agentPod) writeCredentials(t *testing.T, token, roots string) {
	t.Helper()
	mustRun(t, "token", "create", "--issuer", filepath.Join(p.node.dir, "issuer"), "--service-account", "shop/"+p.name, "--out", token)
	data, err := os.ReadFile(filepath.Join(p.node.dir, "ca", "cluster1", "root-cert.pem"))
	if err == nil {
		err = os.WriteFile(roots, data, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (p *agentPod) waitReady(t *testing.T) {
	t.Helper()
	eventually(t, "the proxy of "+p.name+" is ready", func() error {
		_, _, err := get("http://" + net.JoinHostPort(p.v4, "15021") + "/healthz/ready")
		return err
	})
}

// inside calls f in the network namespace of the pod, as a user.
func (p *agentPod) inside(t *testing.T, user int, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		ns, err := os.Open("/proc/" + p.pid + "/ns/net")
		if err == nil {
			defer ns.Close()
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		// Of this thread alone, unlike syscall.Setuid.
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETUID, uintptr(user), 0, 0); err == nil && errno != 0 {
			err = errno
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// listen returns a listener in the network namespace of the pod.
func (p *agentPod) listen(t *testing.T, port string) (l net.Listener) {
	t.Helper()
	p.inside(t, 0, func() (err error) {
		l, err = net.Listen("tcp", ":"+port)
		return err
	})
	return l
}

// ask returns the code of the answer to a query that a user of the pod sends from a port.
func (p *agentPod) ask(t *testing.T, user, port int, name string) (code string) {
	t.Helper()
	p.inside(t, user, func() error {
		client := dns.Client{Timeout: deadline, Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{Port: port}}}
		r, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), net.JoinHostPort(p.node.bridge, "53"))
		if err == nil {
			code = dns.RcodeToString[r.Rcode]
		}
		return err
	})
	return code
}

// curl returns the answer to a GET request that an application of the pod sends with libc's
// resolver.
func (p *agentPod) curl(args ...string) (string, error) {
	out, err := p.command(applicationUser, append([]string{"curl", "-sS", "--fail-with-body", "--max-time", "60"}, args...)...).CombinedOutput()
	return string(out), err
}

// envTarget makes the test binary a gRPC client of a target.
const envTarget = "E2E_GRPC_TARGET"

// callHealth asks a gRPC server for its health and returns the exit code.
func callHealth(target string) int {
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), deadline)
		defer cancel()
		var r *healthv1.HealthCheckResponse
		r, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
		fmt.Print(r.GetStatus())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// redirectedMesh is a mesh of the pods "client" and "server" with strict mTLS.
const redirectedMesh = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIPs: ["10.96.0.80", "fd00:96::80"]
  ipFamilies: [IPv4, IPv6]
  selector: {app: server}
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: tcp, port: 9000}
  - {name: grpc, port: 7070}
---
apiVersion: v1
kind: Service
metadata: {name: peers, namespace: shop}
spec:
  clusterIP: None
  selector: {app: server}
  ports: [{name: http, port: 8081}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-4, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: tcp, port: 9000}, {name: grpc, port: 7070}]
endpoints: [{addresses: ["10.11.0.5"], targetRef: {kind: Pod, name: server, namespace: shop}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-6, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv6
ports: [{name: http, port: 8080}, {name: tcp, port: 9000}, {name: grpc, port: 7070}]
endpoints: [{addresses: ["fd00:a::5"], targetRef: {kind: Pod, name: server, namespace: shop}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: peers-4, namespace: shop, labels: {kubernetes.io/service-name: peers}}
addressType: IPv4
ports: [{name: http, port: 8081}]
endpoints: [{addresses: ["10.11.0.5"], hostname: server-0, targetRef: {kind: Pod, name: server, namespace: shop}}]
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: shop, labels: {app: server, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: server}
status: {podIPs: [{ip: "10.11.0.5"}, {ip: "fd00:a::5"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {app: client, security.istio.io/tlsMode: istio}}
spec: {serviceAccountName: client}
status: {podIPs: [{ip: "10.11.0.77"}, {ip: "fd00:a::77"}]}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: api, namespace: shop}
spec:
  hosts: [api.example.com]
  ports: [{name: tcp, number: 4000, protocol: TCP, targetPort: 8443}]
  resolution: STATIC
  endpoints: [{address: 192.0.2.80}]
`

// TestAgentRedirects runs unmodified clients and servers in pods whose connections and DNS
// queries meshctl agent redirect leads through real Envoys.
func TestAgentRedirects(t *testing.T) {
	if !inPod(t) {
		return
	}
	n := startNode(t, redirectedMesh)
	server := n.startPod(t, "server", "10.11.0.5", "fd00:a::5")
	client := n.startPod(t, "client", "10.11.0.77", "fd00:a::77")

	caller := func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "server, called by "+r.Header.Get("X-Forwarded-Client-Cert"))
	}
	for _, port := range []string{"8080", "8081"} {
		servesOn(t, server.listen(t, port), caller)
	}
	servesOn(t, server.listen(t, "9000"), func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "server over TCP") })
	grpcServer := grpc.NewServer()
	healthv1.RegisterHealthServer(grpcServer, health.NewServer())
	go func() { _ = grpcServer.Serve(server.listen(t, "7070")) }()
	t.Cleanup(grpcServer.Stop)
	for _, ip := range []string{n.outside, n.outside6} {
		answers(t, net.JoinHostPort(ip, "80"), "outside of the mesh")
	}
	answers(t, n.outside+":8443", "the external service")

	const identity = "URI=spiffe://cluster.local/ns/shop/sa/client"
	requests := func(when string) {
		for _, tc := range []struct{ args, want string }{
			{"-4 http://web/", identity},
			{"-6 http://web/", identity},
			{"http://web.shop/", identity},
			{"http://web.shop.svc.cluster.local/", identity},
			{"-4 http://web:9000/", "server over TCP"},
			{"-6 http://web:9000/", "server over TCP"},
			{"http://peers:8081/", identity},
			{"http://server-0.peers:8081/", identity},
			{"-4 http://api.example.com:4000/", "the external service"},
			{"-6 http://api.example.com:4000/", "the external service"},
			{"-4 http://www.outside.test/", "outside of the mesh"},
			{"-6 http://www.outside.test/", "outside of the mesh"},
		} {
			if got, err := client.curl(strings.Fields(tc.args)...); err != nil || !strings.Contains(got, tc.want) {
				t.Errorf("%s: curl %s: %v, %q, want %q", when, tc.args, err, got, tc.want)
			}
		}
	}
	requests("with the control plane")

	call := client.command("0", os.Args[0])
	call.Env = append(os.Environ(), envTarget+"=web:7070")
	if out, err := call.CombinedOutput(); err != nil || string(out) != "SERVING" {
		t.Errorf("gRPC: %v, %s", err, out)
	}
	if got := client.run(t, applicationUser, "getent", "ahostsv4", "api.example.com"); !strings.HasPrefix(got, "240.240.") {
		t.Errorf("the address of the ServiceEntry: %s", got)
	}
	if out, err := client.curl("http://none.shop/"); err == nil || !strings.Contains(out, "not resolve") {
		t.Errorf("a name that nobody knows: %v, %s", err, out)
	}
	// The proxy's own queries reach the name server, also from a port of which a query was
	// redirected before.
	const port = 40053
	for _, user := range []int{2000, 1337, 2000, 1337} {
		got := client.ask(t, user, port, "web.shop.svc.cluster.local.")
		if want := map[int]string{2000: "NOERROR", 1337: "NXDOMAIN"}[user]; got != want {
			t.Errorf("a query of user %d: %s, want %s", user, got, want)
		}
	}
	// The kubelet's probes come without mTLS, the rest does not.
	for _, address := range []string{"10.11.0.5:15020", "10.11.0.5:15021", "[fd00:a::5]:15021"} {
		if _, _, err := get("http://" + address + "/healthz/ready"); err != nil {
			t.Errorf("a probe: %v", err)
		}
	}
	for _, address := range []string{"10.11.0.5:8080", "[fd00:a::5]:8080"} {
		if body, _, err := get("http://" + address); err == nil {
			t.Errorf("strict mTLS let a request without it pass to %s: %s", address, body)
		}
	}

	n.stopControlPlane()
	requests("without the control plane")

	client.run(t, "0", meshctl, "agent", "redirect", "--undo")
	if out, err := client.curl("http://10.11.0.5:8080/"); err == nil {
		t.Errorf("without redirection a request passed strict mTLS: %s", out)
	}
	if rules := client.run(t, "0", "nft", "list", "ruleset"); rules != "" {
		t.Errorf("rules are left:\n%s", rules)
	}
}

// permissivePort lets requests without mTLS pass to one port of the server.
const permissivePort = `---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: server, namespace: shop}
spec: {selector: {matchLabels: {app: server}}, portLevelMtls: {8081: {mode: PERMISSIVE}}}
`

// TestTransparentRedirection: with interception mode TPROXY an application sees the addresses of
// its clients: of a pod with mutual TLS, of a client outside of the mesh, and of its own pod, for HTTP
// and TCP and over both IP versions.
func TestTransparentRedirection(t *testing.T) {
	if !inPod(t) {
		return
	}
	n := startNode(t, redirectedMesh+permissivePort)
	server := n.startPodIn(t, "TPROXY", "server", "10.11.0.5", "fd00:a::5")
	client := n.startPod(t, "client", "10.11.0.77", "fd00:a::77")
	for _, port := range []string{"8080", "8081", "9000"} {
		servesOn(t, server.listen(t, port), func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, r.RemoteAddr+" "+r.Header.Get("X-Forwarded-Client-Cert"))
		})
	}
	answers(t, net.JoinHostPort(n.outside, "80"), "outside of the mesh")

	const identity = "URI=spiffe://cluster.local/ns/shop/sa/client"
	for _, tc := range []struct {
		from       *agentPod
		args       string
		want, more string
	}{
		{client, "http://peers:8081/", "10.11.0.77:", identity},
		{server, "http://10.11.0.5:8080/", "10.11.0.5:", ""},
		{server, "http://127.0.0.1:8080/", "127.0.0.1:", ""},
		{server, "http://www.outside.test/", "outside of the mesh", ""},
	} {
		if got, err := tc.from.curl(strings.Fields(tc.args)...); err != nil || !strings.HasPrefix(got, tc.want) || !strings.Contains(got, tc.more) {
			t.Errorf("%s: curl %s: %v, %q, want %s and %s", tc.from.name, tc.args, err, got, tc.want, tc.more)
		}
	}
	for address, want := range map[string]string{"10.11.0.5:8081": n.bridge + ":", "[fd00:a::5]:8081": "[" + n.bridge6 + "]:"} {
		if got, _, err := get("http://" + address); err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("a client outside of the mesh: %v, %q, want %s", err, got, want)
		}
	}
	if body, _, err := get("http://10.11.0.5:8080"); err == nil {
		t.Errorf("strict mTLS let a request without it pass: %s", body)
	}
	for _, address := range []string{"10.11.0.5:15020", "[fd00:a::5]:15021"} {
		if _, _, err := get("http://" + address + "/healthz/ready"); err != nil {
			t.Errorf("a probe: %v", err)
		}
	}
	// The proxies choose between the IP versions of the server. Calls of the server to itself pass
	// through its proxy twice.
	const calls = 200
	for _, tc := range []struct {
		from                *agentPod
		url, v4, v6, caller string
	}{
		{client, "http://web/", "10.11.0.77", "[fd00:a::77]", "/sa/client"},
		{client, "http://web:9000/", "10.11.0.77", "[fd00:a::77]", ""},
		{server, "http://web/", "10.11.0.5", "[fd00:a::5]", "/sa/server"},
	} {
		out, err := tc.from.curl("--parallel", "-w", "\n", tc.url+fmt.Sprintf("?[1-%d]", calls))
		v4, v6 := strings.Count(out, tc.v4+":"), strings.Count(out, tc.v6+":")
		if err != nil || v4+v6 != calls || v4 == 0 || v6 == 0 || tc.caller != "" && strings.Count(out, tc.caller) < calls {
			t.Errorf("%d calls of %s by %s: %v, %d of %s, %d of %s: %.2000s", calls, tc.url, tc.from.name, err, v4, tc.v4, v6, tc.v6, out)
		}
	}

	server.run(t, "0", meshctl, "agent", "redirect", "--undo")
	for _, list := range [][]string{
		{"nft", "list", "ruleset"}, {"ip", "route", "show", "table", "133"}, {"ip", "-6", "route", "show", "table", "133"},
	} {
		if got := server.run(t, "0", list...); got != "" {
			t.Errorf("%s after --undo:\n%s", list, got)
		}
	}
	for _, family := range []string{"-4", "-6"} {
		if got := server.run(t, "0", "ip", family, "rule"); strings.Contains(got, "fwmark") {
			t.Errorf("rules after --undo:\n%s", got)
		}
	}
}
