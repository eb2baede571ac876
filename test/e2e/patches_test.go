package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/test/harness"
)

// patchesMesh is the mesh of the golden resources with patches at every place.
const patchesMesh = "../../internal/server/xdsgen/testdata/patches/cluster1/all.yaml"

// badPatch has a patch whose result would be invalid, and one that works.
const badPatch = `
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: bad, namespace: edge}
spec:
  priority: 1
  configPatches:
  - applyTo: VIRTUAL_HOST
    match: {context: GATEWAY}
    patch: {operation: ADD, value: {name: twice, domains: [shop.example.com]}}
  - applyTo: HTTP_ROUTE
    match: {context: GATEWAY, routeConfiguration: {vhost: {name: "shop.example.com:8880"}}}
    patch: {operation: INSERT_FIRST, value: {name: patched, match: {path: /patched}, direct_response: {status: 200, body: {inline_string: patched}}}}
`

// TestPatchesAreAccepted: real Envoys accept the patched configuration of a sidecar and of a
// gateway. A patch whose result would be invalid has no effect and is reported, and the next
// patch of its object works.
func TestPatchesAreAccepted(t *testing.T) {
	dir := harness.ShortDir(t)
	mesh := filepath.Join(dir, "mesh")
	for _, cluster := range []string{"cluster1", "cluster2"} {
		if err := os.MkdirAll(filepath.Join(mesh, cluster), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	objects, err := os.ReadFile(patchesMesh)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mesh, "cluster1", "all.yaml"), append(objects, badPatch...), 0o600); err != nil {
		t.Fatal(err)
	}
	_, secure := controlPlane(t, dir, mesh)

	sidecar := proxy{"web", "sidecar", "sample", "web", "127.3.0.1", map[string]string{"app": "web"}}
	stop := sidecar.start(t, dir, secure, "ISTIO_META_TIER=gold", "ISTIO_META_ISTIO_VERSION=1.31.1")
	noneRejected(t, "added::127.0.0.1:7999", "virtualInbound::", "10.9.0.1_9000::")
	for _, cluster := range []string{"added::", "outbound|80||web.sample.svc.cluster.local::"} {
		if out := adminGet(t, admin, "/clusters"); !strings.Contains(out, cluster) {
			t.Errorf("no cluster %s in\n%s", cluster, out)
		}
	}
	stop()

	gateway := proxy{"ingress", "router", "edge", "ingress", "127.3.0.1", map[string]string{
		"istio": "ingress", "gateway.networking.k8s.io/gateway-name": "ingress",
	}}
	stop = gateway.start(t, dir, secure)
	defer stop()
	noneRejected(t, "0.0.0.0_8880::")
	if body := called(t, "http://127.3.0.1:8880/patched", "shop.example.com"); body != "patched" {
		t.Errorf("the patched route answers %q", body)
	}
	const want = `EnvoyFilter edge/bad (cluster cluster1): spec.configPatches[0] has no effect on http.8880: another virtual host has the domain "shop.example.com"`
	eventually(t, "the control plane reports the bad patch", func() error {
		if text := adminGet(t, "127.3.0.2:8080", "/ready?verbose"); !strings.Contains(text, want) {
			return fmt.Errorf("it reports\n%s", text)
		}
		return nil
	})
}

// noneRejected waits until Envoy has the listeners, and checks that it rejected nothing.
func noneRejected(t *testing.T, listeners ...string) {
	t.Helper()
	eventually(t, "Envoy has the listeners", func() error {
		text := adminGet(t, admin, "/listeners")
		for _, l := range listeners {
			if !strings.Contains(text, l) {
				return fmt.Errorf("no listener %s in\n%s", l, text)
			}
		}
		return nil
	})
	for line := range strings.SplitSeq(strings.TrimSpace(adminGet(t, admin, "/stats?filter=update_rejected|init_fetch_timeout")), "\n") {
		if !strings.HasSuffix(line, ": 0") {
			t.Errorf("Envoy counts %s", line)
		}
	}
}
