package docs

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/meshctl/meshctl/test/harness"
	"github.com/meshctl/meshctl/test/kube"
)

// A world is what the commands of a page stand on.
type world struct {
	start func(*testing.T) place
	// once is that pages share it, as they change nothing in it that others see.
	once bool
}

// A place is where commands run.
type place struct {
	env   []string // NAME=value
	files []string // copied into the directory
}

// worlds has them by the name of their mark.
var worlds = map[string]world{
	"alone":    {start: func(*testing.T) place { return place{} }},
	"clusters": {start: clusters},
	"clone":    {start: clone},
	"mesh":     {start: mesh, once: true},
}

// clusters are two empty Kubernetes clusters, cluster1 and cluster2 in the kubeconfig.
func clusters(t *testing.T) place {
	return place{env: []string{kubeconfig(t, kube.StartAll(t, "cluster1", "cluster2"))}}
}

// clone is a clone of the repository, with two clusters that know Istio's kinds.
func clone(t *testing.T) place {
	all := kube.StartAll(t, "cluster1", "cluster2")
	for _, c := range all {
		c.Apply(t, kind("networking.istio.io", "Gateway", "gateways"))
		c.Apply(t, kind("security.istio.io", "PeerAuthentication", "peerauthentications"))
	}
	return place{
		env:   []string{kubeconfig(t, all)},
		files: []string{filepath.Join(repository, "deploy"), filepath.Join(repository, "examples")},
	}
}

// kind is a CustomResourceDefinition that takes anything.
func kind(group, kind, plural string) string {
	return fmt.Sprintf(`
{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: %[3]s.%[1]s},
  spec: {group: %[1]s, scope: Namespaced, names: {kind: %[2]s, plural: %[3]s, singular: %[4]s},
    versions: [{name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}}
`, group, kind, plural, strings.ToLower(kind))
}

func kubeconfig(t *testing.T, all []*kube.Cluster) string {
	var paths []string
	for _, c := range all {
		paths = append(paths, c.KubeconfigFile(t))
	}
	return "KUBECONFIG=" + strings.Join(paths, ":")
}

// controlPlanes and proxies are the pods of the mesh that processes stand for, with
// their addresses on this machine. Envoy's admin interface of web-1 is where pages have
// one, at 127.0.0.1:15000, and so are the status pages of istiod-a, at 127.0.0.1:8080.
var (
	controlPlanes = map[string]string{"istiod-a": "127.0.0.1", "istiod-b": "127.0.0.2"}
	proxies       = map[string]string{"web-1": "127.0.0.1", "web-2": "127.0.0.3"}
)

// meshObjects are in both clusters. NODE is the pods' Node, and N the cluster's number.
const meshObjects = `
{apiVersion: v1, kind: Namespace, metadata: {name: istio-system, labels: {topology.istio.io/network: networkN}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: apps}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: sample}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: bank}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: web, namespace: apps}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-1, namespace: apps, labels: {app: web}},
  spec: {nodeName: NODE, serviceAccountName: web, containers: [{name: istio-proxy, image: none}]},
  status: {phase: Running, podIP: 10.1.0.2, podIPs: [{ip: 10.1.0.2}], conditions: [{type: Ready, status: "True"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-2, namespace: apps, labels: {app: web}},
  spec: {nodeName: NODE, serviceAccountName: web, containers: [{name: istio-proxy, image: none}]},
  status: {phase: Running, podIP: 10.1.0.3, podIPs: [{ip: 10.1.0.3}], conditions: [{type: Ready, status: "True"}]}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: apps},
  spec: {replicas: 0, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: none}]}}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: istiod-a, namespace: istio-system, labels: {app: istiod}},
  spec: {nodeName: NODE, containers: [{name: discovery, image: none}]},
  status: {phase: Running, podIP: 10.1.0.4, podIPs: [{ip: 10.1.0.4}], conditions: [{type: Ready, status: "True"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: istiod-b, namespace: istio-system, labels: {app: istiod}},
  spec: {nodeName: NODE, containers: [{name: discovery, image: none}]},
  status: {phase: Running, podIP: 10.1.0.5, podIPs: [{ip: 10.1.0.5}], conditions: [{type: Ready, status: "True"}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: apps}, spec: {selector: {app: web}, ports: [{name: http, port: 80}]}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: istiod, namespace: istio-system},
  spec: {replicas: 0, selector: {matchLabels: {app: istiod}}, template: {metadata: {labels: {app: istiod}}, spec: {containers: [{name: discovery, image: none}]}}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: helloworld-1, namespace: sample, labels: {app: helloworld, security.istio.io/tlsMode: istio}},
  spec: {nodeName: NODE, containers: [{name: istio-proxy, image: none}]},
  status: {phase: Running, podIP: 10.1N.0.2, podIPs: [{ip: 10.1N.0.2}], conditions: [{type: Ready, status: "True"}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: helloworld, namespace: sample}, spec: {selector: {app: helloworld}, ports: [{name: http, port: 5000}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: eastwest, namespace: istio-system, labels: {topology.istio.io/network: networkN}},
  spec: {type: LoadBalancer, ports: [{name: tls, port: 15443}]}, status: {loadBalancer: {ingress: [{ip: 192.168.N.242}]}}}
`

// mesh is a mesh as pages have it: the pods web-1 and web-2 in the namespace apps, which
// deploy/web has in both clusters, and the control planes istiod-a and istiod-b of
// cluster1, whose status pages the reader may read.
func mesh(t *testing.T) place {
	all := kube.StartAll(t, "cluster1", "cluster2")
	dir := harness.ShortDir(t)
	env := []string{
		kubeconfig(t, all), "HOME=" + dir, "XDG_RUNTIME_DIR=" + filepath.Join(dir, "run"),
		"PATH=" + tools + ":" + os.Getenv("PATH"),
	}
	if err := os.Mkdir(filepath.Join(dir, "run"), 0o700); err != nil {
		t.Fatal(err)
	}
	for i, c := range all {
		kubelet := c.Kubelet(t)
		kubelet.Hosts = map[string]string{}
		for _, pods := range []map[string]string{controlPlanes, proxies} {
			maps.Copy(kubelet.Hosts, pods)
		}
		number := strconv.Itoa(i + 1)
		c.Apply(t, kind("networking.istio.io", "WorkloadEntry", "workloadentries"))
		c.Apply(t, strings.NewReplacer("NODE", kubelet.Node, "networkN", "network"+number, "1N", "1"+number, ".N.", "."+number+".").Replace(meshObjects))
	}
	for _, command := range []string{
		"meshctl certs root-ca --out certs",
		"meshctl certs intermediate-ca --root certs --out certs cluster1 cluster2",
		"meshctl certs cacerts certs --apply --context cluster1,cluster2",
		"meshctl multicluster link cluster1 cluster2",
		"kubectl create token web -n apps --audience istio-ca > web.token",
		"chmod 600 web.token",
	} {
		cmd := exec.CommandContext(t.Context(), "bash", "-c", command)
		cmd.Dir, cmd.Env = dir, env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	for name, host := range controlPlanes {
		background(t, dir, append(env, "POD_NAME="+name, "POD_NAMESPACE=istio-system"), name,
			"meshctl", "serve", "--context", "cluster1", "--cluster-id", "cluster1", "--grpc-addr", "", "--state-dir", filepath.Join(dir, name),
			"--secure-grpc-addr", host+":15012", "--http-addr", host+":8080", "--monitoring-addr", host+":15014",
			"--profiling")
	}
	for name, host := range proxies {
		discovery := "127.0.0.1"
		if name == "web-2" {
			discovery = "127.0.0.2"
		}
		background(t, dir, append(env, "ISTIO_METAJSON_LABELS={\"app\":\"web\"}"), name,
			"meshctl", "agent", "--pod-name", name, "--pod-namespace", "apps", "--service-account", "web", "--cluster-id", "cluster1",
			"--discovery-address", discovery+":15012", "--root-ca", "certs/root-cert.pem", "--token", "web.token",
			"--bind-address", host, "--instance-ip", map[string]string{"web-1": "10.1.0.2", "web-2": "10.1.0.3"}[name],
			"--config-path", filepath.Join(dir, name), "--envoy", filepath.Join(tools, "envoy"), "--concurrency", "1")
	}
	for _, host := range proxies {
		waitFor(t, "http://"+host+":15021/healthz/ready")
	}
	return place{
		env:   []string{env[0], env[2]},
		files: []string{filepath.Join(dir, "certs")},
	}
}

// background runs a program until the test ends. A failed test shows its log.
func background(t *testing.T, dir string, env []string, name string, program string, args ...string) {
	t.Helper()
	var log bytes.Buffer
	cmd := exec.CommandContext(t.Context(), filepath.Join(tools, program), args...)
	cmd.Dir, cmd.Env = dir, env
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = endTimeout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := cmd.Wait()
		if t.Failed() {
			t.Logf("%s: %v\n%s", name, err, tail(log.String()))
		}
	})
}

// waitFor waits until a URL answers with success.
func waitFor(t *testing.T, url string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "curl", "--silent", "--show-error", "--fail", "--max-time", "5",
		"--retry", "120", "--retry-delay", "1", "--retry-all-errors", url).CombinedOutput()
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w\n%s", url, err, out))
	}
}
