package clusters

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshctl/meshctl/internal/dial"
)

// nodeVar is set in the environment of a node's first process. Its value is the node, as JSON.
const nodeVar = "MESHCTL_TEST_NODE"

// node is the machine of a cluster: namespaces of the kernel whose first process is this
// program. When that process ends, the kernel kills all others, and mounts, the network
// and its rules go with them.
type node struct {
	Cluster string
	Dir     string // of everything that the cluster writes
	Bin     string // of the programs
	IP      string // on the bridge
	LBs     []string
	Pods    string // CIDR
	Cgroup  string // above all groups of the cluster
	Probe   bool   // only try what a node needs
	Token   string // of a member of system:masters
}

func (n *node) path(name string) string { return filepath.Join(n.Dir, name) }

// Main runs a node, if this process is the first one of a node, and does not return then.
// Programs and tests that start clusters call it first.
func Main() {
	text := os.Getenv(nodeVar)
	if text == "" {
		return
	}
	var n node
	err := json.Unmarshal([]byte(text), &n)
	switch {
	case err != nil:
	case os.Getenv(cgroupsVar) == "":
		err = n.ownCgroups()
	case n.Probe:
		if err = n.probe(); err == nil {
			os.Exit(0)
		}
	default:
		err = n.run()
	}
	fmt.Fprintln(os.Stderr, "node:", err)
	os.Exit(1)
}

// run starts the parts of the cluster, reports to descriptor 3 that they run, and
// assigns addresses to Services until the process is killed. Then it starts parts that end again.
func (n *node) run() error {
	// A terminal's Ctrl-C is for the program that started the clusters.
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP)
	ready := os.NewFile(3, "ready")
	if _, err := unix.FcntlInt(ready.Fd(), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return err
	}
	if err := os.Unsetenv(nodeVar); err != nil {
		return err
	}
	if err := n.mounts(); err != nil {
		return fmt.Errorf("mounts: %w", err)
	}
	if err := n.network(); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	if err := n.files(); err != nil {
		return err
	}
	s := &supervisor{node: n, parts: map[int]part{}}
	ctx := context.Background()
	if err := n.start(ctx, s); err != nil {
		return err
	}
	if err := errors.Join(second(ready.WriteString("ready")), ready.Close()); err != nil {
		return err
	}
	balancer, err := n.balancer()
	if err != nil {
		return err
	}
	go balancer.run(ctx)
	return s.reap()
}

func second[T any](_ T, err error) error { return err }

// mounts hides the directories in which programs of nodes write although flags name others.
func (n *node) mounts() error {
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := mountCgroups(); err != nil {
		return err
	}
	for _, dir := range []string{"/run", "/var/lib"} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	// Volumes that the kubelet mounts arrive in containers that run already.
	return unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "")
}

// network waits for the link that the starting process moves here, and configures it.
func (n *node) network() error {
	for deadline := time.Now().Add(startTimeout); ; time.Sleep(pollInterval) {
		if _, err := net.InterfaceByName("eth0"); err == nil {
			break
		} else if time.Now().After(deadline) {
			return err
		}
	}
	if err := unix.Sethostname([]byte(n.Cluster + "-node")); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600); err != nil {
		return err
	}
	commands := []string{
		"link set lo up", "address add " + n.IP + "/24 dev eth0", "link set eth0 up",
		"route add " + services + " dev eth0", // kube-proxy changes the address later
	}
	for _, lb := range n.LBs {
		commands = append(commands, "address add "+lb+"/32 dev eth0")
	}
	for _, c := range commands {
		if err := runIn("", "ip", strings.Fields(c)...); err != nil {
			return err
		}
	}
	// Packets of pods leave with the address of the node: other machines know no pods.
	// Packets to the addresses of pods arrive from no other machine.
	rules := fmt.Sprintf(`table ip node {
	chain out { type nat hook postrouting priority srcnat; ip saddr %[1]s ip daddr != %[1]s masquerade; }
	chain in { type filter hook prerouting priority raw; iifname eth0 ip daddr %[1]s drop; }
}`, n.Pods)
	return runIn(rules, "nft", "-f", "-")
}

// runIn runs a program with an input until it ends.
func runIn(stdin, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// files writes the configuration of the parts.
func (n *node) files() error {
	gateway := strings.TrimSuffix(n.Pods, "0/24") + "1"
	files := map[string]string{
		"containerd.toml": fmt.Sprintf(`version = 3
root = %[1]q
state = "/run/containerd"
[grpc]
address = %[2]q
[plugins.'io.containerd.cri.v1.runtime']
# Some machines do not permit lower values than that of containerd.
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['/usr/lib/cni']
conf_dir = %[3]q
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = %[4]q
`, n.path("containerd"), n.path("containerd.sock"), n.path("cni"), sandboxImage),

		"cni/10-pods.conflist": fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{
  "type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": %q, "gateway": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`, n.Pods, gateway),

		"kubelet.yaml": fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow} # only the API server and this machine reach it
containerRuntimeEndpoint: unix://%[1]s
clusterDNS: [%[2]s]
clusterDomain: cluster.local
resolvConf: ""
cgroupDriver: cgroupfs
failCgroupV1: false
cgroupsPerQOS: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
evictionHard: {memory.available: 1Mi, nodefs.available: 1%%, nodefs.inodesFree: 1%%, imagefs.available: 1%%}
imageGCHighThresholdPercent: 100
failSwapOn: false
podLogsDir: %[3]s
volumePluginDir: %[4]s
# The default limits keep fifty pods waiting.
kubeAPIQPS: 50
kubeAPIBurst: 100
registryPullQPS: 0
serializeImagePulls: false
syncFrequency: 5s
# Tests of faults kill containers often.
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
`, n.path("containerd.sock"), dnsIP, n.path("pods.log"), n.path("plugins")),

		"kube-proxy.yaml": fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %s}
mode: nftables
clusterCIDR: %s
conntrack: {maxPerCore: 0, min: 0} # of the whole machine
`, n.path("kubeconfig"), n.Pods),
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(n.path(name)), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(n.path(name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// start starts the parts. It waits only for those without which others do not start.
func (n *node) start(ctx context.Context, s *supervisor) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	s.start("containerd", "--config", n.path("containerd.toml"))
	s.start("etcd", "--data-dir", n.path("etcd"), "--unsafe-no-fsync", "--log-level", "error")
	if err := eventually(ctx, "etcd", func() error { return reachable(ctx, "127.0.0.1:2379") }); err != nil {
		return err
	}
	s.start("kube-apiserver",
		"--etcd-servers=http://127.0.0.1:2379",
		"--bind-address", n.IP, "--advertise-address", n.IP, "--secure-port=6443",
		"--cert-dir", n.path("certs"),
		"--token-auth-file", n.path("tokens.csv"),
		"--authorization-mode=RBAC",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file", n.path("service-accounts.pem"),
		"--service-account-signing-key-file", n.path("service-accounts.pem"),
		"--service-cluster-ip-range", services,
		"--kubelet-preferred-address-types=InternalIP",
		"--allow-privileged",
		"--enable-priority-and-fairness=false",
		"--profiling=false")
	if err := eventually(ctx, "kube-apiserver", func() error { return n.ready(ctx) }); err != nil {
		return err
	}
	if err := os.WriteFile(n.path("kubeconfig"), n.kubeconfig(), 0o600); err != nil {
		return err
	}
	s.start("kube-controller-manager",
		"--kubeconfig", n.path("kubeconfig"),
		"--service-account-private-key-file", n.path("service-accounts.pem"),
		"--root-ca-file", n.path("certs/apiserver.crt"),
		"--use-service-account-credentials",
		"--leader-elect=false", "--secure-port=0", "--profiling=false",
		"--kube-api-qps=100", "--kube-api-burst=200")
	s.start("kube-scheduler", "--kubeconfig", n.path("kubeconfig"), "--leader-elect=false", "--secure-port=0", "--profiling=false")
	s.start("kube-proxy", "--config", n.path("kube-proxy.yaml"))
	s.start("kubelet",
		"--config", n.path("kubelet.yaml"),
		"--kubeconfig", n.path("kubeconfig"),
		"--root-dir", n.path("kubelet"),
		"--cert-dir", n.path("kubelet-certs"),
		"--hostname-override", n.Cluster+"-node",
		"--node-ip", n.IP,
		"--node-labels=topology.kubernetes.io/region="+n.Cluster+",topology.kubernetes.io/zone="+n.Cluster+"-a")
	return s.err
}

func reachable(ctx context.Context, addr string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// ready returns nil when the API server is ready.
func (n *node) ready(ctx context.Context) error {
	client, err := n.client()
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+n.api()+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return errors.Join(err, resp.Body.Close())
}

// client returns a client of the API server, whose certificate is its own authority.
func (n *node) client() (*http.Client, error) {
	ca, err := os.ReadFile(n.path("certs/apiserver.crt"))
	if err != nil {
		return nil, err
	}
	config, err := dial.TLSConfig(ca, n.IP)
	if err != nil {
		return nil, err
	}
	return dial.HTTPClient(requestTimeout, config), nil
}

// eventually calls a function until it returns nil or the context ends.
func eventually(ctx context.Context, what string, condition func() error) error {
	for {
		err := condition()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", what, ctx.Err(), err)
		}
	}
}

// mostRestarts is how often the parts of a node may end.
const mostRestarts = 100

// supervisor starts the parts of a node and reaps all orphans, as the first process of a
// machine does.
type supervisor struct {
	node  *node
	parts map[int]part // the started ones, by process id
	err   error
}

// part is a program of a node, such as the kubelet.
type part struct {
	name string
	args []string
}

// start starts a part with a log of its own. The first failure stays in s.err.
func (s *supervisor) start(name string, args ...string) {
	if s.err != nil {
		return
	}
	program := filepath.Join(s.node.Bin, name)
	if _, err := os.Stat(program); err != nil {
		program = filepath.Join(s.node.Bin, "../kube", name)
	}
	log, err := os.OpenFile(s.node.path(name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.err = err
		return
	}
	defer log.Close()
	p, err := os.StartProcess(program, append([]string{name}, args...), &os.ProcAttr{
		Files: []*os.File{nil, log, log},
		// containerd starts its shims, and CNI plugins, from the PATH.
		Env: append(os.Environ(), "PATH="+s.node.Bin+":/usr/sbin:/usr/bin:/sbin:/bin"),
	})
	if err != nil {
		s.err = err
		return
	}
	s.parts[p.Pid] = part{name, args}
}

// reap waits for all processes, and starts parts that end again. It returns when they have
// ended too often.
func (s *supervisor) reap() error {
	for restarts := 0; ; {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		ended, found := s.parts[pid]
		if !found {
			continue
		}
		delete(s.parts, pid)
		log.Printf("%s ended with status %d, signal %d", ended.name, status.ExitStatus(), status.Signal())
		if restarts++; restarts > mostRestarts {
			return fmt.Errorf("%s has ended again: its log is %s", ended.name, s.node.path(ended.name+".log"))
		}
		time.Sleep(pollInterval)
		if s.start(ended.name, ended.args...); s.err != nil {
			return s.err
		}
	}
}
