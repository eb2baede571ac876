package commands

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/kube"
)

// installLab runs commands against a cluster without nodes.
type installLab struct {
	t          *testing.T
	cluster    *kube.Cluster
	home, conf string
}

func startInstallLab(t *testing.T) *installLab {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Kubernetes: make kube")
	}
	t.Parallel()
	c := kube.Start(t)
	return &installLab{t, c, t.TempDir(), c.KubeconfigFile(t)}
}

// run runs a command with the kubeconfig and returns its exit code and all its output.
func (l *installLab) run(args ...string) (int, string) {
	l.t.Helper()
	code, stdout, stderr := runMeshctl(l.t, l.home, append(args, "--kubeconfig", l.conf)...)
	return code, stdout + stderr
}

func (l *installLab) must(args ...string) string {
	l.t.Helper()
	code, out := l.run(args...)
	if code != 0 {
		l.t.Fatalf("meshctl %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}
	return out
}

// refused checks that a command changes nothing and says each of the texts.
func (l *installLab) refused(args []string, texts ...string) {
	l.t.Helper()
	before := l.versions()
	code, out := l.run(args...)
	if code != cli.ExitFailure {
		l.t.Errorf("meshctl %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}
	for _, text := range append(texts, "nothing is changed") {
		if !strings.Contains(out, text) {
			l.t.Errorf("meshctl %s: it does not say %q:\n%s", strings.Join(args, " "), text, out)
		}
	}
	if after := l.versions(); after != before {
		l.t.Errorf("meshctl %s changed objects:\n%s\nbefore:\n%s", strings.Join(args, " "), after, before)
	}
}

// versions lists the objects of installations with their versions.
func (l *installLab) versions() string {
	return l.cluster.Kubectl(l.t, "", "get", "deployments,services,configmaps,secrets,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,"+
		"horizontalpodautoscalers,poddisruptionbudgets,mutatingwebhookconfigurations,validatingwebhookconfigurations", "-A", "-l", "meshctl.io/installation",
		"-o", `jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name} {.metadata.resourceVersion}{"\n"}{end}`)
}

// TestUpgradeKeepsValues: an upgrade without flags of an installation with twelve flags changes nothing, and
// one flag changes only its value. Installing with fewer flags asks before it changes the identity of the cluster or deletes
// a gateway.
func TestUpgradeKeepsValues(t *testing.T) {
	l := startInstallLab(t)
	if code, out := l.run("upgrade"); code != cli.ExitFailure || !strings.Contains(out, "meshctl install and all flags") {
		t.Errorf("upgrade without an installation: exit code %d\n%s", code, out)
	}
	values := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(values, []byte("meshConfig: {accessLogFile: /dev/stdout}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	installed := l.must("install", "--wait=false", "--crds", "--cluster-id", "cluster1", "--network", "network1", "--mesh-id", "mesh1",
		"--image", "registry.example/meshctl:v1", "--east-west-gateway", "--ingress-gateway", "--egress-gateway", "--expose-istiod", "--revision-tag", "prod",
		"--file", values, "--set", "meshConfig.trustDomain=mesh.example", "--set", "values.global.proxy.resources.requests.cpu=50m")
	if err := os.Remove(values); err != nil {
		t.Fatal(err)
	}
	if want := "to join it to other clusters: meshctl multicluster link "; !strings.Contains(installed, want) {
		t.Errorf("install does not say %q:\n%s", want, installed)
	}
	l.cluster.Kubectl(t, "", "get", "deployment,service", "istio-egressgateway", "-n", "istio-egress")

	if out := l.must("upgrade", "--dry-run"); strings.Contains(out, "---") || !strings.Contains(out, "0 created, 0 changed") || !strings.Contains(out, "0 deleted") {
		t.Errorf("upgrade without flags would change:\n%s", out)
	}
	before := l.versions()
	out := l.must("upgrade", "--wait=false")
	if after := l.versions(); after != before {
		t.Errorf("upgrade without flags changed objects:\n%s\nbefore:\n%s", after, before)
	}
	if want := "--cluster-id=cluster1 --crds=true --east-west-gateway=true --egress-gateway=true --expose-istiod=true --image=registry.example/meshctl:v1 " +
		"--ingress-gateway=true --mesh-id=mesh1 --network=network1 --revision-tag=prod"; !strings.Contains(out, want) {
		t.Errorf("upgrade does not say what it keeps, %s:\n%s", want, out)
	}
	if want := "meshctl upgraded in "; !strings.Contains(out, want) || strings.Contains(out, "multicluster link") {
		t.Errorf("upgrade does not end with %q:\n%s", want, out)
	}

	bare := []string{"install", "--wait=false", "--crds"}
	l.refused(bare, "changes the name of the cluster from cluster1 to Kubernetes", "changes the mesh ID from mesh1 to none",
		"changes the network from network1 to none", "changes the trust domain from mesh.example to cluster.local",
		"deletes Deployment istio-system/istio-eastwestgateway", "deletes Service istio-ingress/istio-ingressgateway",
		"deletes MutatingWebhookConfiguration istio-revision-tag-prod", "meshctl upgrade", "--yes")
	if out := l.must(append(bare, "--dry-run")...); !strings.Contains(out, "it changes the mesh ID from mesh1 to none") {
		t.Errorf("--dry-run does not name the risk:\n%s", out)
	}

	l.must("upgrade", "--wait=false", "--image", "registry.example/meshctl:v2", "--mesh-id", "mesh2") // the flag means it
	images := l.cluster.Kubectl(t, "", "get", "deployment", "istiod", "-n", "istio-system", "-o", "jsonpath={..image} {..args}")
	if !strings.Contains(images, "registry.example/meshctl:v2") || !strings.Contains(images, "--mesh-id=mesh2") || !strings.Contains(images, "--cluster-id=cluster1") {
		t.Errorf("after an upgrade with --image and --mesh-id: %s", images)
	}
	if out := l.must("upgrade", "--dry-run"); strings.Contains(out, "---") {
		t.Errorf("the values of the last upgrade are not kept:\n%s", out)
	}
	if out := l.must(append(bare, "--yes", "--cluster-id", "cluster1")...); !strings.Contains(out, "1 created") && !strings.Contains(out, "changed") {
		t.Errorf("with --yes:\n%s", out)
	}
	if got := l.versions(); strings.Contains(got, "eastwest") {
		t.Errorf("with --yes the gateway stays:\n%s", got)
	}
}

// TestUninstallAsks: uninstall names the proxies and namespaces that use the control plane, and
// deletes nothing until the user agrees.
func TestUninstallAsks(t *testing.T) {
	l := startInstallLab(t)
	l.must("install", "--wait=false", "--crds", "--cluster-id", "cluster1")
	l.must("install", "--wait=false", "--cluster-id", "cluster1", "--revision", "old", "--revision-tag", "next")
	l.refused([]string{"install", "--wait=false", "--cluster-id", "cluster1", "--revision", "canary", "--revision-tag", "next"},
		"takes MutatingWebhookConfiguration istio-revision-tag-next from installation meshctl-old")
	l.must("install", "--wait=false", "--cluster-id", "cluster1", "--revision", "canary", "--revision-tag", "next", "--yes")
	l.must("uninstall", "--revision", "old")
	l.cluster.Apply(t, `{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {istio.io/rev: next}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: other, labels: {istio-injection: enabled}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: both, labels: {istio-injection: enabled, istio.io/rev: next}}} # istio-injection counts
---
{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: shop, labels: {service.istio.io/canonical-name: web, sidecar.istio.io/inject: "false"},
  annotations: {sidecar.istio.io/status: "{}", istio.io/rev: canary}}, spec: {containers: [{name: a, image: a}]}}`)
	canary := []string{"uninstall", "--revision", "canary"}
	l.refused(canary, "leaves the proxies of 1 pod without a control plane (web.shop)", "ends the injection in 1 namespace (shop)", "--yes")
	if out := l.must(append(canary, "--dry-run")...); !strings.Contains(out, "web.shop") {
		t.Errorf("--dry-run does not name the pod:\n%s", out)
	}
	l.must(append(canary, "-y")...)
	if got := l.versions(); strings.Contains(got, "canary") {
		t.Errorf("with -y:\n%s", got)
	}
	l.refused([]string{"uninstall", "--purge"}, "ends the injection in 2 namespaces (both, other)")
	l.cluster.Kubectl(t, "", "label", "namespace", "other", "both", "istio-injection-")
	l.cluster.Kubectl(t, "", "label", "namespace", "both", "istio.io/rev-")
	l.must("uninstall", "--purge")
	if got := l.versions(); got != "" {
		t.Errorf("after uninstall --purge:\n%s", got)
	}
}

// TestUninstallGateways: uninstall asks before it deletes the gateways of one of two control planes. The
// other one can take them.
func TestUninstallGateways(t *testing.T) {
	l := startInstallLab(t)
	l.must("install", "--wait=false", "--crds", "--cluster-id", "cluster1", "--network", "network1", "--east-west-gateway", "--ingress-gateway")
	l.cluster.Apply(t, `{apiVersion: v1, kind: Secret, metadata: {name: istio-remote-secret-cluster2, namespace: istio-system, labels: {istio/multiCluster: "true"}}}`)
	if out := l.must("install", "--wait=false", "--cluster-id", "cluster1", "--network", "network1", "--revision", "canary"); strings.Contains(out, "multicluster link") {
		t.Errorf("the cluster is joined already:\n%s", out)
	}
	l.refused([]string{"uninstall"}, "deletes 2 gateways (istio-ingress/istio-ingressgateway, istio-system/istio-eastwestgateway), while meshctl-canary stays", "--east-west-gateway")
	move := []string{"upgrade", "--revision", "canary", "--east-west-gateway", "--wait=false"}
	l.refused(move, "takes Deployment istio-system/istio-eastwestgateway from installation meshctl", "--yes")
	l.must(append(move, "--yes")...)
	l.refused([]string{"uninstall"}, "deletes 1 gateway (istio-ingress/istio-ingressgateway)")
	l.must("uninstall", "--yes")
	l.cluster.Kubectl(t, "", "-n", "istio-system", "get", "service/istio-eastwestgateway", "hpa/istio-eastwestgateway", "serviceaccount/istio-eastwestgateway", "gateways.networking.istio.io/cross-network-gateway")
	if rev := l.cluster.Kubectl(t, "", "-n", "istio-system", "get", "deployment", "istio-eastwestgateway", "-o", `jsonpath={.spec.template.metadata.labels.istio\.io/rev}`); rev != "canary" {
		t.Errorf("the pods of the gateway have the revision %q", rev)
	}
	l.must("uninstall", "--revision", "canary")
	if got := l.versions(); got != "" {
		t.Errorf("after uninstall:\n%s", got)
	}
}

// TestUninstallBesideOthers: uninstall deletes nothing of a control plane that runs outside of the cluster.
func TestUninstallBesideOthers(t *testing.T) {
	l := startInstallLab(t)
	renewed := time.Now().Add(time.Hour).UTC().Format("2006-01-02T15:04:05.000000Z07:00") // does not become stale
	l.cluster.Apply(t, fmt.Sprintf(`{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}
---
{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: meshctl-replica-laptop, namespace: istio-system, labels: {meshctl.io/replica: "true"},
  annotations: {meshctl.io/pod: "", meshctl.io/status-addresses: "127.0.0.1:15014"}}, spec: {holderIdentity: laptop, renewTime: %q}}`, renewed))
	if code, out := l.run("uninstall"); code != cli.ExitFailure || !strings.Contains(out, "control plane laptop runs outside of the cluster") {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if left := l.cluster.Kubectl(t, "", "-n", "istio-system", "get", "leases", "-o", "name"); !strings.Contains(left, "meshctl-replica-laptop") {
		t.Errorf("Leases are %q", left)
	}
}

// TestWarningsOfAPIServers: a warning of the API server is a line of the command, without the
// format of a log.
func TestWarningsOfAPIServers(t *testing.T) {
	l := startInstallLab(t)
	l.cluster.Apply(t, `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: doubtful}, spec: {
  matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE], resources: [deployments]}]},
  validations: [{expression: "false", message: doubtful}]}}
---
{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, metadata: {name: doubtful}, spec: {policyName: doubtful, validationActions: [Warn]}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}`) // which uninstall keeps
	for { // the API server enforces a policy some time after it is stored
		out := l.must("install", "--wait=false", "--crds")
		if strings.Contains(out, "\nWarning: the API server says: Validation failed for ValidatingAdmissionPolicy 'doubtful'") {
			return
		}
		if strings.Contains(out, "warnings.go") || t.Context().Err() != nil {
			t.Fatalf("no warning:\n%s", out)
		}
		l.must("uninstall")
	}
}
