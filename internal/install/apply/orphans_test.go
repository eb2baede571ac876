package apply

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestUninstallRevision: with a revision all Leases of its replicas go, also those that the replicas could
// not delete, after the replicas have ended and before they lose their rights. What used the revision is
// reported afterwards.
func TestUninstallRevision(t *testing.T) {
	t.Parallel()
	l := start(t)
	l.install(t, values())
	canary := values()
	canary.Revision, canary.Gateways, canary.ExposeServices, canary.ExposeControlPlane = "canary", nil, false, false
	l.install(t, canary)
	for _, name := range []string{"istiod-1", "istiod-canary-1", "istiod-canary-2"} {
		revision := "default"
		if strings.Contains(name, "canary") {
			revision = "canary"
		}
		l.Apply(t, fmt.Sprintf(`
{apiVersion: v1, kind: Pod, metadata: {name: %[1]s, namespace: istio-system, labels: {app: istiod, istio: pilot, istio.io/rev: %[2]s, sidecar.istio.io/inject: "false"}}, spec: {nodeName: none, containers: [{name: discovery, image: a}]}}
---
{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: meshctl-replica-%[1]s, namespace: istio-system, labels: {meshctl.io/replica: "true"}, annotations: {meshctl.io/pod: istio-system/%[1]s}}, spec: {holderIdentity: %[1]s}}
`, name, revision))
	}
	l.Apply(t, `
{apiVersion: v1, kind: Namespace, metadata: {name: shop, labels: {istio.io/rev: canary}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-1, namespace: shop, labels: {service.istio.io/canonical-name: web, sidecar.istio.io/inject: "false"}, annotations: {sidecar.istio.io/status: "{}", istio.io/rev: canary}}, spec: {nodeName: none, containers: [{name: web, image: a}]}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: stable, labels: {istio-injection: enabled}}}
`)
	for _, name := range []string{"-n istio-system istiod-1", "-n shop web-1"} {
		l.Kubectl(t, `{"status": {"phase": "Running"}}`, append([]string{"patch", "pod", "--subresource", "status", "--type", "merge", "--patch-file", "/dev/stdin"}, strings.Fields(name)...)...)
	}
	rights := make(chan string, 1)
	go func() { // the kubelet
		for l.Kubectl(t, "", "-n", "istio-system", "get", "deployment", "istiod-canary", "--ignore-not-found", "-o", "name") != "" {
			time.Sleep(100 * time.Millisecond)
		}
		rights <- l.Kubectl(t, "", "-n", "istio-system", "get", "rolebindings", "-l", "meshctl.io/installation=meshctl-canary", "-o", "name")
		l.Kubectl(t, "", "-n", "istio-system", "delete", "pod", "-l", "istio.io/rev=canary", "--force", "--grace-period", "0")
	}()
	l.uninstall(t, "meshctl-canary")
	if had := <-rights; !strings.Contains(had, "rolebinding") {
		t.Errorf("while the replicas end, they have no rights: %q", had)
	}
	if left := l.Kubectl(t, "", "-n", "istio-system", "get", "leases", "-o", "name"); strings.TrimSpace(left) != "lease.coordination.k8s.io/meshctl-replica-istiod-1" {
		t.Errorf("Leases are left: %s", left)
	}
	got, err := l.cluster.Orphans(t.Context(), nil)
	if want := "1 pod with proxies of revision canary (web-1.shop), 1 namespace whose label asks for injection (shop)"; err != nil || strings.Join(got, ", ") != want {
		t.Errorf("%q, %v, want %s", got, err, want)
	}
}
