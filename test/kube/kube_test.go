package kube

import (
	"bufio"
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// settle waits until check returns nil.
func settle(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.After(time.Minute)
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-poll.C:
		case <-deadline:
			t.Fatal(err)
		}
	}
}

// settleOutput waits until kubectl with args writes want.
func settleOutput(t *testing.T, c *Cluster, want string, args ...string) {
	t.Helper()
	settle(t, func() error {
		out, err := c.kubectl(t, "", args...)
		if err == nil && !strings.Contains(out, want) {
			err = errors.New("kubectl " + strings.Join(args, " ") + " says " + out + ", not " + want)
		}
		return err
	})
}

const customKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: things.example.com
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Thing, plural: things}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: example.com/v1
kind: Thing
metadata: {name: one}
`

const service = `
apiVersion: v1
kind: Service
metadata: {name: echo}
spec:
  selector: {app: echo}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: v1
kind: Node
metadata: {name: worker, labels: {topology.kubernetes.io/zone: zone-1}}
---
apiVersion: v1
kind: Pod
metadata: {name: echo-1, labels: {app: echo}}
spec:
  nodeName: worker
  containers: [{name: echo, image: echo}]
status:
  phase: Running
  podIP: 10.1.2.3
  podIPs: [{ip: 10.1.2.3}]
  conditions: [{type: Ready, status: "True"}]
---
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: by-hand, labels: {kubernetes.io/service-name: other}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.1.2.4]}]
`

func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes: make kube")
	}
	t.Parallel()
	c := Start(t, Named("east"))

	// Kinds, status and controllers work.
	c.Apply(t, customKind)
	c.Apply(t, service)
	c.Apply(t, service) // changes nothing
	settleOutput(t, c, "one", "get", "things", "-o", "name")
	settleOutput(t, c, "10.1.2.3:true:zone-1", "get", "endpointslices", "-l", "kubernetes.io/service-name=echo",
		"-o", `jsonpath={range .items[*].endpoints[*]}{.addresses[0]}:{.conditions.ready}:{.zone}{end}`)
	settleOutput(t, c, "10.1.2.4", "get", "endpointslice", "by-hand", "-o", "jsonpath={.endpoints[0].addresses[0]}")
	ns := c.Namespace(t, "test")
	if ns != "test-1" {
		t.Errorf("Namespace() = %q, want test-1", ns)
	}
	settleOutput(t, c, "BEGIN CERTIFICATE", "get", "configmap", "kube-root-ca.crt", "-n", ns, "-o", `jsonpath={.data.ca\.crt}`)
	settleOutput(t, c, "serviceaccount/default", "get", "serviceaccount", "-n", ns, "-o", "name")
	c.Kubectl(t, `{apiVersion: v1, kind: Secret, type: kubernetes.io/service-account-token,
		metadata: {name: token, annotations: {kubernetes.io/service-account.name: default}}}`, "apply", "-n", ns, "-f", "-")
	settleOutput(t, c, "ey", "get", "secret", "token", "-n", ns, "-o", "go-template={{.data.token|base64decode}}")
	if _, err := c.kubectl(t, "", "get", "pods", "--as=somebody"); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("somebody gets pods: %v", err)
	}

	// A restart keeps the objects and the address.
	addr, kubeconfig := c.Addr(), c.Kubeconfig()
	c.Stop(t)
	if _, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the stopped API server at %s answers: %v", addr, err)
	}
	c.Restart(t)
	c.Restart(t)
	if c.Addr() != addr || !bytes.Equal(c.Kubeconfig(), kubeconfig) {
		t.Errorf("after a restart the kubeconfig is another: %s, then %s", kubeconfig, c.Kubeconfig())
	}
	settleOutput(t, c, "one", "get", "things", "-o", "name", "--kubeconfig", c.KubeconfigFile(t), "--context", "east")
	c.Kubectl(t, "", "delete", "namespace", ns) // waits for the controller
}

func TestClustersLeaveNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes: make kube")
	}
	t.Parallel()
	var left []*Cluster
	t.Run("run", func(t *testing.T) {
		left = StartAll(t, "a", "b")
	})
	for _, c := range left {
		checkGone(t, c.dir)
		if _, err := net.Dial("tcp", c.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", c.Addr(), err)
		}
	}
}

// checkGone waits until there are neither files in the folder nor processes
// that were started with its name.
func checkGone(t *testing.T, dir string) {
	t.Helper()
	settle(t, func() error {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			return errors.Join(errors.New(dir+" stays"), err)
		}
		lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, path := range lines {
			line, _ := os.ReadFile(path) // else the process has ended
			if bytes.Contains(line, []byte(dir)) {
				return errors.New(string(line) + " runs on")
			}
		}
		return err
	})
}

const childEnv = "MESHCTL_TEST_KUBE_CHILD"

// TestDiesWithItsProcess kills the process of a test in its work.
func TestDiesWithItsProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes: make kube")
	}
	if os.Getenv(childEnv) != "" {
		c := Shared(t, "child")
		if Shared(t, "child") != c {
			t.Fatal("one name has two clusters")
		}
		_, _ = os.Stdout.WriteString("\n" + c.dir + "\n")
		select {} // until killed
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestDiesWithItsProcess$")
	cmd.Env = append(os.Environ(), childEnv+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	var dir string
	for dir == "" && lines.Scan() {
		if strings.Contains(lines.Text(), "meshctl-kube-") {
			dir = lines.Text()
		}
	}
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("the child started no cluster: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	checkGone(t, dir)
}

func TestFailureShowsTheLog(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes: make kube")
	}
	t.Parallel()
	_, err := Run(t.Context(), ServerFlags("--no-such-flag"))
	if err == nil || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Errorf("Run() = %v, want the message of the API server", err)
	}
}
