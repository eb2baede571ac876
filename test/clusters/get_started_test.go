package clusters

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/test/harness"
)

const (
	page        = "docs/get-started.md"
	pageTimeout = 12 * time.Minute // one block of the page
	moved       = 90 * time.Second // a change of the mesh
)

// mostCommands is the number of commands from two clusters to answers from both.
const mostCommands = 6

// user runs commands as the reader of the page does.
type user struct {
	t        *testing.T
	clusters *Clusters
	dir      string
}

// newUser returns a user with two new clusters, whose nodes have the image.
func newUser(t *testing.T) *user { return newUserOf(t, names) }

// newUserOf is newUser with these clusters.
func newUserOf(t *testing.T, names []string) *user {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	if programs == "" {
		t.Skipf("this machine cannot run clusters: %v", Missing())
	}
	began := time.Now()
	c, err := start(t.Context(), filepath.Join(harness.ShortDir(t), "c"), true, names)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.logs())
		}
		if err := errors.Join(c.Stop(), c.left()); err != nil {
			t.Error(err)
		}
	})
	if err := c.Import(t.Context(), filepath.Join(programs, "image.tar")); err != nil {
		t.Fatal(err)
	}
	t.Logf("clusters with the image: %s", time.Since(began).Round(time.Second))
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	u := &user{t, c, t.TempDir()}
	if err := os.Symlink(filepath.Join(root, "examples"), filepath.Join(u.dir, "examples")); err != nil {
		t.Fatal(err)
	}
	return u
}

// left returns an error that names what clusters have left after Stop.
func (c *Clusters) left() error {
	links := []string{bridge}
	paths := []string{c.Dir}
	for i, n := range c.Nodes {
		links = append(links, linkOf(i+1))
		paths = append(paths, fmt.Sprintf("/proc/%d", c.PIDs[i]), "/sys/fs/cgroup"+n.Cgroup)
		groups, err := filepath.Glob("/sys/fs/cgroup/*" + n.Cgroup)
		if err != nil {
			return err
		}
		paths = append(paths, groups...)
	}
	var errs []error
	for _, name := range links {
		if _, err := net.InterfaceByName(name); err == nil {
			errs = append(errs, fmt.Errorf("the interface %s is left", name))
		}
	}
	for _, path := range paths {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			errs = append(errs, fmt.Errorf("%s is left: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// try runs commands in a shell and returns what they write to stdout.
func (u *user) try(stdin, commands string) (string, error) {
	ctx, cancel := context.WithTimeout(u.t.Context(), pageTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir, cmd.Stdin = u.dir, strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "KUBECONFIG="+u.clusters.Kubeconfig(), "HOME="+u.dir)
	cmd.WaitDelay = time.Second
	var out, errors bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errors
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w\n%s%s", commands, err, out.Bytes(), errors.Bytes())
	}
	return out.String(), nil
}

// run is try for commands that must succeed.
func (u *user) run(commands string) string {
	u.t.Helper()
	out, err := u.try("", commands)
	if err != nil {
		u.t.Fatal(err)
	}
	return out
}

// apply applies objects in both clusters.
func (u *user) apply(objects string) {
	u.t.Helper()
	for _, c := range names {
		if _, err := u.try(objects, "kubectl --context "+c+" apply -f -"); err != nil {
			u.t.Fatal(err)
		}
	}
}

// call sends requests from the client of a namespace and returns the answers.
func (u *user) call(cluster, namespace, url string) (string, error) {
	return u.try("", fmt.Sprintf("kubectl --context %s exec -n %s deploy/client -c client -- curl -s '%s'", cluster, namespace, url))
}

// blocks returns the commands of the page, block by block.
func blocks(t *testing.T) []string { return blocksOf(t, page, "") }

// blocksOf returns the commands below a heading of a page, or of the whole page, that tests of this
// package run.
func blocksOf(t *testing.T, page, heading string) []string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repository, page))
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	if heading != "" {
		_, text, _ = strings.Cut(text, "\n## "+heading+"\n")
		text, _, _ = strings.Cut(text, "\n## ")
	}
	var out []string
	for _, m := range regexp.MustCompile("(?ms)^<!-- test: not run: test/clusters [^\n]* -->\n```sh\n(.*?)^```$").FindAllStringSubmatch(text, -1) {
		out = append(out, m[1])
	}
	if len(out) == 0 {
		t.Fatalf("%s has no commands below %q", page, heading)
	}
	return out
}

// commandsOf returns the number of commands of a block. A loop is one.
func commandsOf(block string) int {
	block = regexp.MustCompile(`(?ms)^for .*?^done$`).ReplaceAllString(block, "loop")
	return strings.Count(strings.TrimSpace(strings.ReplaceAll(block, "\\\n", "")), "\n") + 1
}

// TestGetStarted follows the page: from two clusters to a mesh whose workloads answer from
// both, in few commands. The mesh then changes, and goes.
func TestGetStarted(t *testing.T) {
	u := newUser(t)
	began, commands, answered := time.Now(), 0, false
	for _, block := range blocks(t) {
		out := u.run(block)
		t.Logf("after %s:\n%s%s", time.Since(began).Round(time.Second), block, out)
		if !answered {
			commands += commandsOf(block)
		}
		if strings.Contains(out, "version: v1") && strings.Contains(out, "version: v2") {
			answered = true
		}
	}
	if !answered || commands > mostCommands {
		t.Fatalf("answers from both clusters after %d commands: %v; want them after at most %d", commands, answered, mostCommands)
	}
	for _, c := range names {
		u.run("meshctl check --context " + c)
	}
	t.Run("injected pods", u.testInjected)
	t.Run("shares", u.testShares)
	t.Run("names of the other cluster", u.testNames)
	t.Run("killed control planes", u.testKilled)
	t.Run("strict", u.testStrict)
	t.Run("gRPC without Envoy", u.testProxyless)
	t.Run("job", u.testJob)
	t.Run("removed version", u.testRemovedVersion)
	t.Run("uninstall", u.testUninstall)
}

// testShares: each version answers half of the requests from each cluster, and knows the
// identity of the caller.
func (u *user) testShares(t *testing.T) {
	const requests = 2000 // 5 % are more than four standard deviations
	for _, c := range names {
		out, err := u.call(c, "sample", fmt.Sprintf("helloworld.sample:5000/hello?[1-%d]", requests))
		if err != nil {
			t.Fatal(err)
		}
		v1, v2 := strings.Count(out, "version: v1"), strings.Count(out, "version: v2")
		if v1+v2 != requests || v1 < requests*45/100 || v1 > requests*55/100 {
			t.Errorf("%s: %d answers of v1 and %d of v2, want half of %d each", c, v1, v2, requests)
		}
		if n := strings.Count(out, "caller: spiffe://cluster.local/ns/sample/sa/client\n"); n != requests {
			t.Errorf("%s: %d of %d answers name the identity of the client", c, n, requests)
		}
	}
}

// testInjected: the pods that the API server creates have what meshctl inject makes of their
// Deployments. TestContract (internal/inject) compares that with Istio's sidecars.
func (u *user) testInjected(t *testing.T) {
	for _, c := range names {
		var want appsv1.Deployment
		var pods corev1.PodList
		for command, into := range map[string]any{
			"kubectl --context " + c + " get deployment client -n sample -o yaml | meshctl inject --context " + c + " -f -": &want,
			"kubectl --context " + c + " get pods -n sample -l app=client -o yaml":                                          &pods,
		} {
			if err := yaml.Unmarshal([]byte(u.run(command)), into); err != nil {
				t.Fatal(err)
			}
		}
		if len(pods.Items) != 1 {
			t.Fatalf("%d pods", len(pods.Items))
		}
		if diff := cmp.Diff(factsOf(&want.Spec.Template.Spec), factsOf(&pods.Items[0].Spec)); diff != "" {
			t.Errorf("%s (-meshctl inject +API server):\n%s", c, diff)
		}
	}
}

// factsOf returns the containers, ports, environment, probes, mounts and volumes of a pod, a line
// each, without what every pod gets for the API server.
func factsOf(spec *corev1.PodSpec) []string {
	var out []string
	const api = "kube-api-access"
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		add := func(what string, v any) {
			text, err := json.Marshal(v)
			if err != nil {
				panic(err) // it comes from YAML
			}
			out = append(out, c.Name+" "+what+" "+string(text))
		}
		add("runs", []any{c.Image, c.Command, c.Args, c.RestartPolicy, c.SecurityContext})
		for _, p := range c.Ports {
			add("port", []any{p.Name, p.ContainerPort, p.Protocol})
		}
		for _, e := range c.Env {
			field := ""
			if f := e.ValueFrom; f != nil && f.FieldRef != nil {
				field = f.FieldRef.FieldPath
			} else if f != nil && f.ResourceFieldRef != nil {
				field = f.ResourceFieldRef.Resource
			}
			add("variable", []any{e.Name, e.Value, field})
		}
		for name, p := range map[string]*corev1.Probe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
			if p != nil && p.HTTPGet != nil {
				add(name, []any{p.HTTPGet.Path, p.HTTPGet.Port, p.InitialDelaySeconds, p.PeriodSeconds, p.TimeoutSeconds, p.FailureThreshold})
			}
		}
		for _, m := range c.VolumeMounts {
			if !strings.HasPrefix(m.Name, api) {
				add("mount", []any{m.Name, m.MountPath, m.ReadOnly})
			}
		}
	}
	for _, v := range spec.Volumes {
		if !strings.HasPrefix(v.Name, api) {
			out = append(out, "volume "+v.Name)
		}
	}
	slices.Sort(out)
	return out
}

// testNames: by DNS capture a client finds a service that exists in the other cluster only.
func (u *user) testNames(t *testing.T) {
	if _, err := u.try(`
{apiVersion: v1, kind: Service, metadata: {name: only2, namespace: sample}, spec: {selector: {app: helloworld}, ports: [{name: http, port: 5000}]}}
`, "kubectl --context cluster2 apply -f -"); err != nil {
		t.Fatal(err)
	}
	u.run(`kubectl --context cluster1 patch deployment client -n sample -p '{"spec": {"template": {"metadata": {"annotations":
  {"proxy.istio.io/config": "{\"proxyMetadata\": {\"ISTIO_META_DNS_CAPTURE\": \"true\"}}"}}}}}'
kubectl --context cluster1 rollout status -n sample deployment client --timeout=5m`)
	harness.Eventually(t, moved, "answers of only2", func() error {
		out, err := u.call("cluster1", "sample", "only2.sample:5000/hello")
		if err == nil && !strings.Contains(out, "version: v2") {
			err = fmt.Errorf("answer %q", out)
		}
		return err
	})
}

// testKilled: no request fails while all control planes are killed and start again. They
// then send changes to the proxies as before.
func (u *user) testKilled(t *testing.T) {
	const requests = 3000
	type result struct {
		out string
		err error
	}
	done := make(chan result, len(names))
	for _, c := range names {
		go func() {
			out, err := u.call(c, "sample", fmt.Sprintf("helloworld.sample:5000/hello?[1-%d]", requests))
			done <- result{out, err}
		}()
	}
	if n := u.kill("/usr/local/bin/meshctl", "serve"); n != 2*len(names) {
		t.Errorf("killed %d processes, want two replicas in each cluster", n)
	}
	for range names {
		r := <-done
		if n := strings.Count(r.out, "Hello version"); r.err != nil || n != requests {
			t.Errorf("%d of %d requests were answered: %v", n, requests, r.err)
		}
	}
	for _, c := range names {
		u.run("kubectl --context " + c + " wait -n istio-system --for=condition=Available deployment/istiod --timeout=5m")
	}
	u.run("kubectl --context cluster1 scale -n sample deployment helloworld-v1 --replicas=2")
	harness.Eventually(t, moved, "answers of the new pod", func() error {
		out, err := u.call("cluster1", "sample", "helloworld.sample:5000/hello?[1-60]")
		instances := map[string]bool{}
		for _, m := range regexp.MustCompile(`instance: (\S+),`).FindAllStringSubmatch(out, -1) {
			instances[m[1]] = true
		}
		if err == nil && len(instances) != 3 {
			err = fmt.Errorf("answers of %v, want two pods of v1 and one of v2", instances)
		}
		return err
	})
}

// kill kills the processes in pods whose command line starts with the words, and returns
// their number.
func (u *user) kill(words ...string) int {
	u.t.Helper()
	found := u.processes(words...)
	for _, pid := range found {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			u.t.Error(err)
		}
	}
	return len(found)
}

// processes returns the processes of all clusters whose command line starts with the words, the
// oldest first.
func (u *user) processes(words ...string) []int {
	u.t.Helper()
	var out []int
	for _, n := range u.clusters.Nodes {
		out = append(out, u.processesOf(n, words...)...)
	}
	return out
}

// processesOf is processes for one cluster.
func (u *user) processesOf(n *node, words ...string) []int {
	u.t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		u.t.Fatal(err)
	}
	var out []int
	for _, path := range lines {
		dir := filepath.Dir(path)
		line, err := os.ReadFile(path)
		group, errGroup := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil || errGroup != nil || !inGroup(group, n.Cgroup) || !bytes.HasPrefix(line, []byte(strings.Join(words, "\x00")+"\x00")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			out = append(out, pid)
		}
	}
	slices.Sort(out)
	return out
}

// inGroup reports whether the groups of a process are a group or below it.
func inGroup(groups []byte, group string) bool {
	return bytes.Contains(groups, []byte(group+"/")) || bytes.Contains(groups, []byte(group+"\n"))
}

// plainClient is a client without a proxy.
const plainClient = `
{apiVersion: v1, kind: Namespace, metadata: {name: plain}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: client, namespace: plain}, spec: {selector: {matchLabels: {app: client}}, template: {
  metadata: {labels: {app: client}}, spec: {containers: [{name: client, image: "docker.io/curlimages/curl:8.16.0", command: [sleep, infinity]}]}}}}
`

// strictPolicy requires mutual TLS in the mesh.
const strictPolicy = "{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: default, namespace: istio-system}, spec: {mtls: {mode: STRICT}}}"

// refusesPlaintext waits until the client without a proxy gets no answers in a cluster.
func (u *user) refusesPlaintext(t *testing.T, cluster string) {
	t.Helper()
	harness.Eventually(t, moved, "refused plaintext in "+cluster, func() error {
		if out, err := u.call(cluster, "plain", target); err == nil {
			return fmt.Errorf("answer %q", out)
		}
		return nil
	})
}

// testStrict: mutual TLS refuses a client without a proxy, which is served before.
func (u *user) testStrict(t *testing.T) {
	u.apply(plainClient)
	for _, c := range names {
		u.run("kubectl --context " + c + " rollout status -n plain deployment client --timeout=5m")
		if _, err := u.call(c, "plain", "helloworld.sample:5000/hello"); err != nil {
			t.Error(err)
		}
	}
	u.apply(strictPolicy)
	for _, c := range names {
		u.refusesPlaintext(t, c)
		if _, err := u.call(c, "sample", "helloworld.sample:5000/hello?[1-20]"); err != nil {
			t.Error(err)
		}
	}
}

// drained waits until the proxies of helloworld have closed the connections from before testStrict,
// which changed their listeners, and until the proxies of clients know it: a request that begins at
// this moment fails, as its connection ends. Requests until they all succeed pass every proxy between.
func (u *user) drained(t *testing.T) {
	t.Helper()
	for i, c := range names {
		harness.Eventually(t, moved, "no connection drains in "+c, func() error {
			out, err := u.try("", fmt.Sprintf("kubectl --context %s exec -n sample deploy/helloworld-v%d -c istio-proxy -- meshctl agent request GET 'stats?filter=total_.*_draining$'", c, i+1))
			if err == nil && out != "listener_manager.total_filter_chains_draining: 0\nlistener_manager.total_listeners_draining: 0\n" {
				err = errors.New(out)
			}
			return err
		})
	}
	for _, c := range names {
		harness.Eventually(t, moved, "connections of the client in "+c, func() error {
			const requests = 200
			out, err := u.call(c, "sample", fmt.Sprintf("helloworld.sample:5000/hello?[1-%d]", requests))
			if n := strings.Count(out, "version: v"); err == nil && n != requests {
				err = fmt.Errorf("%d answers:\n%s", n, out)
			}
			return err
		})
	}
}

// testRemovedVersion: when the pods of v1 go, v2 answers in both clusters, and no request fails
// meanwhile, as the application answers until clients know that it ends.
func (u *user) testRemovedVersion(t *testing.T) {
	u.drained(t)
	loads := u.loads(t, 1)
	moreOfBoth(loads)
	u.run("kubectl --context cluster1 scale -n sample deployment helloworld-v1 --replicas=0")
	scaled := time.Now()
	for i, l := range loads {
		harness.Eventually(t, moved, "only answers of v2", func() error {
			if r := l.more(200); r.Answers["v2"] != r.Requests {
				return fmt.Errorf("%s: answers %v of %d", names[i], r.Answers, r.Requests)
			}
			return nil
		})
		t.Logf("%s: the last answer of v1 came %s after its removal", names[i], time.UnixMilli(l.totals().Last["v1"]).Sub(scaled).Round(time.Millisecond))
	}
	stop(loads)
}

// testUninstall: the commands of docs/get-started.md and of the installer leave nothing of
// the mesh.
func (u *user) testUninstall(t *testing.T) {
	u.run(`meshctl multicluster unlink cluster1 cluster2
for c in cluster1 cluster2; do
  kubectl --context $c delete peerauthentication -n istio-system default
  kubectl --context $c delete secret -n istio-system cacerts
  kubectl --context $c delete namespace sample plain --timeout=3m
  meshctl uninstall --context $c
done`)
	for _, c := range names {
		harness.Eventually(t, moved, c+" without the mesh", func() error { return u.withoutMesh(c) }) // pods of gateways drain
	}
}

// withoutMesh returns an error that lists the objects of a mesh in a cluster.
func (u *user) withoutMesh(cluster string) error {
	u.t.Helper()
	left := u.run("for k in $(kubectl --context " + cluster + ` api-resources --verbs=list -o name | grep -v events); do
  kubectl --context ` + cluster + ` get $k -A -o name --ignore-not-found
done | grep -E 'istio|mesh' || true`)
	if left != "" {
		return fmt.Errorf("objects of the mesh:\n%s", left)
	}
	return nil
}
