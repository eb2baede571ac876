package clusters

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/meshctl/meshctl/test/harness"
)

const (
	// meshctlPath and envoyPath are the programs in the image.
	meshctlPath = "/usr/local/bin/meshctl"
	envoyPath   = "/usr/local/bin/envoy"
	// meshUser is the user and the group of all processes of the mesh.
	meshUser = 1337
)

// ejecting makes clients leave out endpoints that fail, and call endpoints of the other cluster
// before, until the returned function is called.
func (u *user) ejecting(t *testing.T) (end func()) {
	t.Helper()
	u.apply(`
{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: helloworld, namespace: sample}, spec: {host: helloworld, trafficPolicy: {
  loadBalancer: {localityLbSetting: {enabled: false}}, connectionPool: {tcp: {connectTimeout: 1s}}, outlierDetection: {consecutive5xxErrors: 3, consecutiveGatewayErrors: 3, interval: 1s, baseEjectionTime: 5s, maxEjectionPercent: 100}}}}
`)
	return func() {
		for _, c := range names {
			if _, err := u.try("", "kubectl --context "+c+" delete destinationrule helloworld -n sample --ignore-not-found"); err != nil {
				t.Error(err)
			}
		}
	}
}

// ofPods returns the processes in pods whose names begin with a prefix, and whose command line
// starts with the words.
func (u *user) ofPods(n *node, prefix string, words ...string) []int {
	u.t.Helper()
	var out []int
	for _, pid := range u.processesOf(n, words...) {
		env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
		if err == nil && bytes.Contains(append([]byte{0}, env...), []byte("\x00HOSTNAME="+prefix)) {
			out = append(out, pid)
		}
	}
	return out
}

// testKilledParts: no request fails while each part of both clusters is killed, and each proxy but
// those of the clients, whose connections end with them.
func (u *user) testKilledParts(t *testing.T) {
	defer u.retries(t)()
	loads := u.loads(t, 2)
	killed := 0
	// again kills processes and waits until there are others. A pod that ends may have one of them.
	again := func(what string, want int, find func() []int) {
		t.Helper()
		old := map[int]bool{}
		for _, pid := range find() {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				t.Error(err)
			}
			old[pid] = true
		}
		if len(old) == 0 {
			t.Fatalf("no process of %s", what)
		}
		killed += len(old)
		harness.Eventually(t, moved, what+" after kill -9", func() error {
			found := find()
			if len(found) < want {
				return fmt.Errorf("%d of %d processes", len(found), want)
			}
			for _, pid := range found {
				if old[pid] {
					return fmt.Errorf("process %d has not ended", pid)
				}
			}
			return nil
		})
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "containerd", "kubelet", "/coredns"} {
		again(name, len(names), func() []int { return u.processes(name) })
		for _, n := range u.clusters.Nodes {
			harness.Eventually(t, moved, "API server of "+n.Cluster, func() error { return n.ready(t.Context()) })
		}
		moreOfBoth(loads)
	}
	u.changeArrives(t)
	for _, prefix := range []string{"helloworld-v1-", "helloworld-v2-", "istio-eastwestgateway-"} {
		for _, program := range [][]string{{envoyPath}, {meshctlPath, "agent"}} {
			for _, n := range u.clusters.Nodes {
				if prefix == "helloworld-v1-" && n.Cluster != "cluster1" || prefix == "helloworld-v2-" && n.Cluster != "cluster2" {
					continue
				}
				again(prefix+" "+program[0], 1, func() []int { return u.ofPods(n, prefix, program...) })
				for _, namespace := range []string{"sample", "istio-system"} {
					u.run("kubectl --context " + n.Cluster + " wait deployment --all -n " + namespace + " --for=condition=Available --timeout=5m")
				}
				moreOfBoth(loads)
			}
		}
	}
	t.Logf("%d processes killed", killed)
	u.changeArrives(t)
	stop(loads)
}

// testRestartedNode: the client of cluster1 gets answers while the machine of cluster2 has no power.
// All of cluster2 starts again by itself, and both clusters answer both clients.
func (u *user) testRestartedNode(t *testing.T) {
	defer u.ejecting(t)()
	defer u.retries(t)()
	l := u.load(t, "cluster1", "client", target, 2)
	l.until("answers of both versions", both)
	began := time.Now()
	if err := u.clusters.restart(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	t.Logf("the API server of cluster2 is ready %s after the end of its machine", time.Since(began).Round(time.Second))
	since := began.UTC().Format(time.RFC3339)
	harness.Eventually(t, moved, "containers of cluster2", func() error {
		out, err := u.try("", `kubectl --context cluster2 get pods -A -o jsonpath='{range .items[*]}{range .status.containerStatuses[*]}{.ready} {.state.running.startedAt} {.name}{"\n"}{end}{end}'`)
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) != 3 || f[0] != "true" || f[1] < since {
				return errors.New(line)
			}
		}
		return nil
	})
	t.Logf("all pods of cluster2 are ready after %s", time.Since(began).Round(time.Second))
	l.until("answers of both versions", both)
	t.Logf("both versions answer cluster1 after %s", time.Since(began).Round(time.Second))
	other := u.load(t, "cluster2", "client", target, 2)
	other.until("answers of both versions", both)
	u.lost(t, false)
	u.changeArrives(t)
	stop([]*load{l, other})
}

// starve leaves a process of the user of the mesh without a free file descriptor until the returned
// function is called.
func starve(t *testing.T, pid int) (feed func()) {
	t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	limit := func(args ...string) (string, error) {
		cmd := exec.Command("prlimit", append([]string{"--pid", strconv.Itoa(pid)}, args...)...)
		// Only the same user may do this without CAP_SYS_RESOURCE, which some machines lack.
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: meshUser, Gid: meshUser}}
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	was, err := limit("--nofile", "--output=SOFT", "--noheadings")
	if err == nil {
		_, err = limit(fmt.Sprintf("--nofile=%d:", len(open)))
	}
	if err != nil {
		t.Fatal(was, err)
	}
	return func() {
		// A process that has ended needs none.
		if out, err := limit("--nofile=" + was + ":"); err != nil && syscall.Kill(pid, 0) == nil {
			t.Error(out, err)
		}
	}
}

// testNoDescriptors: control planes and agents without a free file descriptor send changes to the
// proxies that are connected, and no request fails. Afterwards new pods connect.
func (u *user) testNoDescriptors(t *testing.T) {
	loads := u.loads(t, 2)
	u.scaleV1(t, 2)
	var pids []int
	pids = append(pids, u.processes(meshctlPath, "serve")...)
	for _, prefix := range []string{"client-", "helloworld-", "istio-eastwestgateway-"} {
		for _, n := range u.clusters.Nodes {
			pids = append(pids, u.ofPods(n, prefix, meshctlPath, "agent")...)
		}
	}
	var feeds []func()
	feedAll := func() {
		for _, feed := range feeds {
			feed()
		}
		feeds = nil
	}
	defer func() { feedAll() }()
	for _, pid := range pids {
		feeds = append(feeds, starve(t, pid))
	}
	// This needs no new connection of a webhook.
	u.scaleV1(t, 1)
	for _, l := range loads {
		l.more(1000)
	}
	feedAll()
	t.Logf("%d processes had no free file descriptor", len(pids))
	u.scaleV1(t, 2)
	u.scaleV1(t, 1)
	moreOfBoth(loads)
	stop(loads)
	u.allReplicas(t)
}

// memoryVolumes returns the volumes in memory of pods, as the node has mounted them.
func (u *user) memoryVolumes(t *testing.T, cluster int) []string {
	t.Helper()
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", u.clusters.PIDs[cluster]))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 3 && f[2] == "tmpfs" && strings.Contains(f[1], "/volumes/kubernetes.io~empty-dir/") {
			out = append(out, f[1])
		}
	}
	if len(out) == 0 {
		t.Fatal("no volumes in memory")
	}
	return out
}

// fill leaves no space in the volumes in memory of a cluster's pods, until the returned function is
// called.
func (u *user) fill(t *testing.T, cluster int) (free func()) {
	t.Helper()
	pid := strconv.Itoa(u.clusters.PIDs[cluster])
	resize := func(path string, size uint64) error {
		return runIn("", "nsenter", "-t", pid, "-m", "mount", "-o", fmt.Sprintf("remount,size=%d", size), path)
	}
	was := map[string]uint64{}
	for _, path := range u.memoryVolumes(t, cluster) {
		var s unix.Statfs_t
		if err := unix.Statfs("/proc/"+pid+"/root"+path, &s); err != nil {
			t.Fatal(err)
		}
		was[path] = s.Blocks * uint64(s.Bsize)
		if err := resize(path, max(1, s.Blocks-s.Bfree)*uint64(s.Bsize)); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		for path, size := range was {
			if err := resize(path, size); err != nil {
				t.Error(err)
			}
		}
		clear(was)
	}
}

// testFullVolumes: while no process of the mesh can write a file, proxies get new certificates and
// changes, and no request fails. An agent that starts reports the reason, and starts when there is
// space. testReplacedRoot has made the lives of certificates short.
func (u *user) testFullVolumes(t *testing.T) {
	defer u.retries(t)()
	loads := u.loads(t, 2)
	var frees []func()
	freeAll := func() {
		for _, free := range frees {
			free()
		}
	}
	defer freeAll()
	for i := range names {
		frees = append(frees, u.fill(t, i))
	}
	before := u.issued(t)
	u.changeArrives(t)
	harness.Eventually(t, stepTimeout, "new certificates", func() error {
		for _, l := range loads {
			l.more(1)
		}
		if n := u.issued(t) - before; n < 20 {
			return fmt.Errorf("%d new certificates", n)
		}
		return nil
	})
	t.Logf("%d certificates issued while all volumes were full", u.issued(t)-before)
	agents := u.ofPods(u.clusters.Nodes[0], "helloworld-v1-", meshctlPath, "agent")
	if len(agents) == 0 {
		t.Fatal("no agent of v1")
	}
	for _, pid := range agents {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	harness.Eventually(t, moved, "log of the agent", func() error {
		out, err := u.try("", "for p in $(kubectl --context cluster1 get pods -n sample -l version=v1 -o name); do "+
			"kubectl --context cluster1 logs -n sample $p -c istio-proxy --previous; done")
		if err == nil && !strings.Contains(out, "no space left on device") {
			err = fmt.Errorf("the log is\n%s", out)
		}
		return err
	})
	freeAll()
	moreOfBoth(loads)
	u.changeArrives(t)
	stop(loads)
}

// issued returns the number of certificates that the control planes have signed.
func (u *user) issued(t *testing.T) int {
	t.Helper()
	sum := 0
	for _, c := range names {
		for line := range strings.Lines(u.run("for p in $(kubectl --context " + c + " get pods -n istio-system -l app=istiod -o name); do kubectl --context " +
			c + " get --raw /api/v1/namespaces/istio-system/pods/${p#pod/}:15014/proxy/metrics; done")) {
			if f := strings.Fields(line); len(f) == 2 && strings.HasPrefix(f[0], "citadel_server_success_cert_issuance_count") {
				n, err := strconv.ParseFloat(f[1], 64)
				if err != nil {
					t.Fatal(err)
				}
				sum += int(n)
			}
		}
	}
	return sum
}
