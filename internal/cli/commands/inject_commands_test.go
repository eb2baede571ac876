package commands

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/clitest"
)

// TestInjectedCommands: the commands of injected containers know their flags. The redirection
// has the values of the annotations.
func TestInjectedCommands(t *testing.T) {
	t.Parallel()
	const app = `apiVersion: v1
kind: Pod
metadata:
  name: web
  annotations:
    traffic.sidecar.istio.io/includeOutboundIPRanges: 10.0.0.0/8
    traffic.sidecar.istio.io/excludeOutboundIPRanges: 10.1.0.0/16
    traffic.sidecar.istio.io/includeInboundPorts: "8080,9090"
    traffic.sidecar.istio.io/excludeInboundPorts: "9999"
    traffic.sidecar.istio.io/includeOutboundPorts: "443"
    traffic.sidecar.istio.io/excludeOutboundPorts: "5432"
    traffic.sidecar.istio.io/excludeInterfaces: eth1
    istio.io/reroute-virtual-interfaces: net1
spec: {containers: [{name: app, image: "app:1"}]}
`
	path := filepath.Join(t.TempDir(), "app.yaml")
	if err := os.WriteFile(path, []byte(app), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (int, string, string) { return clitest.Run(t, t.TempDir(), args, groups()...) }
	code, out, talk := run("inject", "-f", path, "--offline")
	if code != cli.ExitOK {
		t.Fatalf("exit code %d: %s", code, talk)
	}
	var pod corev1.Pod
	if err := yaml.Unmarshal([]byte(out), &pod); err != nil {
		t.Fatal(err)
	}
	if len(pod.Spec.InitContainers) != 2 {
		t.Fatalf("init containers are %v", pod.Spec.InitContainers)
	}
	code, rules, talk := run(append(slices.Clone(pod.Spec.InitContainers[0].Args), "--print")...)
	if code != cli.ExitOK {
		t.Fatalf("istio-init: exit code %d: %s", code, talk)
	}
	for _, value := range []string{"10.0.0.0/8", "10.1.0.0/16", "8080", "443", "5432", "eth1", "net1", "15001", "15006", "1337"} {
		if !strings.Contains(rules, value) {
			t.Errorf("the rules lack %s:\n%s", value, rules)
		}
	}
	proxy := &pod.Spec.InitContainers[1]
	for _, args := range [][]string{proxy.Args, proxy.Lifecycle.PreStop.Exec.Command[1:], {"agent", "wait"}} {
		if code, _, talk := run(append(slices.Clone(args), "--help")...); code != cli.ExitOK || strings.Contains(talk, "unknown") {
			t.Errorf("%q: exit code %d: %s", args, code, talk)
		}
	}
}
