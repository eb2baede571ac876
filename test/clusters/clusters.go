// Package clusters runs two or three Kubernetes clusters with real pods on this machine. Each has
// etcd, an API server, a controller manager, a scheduler, kube-proxy, CoreDNS, and one
// node with a kubelet and containerd.
//
// A cluster lives in namespaces of the kernel, as a container does: of processes, mounts
// and the network. A bridge connects the clusters with the network of the process that
// starts them:
//
//	10.89.0.254           this machine
//	10.89.0.1             cluster1: the API server, port 6443, and the node
//	10.89.0.51 to .70     cluster1: LoadBalancer Services
//	10.89.0.2             cluster2, in the same way
//	10.89.0.101 to .120   cluster2: LoadBalancer Services
//	10.89.0.3             cluster3, in the same way
//	10.89.0.151 to .170   cluster3: LoadBalancer Services
//
// Pods have addresses that only their own cluster knows.
package clusters

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	_ "embed"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/meshctl/meshctl/test/harness"
)

const (
	startTimeout   = 4 * time.Minute // about 30 seconds on an idle machine
	stopTimeout    = 30 * time.Second
	requestTimeout = 30 * time.Second
	pollInterval   = 50 * time.Millisecond
)

// Addresses of both clusters.
const (
	bridge   = "meshctl-test"
	here     = "10.89.0.254"
	services = "10.96.0.0/16"
	dnsIP    = "10.96.0.10"
)

// names are the names of two clusters, of their contexts and, with the suffix -node, of
// their nodes. three has the names of three clusters.
var (
	names = []string{"cluster1", "cluster2"}
	three = []string{"cluster1", "cluster2", "cluster3"}
)

// nodeNamespaces are the namespaces of the kernel in which a node runs.
const nodeNamespaces = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS

// stateFile describes running clusters.
const stateFile = "clusters.json"

//go:embed coredns.yaml
var coredns string

// Clusters are running clusters.
type Clusters struct {
	Dir   string // with kubeconfig, and a directory of each cluster with the logs of its parts
	Bin   string
	Nodes []*node
	PIDs  []int
}

// Missing returns an error that names what this machine lacks to run clusters.
func Missing() error {
	if os.Geteuid() != 0 {
		return errors.New("clusters with pods need root")
	}
	if _, err := harness.Cached("clusters/built", "clusters"); err != nil {
		return err
	}
	for _, name := range []string{"runc", "ip", "nft"} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("%w: install runc, containernetworking-plugins, iproute2 and nftables", err)
		}
	}
	if _, err := os.Stat("/usr/lib/cni/bridge"); err != nil {
		return fmt.Errorf("no CNI plugins: %w: install containernetworking-plugins", err)
	}
	return tryNode()
}

// Start starts two clusters and returns when their nodes are ready. The directory must not
// exist. The clusters run until Stop; with bound they end with this process, too.
func Start(ctx context.Context, dir string, bound bool) (*Clusters, error) {
	return start(ctx, dir, bound, names)
}

func start(ctx context.Context, dir string, bound bool, names []string) (_ *Clusters, err error) {
	if err := Missing(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("%w: stop the clusters in it first, with make clusters-down", err)
	}
	built, err := harness.Cached("clusters/built", "clusters")
	if err != nil {
		return nil, err
	}
	c := &Clusters{Dir: dir, Bin: filepath.Dir(built)}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w%s", err, c.logs()), c.Stop())
		}
	}()
	for _, args := range []string{"link add " + bridge + " type bridge", "address add " + here + "/24 dev " + bridge, "link set " + bridge + " up"} {
		if err := runIn("", "ip", strings.Fields(args)...); err != nil {
			return nil, err
		}
	}
	images, err := makeImages(dir, c.Bin)
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		n, err := newNode(dir, c.Bin, name, i+1)
		if err != nil {
			return nil, err
		}
		c.Nodes = append(c.Nodes, n)
	}
	ready := make([]*os.File, len(c.Nodes))
	c.PIDs = make([]int, len(c.Nodes))
	for i := range c.Nodes {
		if ready[i], err = c.launch(i, bound); err != nil {
			return nil, err
		}
		defer func() { _ = ready[i].Close() }()
	}
	var wg sync.WaitGroup
	failed := make([]error, len(c.Nodes))
	for i, n := range c.Nodes {
		wg.Go(func() { failed[i] = c.complete(ctx, n, ready[i], images) })
	}
	wg.Wait()
	if err := errors.Join(failed...); err != nil {
		return nil, err
	}
	return c, os.WriteFile(c.Kubeconfig(), kubeconfigOf(c.Nodes...), 0o600)
}

// launch starts the first process of a node. See spawn for the file.
func (c *Clusters) launch(i int, bound bool) (*os.File, error) {
	pid, ready, err := c.Nodes[i].spawn(bound)
	if err != nil {
		return nil, err
	}
	c.PIDs[i] = pid
	if err := errors.Join(c.save(), c.Nodes[i].connect(i+1, pid)); err != nil {
		return nil, errors.Join(err, ready.Close())
	}
	return ready, nil
}

// restart ends all processes of a node at once, as a machine without power does, and starts the
// node again with its files. It ends with this process. restart returns when the API server is ready.
func (c *Clusters) restart(ctx context.Context, i int) error {
	n := c.Nodes[i]
	if err := errors.Join(n.kill(c.PIDs[i]), dropLink(linkOf(i+1)), n.removeCgroups()); err != nil {
		return err
	}
	ready, err := c.launch(i, true)
	if err != nil {
		return err
	}
	defer ready.Close()
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return n.await(ctx, ready)
}

// Kubeconfig returns the path of the kubeconfig, which has a context for each cluster.
func (c *Clusters) Kubeconfig() string { return filepath.Join(c.Dir, "kubeconfig") }

// Kubectl returns the path of kubectl.
func (c *Clusters) Kubectl() string { return filepath.Join(c.Bin, "../kube/kubectl") }

func (c *Clusters) save() error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.Dir, stateFile), text, 0o600)
}

// newNode makes the directory and the credentials of a cluster.
func newNode(dir, bin, name string, number int) (*node, error) {
	secret := make([]byte, 16)
	_, _ = rand.Read(secret) // never fails
	n := &node{
		Cluster: name, Dir: filepath.Join(dir, name), Bin: bin, Token: hex.EncodeToString(secret),
		IP: fmt.Sprintf("10.89.0.%d", number), Pods: fmt.Sprintf("10.6%d.0.0/24", number),
		Cgroup: fmt.Sprintf("/meshctl-%d-%s", os.Getpid(), name),
	}
	n.LBs = loadBalancerAddresses(number)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return n, errors.Join(
		os.Mkdir(n.Dir, 0o700),
		os.WriteFile(n.path("tokens.csv"), []byte(n.Token+",admin,admin,system:masters\n"), 0o600),
		os.WriteFile(n.path("service-accounts.pem"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
}

// spawn starts the first process of a node. The file yields "ready" when the API server
// is ready, and ends when the node ends before.
func (n *node) spawn(bound bool) (int, *os.File, error) {
	text, err := json.Marshal(n)
	if err != nil {
		return 0, nil, err
	}
	log, err := os.OpenFile(n.path("node.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, nil, err
	}
	defer log.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	defer w.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"meshctl-test-node", n.Dir}
	cmd.Env = append(os.Environ(), nodeVar+"="+string(text))
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: nodeNamespaces,
	}
	if bound {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	if err := cmd.Start(); err != nil {
		return 0, nil, errors.Join(fmt.Errorf("start the node of %s: %w", n.Cluster, err), r.Close())
	}
	pid := cmd.Process.Pid
	go func() { _ = cmd.Wait() }()
	return pid, r, nil
}

// linkOf returns the name of the link between the bridge and a node.
func linkOf(number int) string { return fmt.Sprintf("meshctl-test%d", number) }

// connect links the node with the bridge.
func (n *node) connect(number, pid int) error {
	link := linkOf(number)
	for _, args := range []string{
		fmt.Sprintf("link add %s type veth peer name eth0 netns %d", link, pid),
		fmt.Sprintf("link set %s master %s up", link, bridge),
	} {
		if err := runIn("", "ip", strings.Fields(args)...); err != nil {
			return err
		}
	}
	return nil
}

// await waits until the API server of a node is ready. See spawn for the file.
func (n *node) await(ctx context.Context, ready *os.File) error {
	if deadline, ok := ctx.Deadline(); ok {
		if err := ready.SetReadDeadline(deadline); err != nil {
			return err
		}
	}
	if text, err := io.ReadAll(ready); err != nil || string(text) != "ready" {
		return fmt.Errorf("%s ended or is not ready: %w", n.Cluster, err)
	}
	return nil
}

// complete waits for a node, imports the images and starts CoreDNS.
func (c *Clusters) complete(ctx context.Context, n *node, ready *os.File, images []string) error {
	if err := n.await(ctx, ready); err != nil {
		return err
	}
	for _, image := range images {
		if err := n.importImage(ctx, image); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"apply", "--server-side", "-f", "-"},
		{"wait", "--for=create", "node/" + n.Cluster + "-node", "--timeout=4m"},
		{"wait", "--for=condition=Ready", "node/" + n.Cluster + "-node", "--timeout=4m"},
		{"rollout", "status", "deployment/coredns", "-n", "kube-system", "--timeout=4m"},
	} {
		cmd := exec.CommandContext(ctx, c.Kubectl(), append([]string{"--kubeconfig", n.path("kubeconfig")}, args...)...)
		cmd.Stdin = strings.NewReader(coredns)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: kubectl %s: %w: %s", n.Cluster, strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// Import imports the archive of an image into all clusters.
func (c *Clusters) Import(ctx context.Context, archive string) error {
	var errs []error
	for _, n := range c.Nodes {
		errs = append(errs, n.importImage(ctx, archive))
	}
	return errors.Join(errs...)
}

func (n *node) importImage(ctx context.Context, archive string) error {
	return n.ctr(ctx, "images", "import", archive)
}

// ctr runs ctr for the images of the node.
func (n *node) ctr(ctx context.Context, args ...string) error {
	args = append([]string{"--address", n.path("containerd.sock"), "--namespace", "k8s.io"}, args...)
	out, err := exec.CommandContext(ctx, filepath.Join(n.Bin, "ctr"), args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: ctr %s: %w: %s", n.Cluster, strings.Join(args, " "), err, out)
	}
	return nil
}

// Load returns the running clusters of a directory.
func Load(dir string) (*Clusters, error) {
	text, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, err
	}
	c := &Clusters{}
	return c, json.Unmarshal(text, c)
}

// Stop ends the clusters and removes all that they made.
func (c *Clusters) Stop() error {
	var errs []error
	for i, pid := range c.PIDs {
		if pid != 0 {
			errs = append(errs, c.Nodes[i].kill(pid))
		}
	}
	errs = append(errs, dropLink(bridge))
	for i, n := range c.Nodes {
		errs = append(errs, dropLink(linkOf(i+1)), n.removeCgroups())
	}
	return errors.Join(append(errs, os.RemoveAll(c.Dir))...)
}

// dropLink removes a network interface, if it exists.
func dropLink(name string) error {
	err := runIn("", "ip", "link", "delete", name)
	if err != nil && strings.Contains(err.Error(), "Cannot find device") {
		return nil
	}
	return err
}

// kill ends the first process of a node, and thereby all others, and waits for the end.
func (n *node) kill(pid int) error {
	deadline := time.Now().Add(stopTimeout)
	for time.Now().Before(deadline) {
		// Another process may have the number by now.
		command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || !bytes.Equal(command, []byte("meshctl-test-node\x00"+n.Dir+"\x00")) {
			return nil
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		time.Sleep(pollInterval)
	}
	return fmt.Errorf("%s: process %d does not end", n.Cluster, pid)
}

// logs returns the ends of the logs of all parts.
func (c *Clusters) logs() string {
	var out strings.Builder
	for _, n := range c.Nodes {
		paths, err := filepath.Glob(n.path("*.log"))
		if err != nil {
			return err.Error()
		}
		for _, path := range paths {
			if info, err := os.Stat(path); err != nil || info.IsDir() {
				continue
			}
			text := harness.Tail(path)
			fmt.Fprintf(&out, "\n%s:\n%s", path, text[max(0, len(text)-2<<10):])
		}
	}
	return out.String()
}

// api returns host:port of the API server.
func (n *node) api() string { return n.IP + ":6443" }

// kubeconfig returns a kubeconfig for the cluster.
func (n *node) kubeconfig() []byte { return kubeconfigOf(n) }

// kubeconfigOf returns a kubeconfig with a context for each cluster, with all rights.
func kubeconfigOf(nodes ...*node) []byte {
	var clusters, users, contexts strings.Builder
	for _, n := range nodes {
		ca, err := os.ReadFile(n.path("certs/apiserver.crt"))
		if err != nil {
			panic(err) // it is ready
		}
		fmt.Fprintf(&clusters, "- name: %s\n  cluster: {server: 'https://%s', certificate-authority-data: %s}\n", n.Cluster, n.api(), base64.StdEncoding.EncodeToString(ca))
		fmt.Fprintf(&users, "- name: %s\n  user: {token: %s}\n", n.Cluster, n.Token)
		fmt.Fprintf(&contexts, "- name: %[1]s\n  context: {cluster: %[1]s, user: %[1]s}\n", n.Cluster)
	}
	return fmt.Appendf(nil, "apiVersion: v1\nkind: Config\nclusters:\n%susers:\n%scontexts:\n%scurrent-context: %s\n", &clusters, &users, &contexts, nodes[0].Cluster)
}
