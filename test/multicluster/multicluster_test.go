// Package multicluster runs control planes of several clusters on real
// Kubernetes APIs, as a user sets them up.
package multicluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/test/harness"
	"github.com/meshctl/meshctl/test/kube"
)

// deadline is how long anything may take on a slow machine.
const deadline = 2 * time.Minute

// meshctl is the path of the program under test, built once.
var meshctl string

func TestMain(m *testing.M) { os.Exit(harness.Main(m, &meshctl)) }

// eventually waits until condition returns nil, and returns how long that took.
func eventually(t *testing.T, what string, condition func() error) time.Duration {
	t.Helper()
	return harness.Eventually(t, deadline, what, condition)
}

// plane is a control plane on the API of its cluster.
type plane struct {
	*kube.Cluster
	ip         string // that it listens on
	kubeconfig string
	home       string
}

func (p *plane) plain() string  { return net.JoinHostPort(p.ip, "15010") }
func (p *plane) secure() string { return net.JoinHostPort(p.ip, "15012") }

// mesh is two clusters with a network and a root in common, and what the
// control planes work in.
type mesh struct {
	dir        string
	east, west *plane
}

// newMesh starts the clusters and their control planes, which do not know of
// each other yet. Addresses in 127.0.0.0/8 that end in .1 and .2 are used.
func newMesh(t *testing.T, net string) *mesh {
	t.Helper()
	m := &mesh{dir: t.TempDir()}
	m.run(t, "certs", "root-ca", "--out", filepath.Join(m.dir, "root"))
	m.run(t, "certs", "intermediate-ca", "--root", filepath.Join(m.dir, "root"), "--out", filepath.Join(m.dir, "ca"), "east", "west")
	for i, c := range kube.StartAll(t, "east", "west") {
		p := &plane{Cluster: c, ip: fmt.Sprintf("%s.%d", net, i+1), kubeconfig: c.KubeconfigFile(t), home: m.dir}
		c.Apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: istio-system, labels: {topology.istio.io/network: flat}}
---
apiVersion: v1
kind: Namespace
metadata: {name: sample}
---
apiVersion: v1
kind: Service
metadata: {name: helloworld, namespace: sample}
spec: {ports: [{name: http, port: 5000}]}
---
%s`, slice(fmt.Sprintf("10.%d.0.1", i+1))))
		m.serve(t, p)
		if i == 0 {
			m.east = p
		} else {
			m.west = p
		}
	}
	return m
}

// slice is the EndpointSlice of helloworld.
func slice(addresses ...string) string {
	var list strings.Builder
	for _, a := range addresses {
		fmt.Fprintf(&list, "- {addresses: [%q], conditions: {ready: true}}\n", a)
	}
	return `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: helloworld-1, namespace: sample, labels: {kubernetes.io/service-name: helloworld}}
addressType: IPv4
ports: [{name: http, port: 5000, protocol: TCP}]
endpoints:
` + list.String()
}

// serve runs the control plane until the test ends.
func (m *mesh) serve(t *testing.T, p *plane) {
	t.Helper()
	stop := m.background(t, "serve-"+p.Name(), nil, "serve", "--cluster-id", p.Name(), "--mesh-id", "mesh1", "--kubeconfig", p.kubeconfig,
		"--ca-dir", filepath.Join(m.dir, "ca", p.Name()), "--system-namespace", "istio-system",
		"--grpc-addr", p.plain(), "--secure-grpc-addr", p.secure(),
		"--http-addr", net.JoinHostPort(p.ip, "8080"), "--monitoring-addr", net.JoinHostPort(p.ip, "15014"))
	t.Cleanup(stop)
	eventually(t, "control plane "+p.Name()+" is ready", func() error { _, err := p.get("8080", "/ready"); return err })
}

// get asks the control plane for a page.
func (p *plane) get(port, path string) ([]byte, error) {
	client := dial.HTTPClient(10*time.Second, nil)
	defer client.CloseIdleConnections()
	req, err := http.NewRequest(http.MethodGet, "http://"+net.JoinHostPort(p.ip, port)+path, nil)
	if err != nil {
		return nil, err
	}
	dirs := localtoken.Directories(func(name string) (string, bool) { return map[string]string{"HOME": p.home}[name], name == "HOME" })
	token, err := localtoken.Read(dirs, req.Host)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(resp.Body); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", resp.Status, body.String())
	}
	return body.Bytes(), nil
}

// status is how a control plane has a cluster.
type status struct {
	Cluster, State, Cause, Reason, Credential string
	Services, Endpoints                       int
}

func (p *plane) status(cluster string) (status, error) {
	body, err := p.get("8080", "/debug/clusters")
	if err != nil {
		return status{}, err
	}
	var page struct{ Clusters []status }
	if err := json.Unmarshal(body, &page); err != nil {
		return status{}, err
	}
	for _, c := range page.Clusters {
		if c.Cluster == cluster {
			return c, nil
		}
	}
	return status{}, fmt.Errorf("no cluster %s in %s", cluster, body)
}

// waitStatus waits for the status of a cluster at the control plane.
func (p *plane) waitStatus(t *testing.T, cluster, what string, ok func(status) bool) time.Duration {
	t.Helper()
	return eventually(t, fmt.Sprintf("%s tells of %s: %s", p.Name(), cluster, what), func() error {
		st, err := p.status(cluster)
		if err == nil && !ok(st) {
			err = fmt.Errorf("%+v", st)
		}
		return err
	})
}

// link lets a control plane read another cluster, by what create-remote-secret
// prints, piped into kubectl.
func (m *mesh) link(t *testing.T, to, from *plane, flags ...string) {
	t.Helper()
	secret := m.run(t, append([]string{"create-remote-secret", "--kubeconfig", from.kubeconfig, "--name", from.Name()}, flags...)...)
	to.Kubectl(t, secret, "apply", "-f", "-")
}

// run runs a meshctl command to its end and returns its output.
func (m *mesh) run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(meshctl, args...)
	var out, talk strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &talk
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + m.dir}
	if err := cmd.Run(); err != nil {
		t.Fatalf("meshctl %s: %v\n%s", strings.Join(args, " "), err, talk.String())
	}
	return out.String()
}

// background runs a meshctl command until the returned function is called; its
// log is shown when the test fails.
func (m *mesh) background(t *testing.T, name string, env []string, args ...string) (stop func()) {
	t.Helper()
	return m.backgroundIn(t, m.dir, name, env, args...)
}

// backgroundIn is background in another working directory.
func (m *mesh) backgroundIn(t *testing.T, work, name string, env []string, args ...string) (stop func()) {
	t.Helper()
	log := filepath.Join(m.dir, name+".log")
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(meshctl, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, work
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + m.dir}, env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("meshctl %s ended by itself: %v", args[0], err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("meshctl %s: %v", args[0], err)
		}
		_ = out.Close()
		if t.Failed() {
			text, _ := os.ReadFile(log)
			t.Logf("log of %s:\n%s", name, tail(text, 20000))
		}
	}
}

func tail(b []byte, n int) []byte { return b[max(0, len(b)-n):] }
