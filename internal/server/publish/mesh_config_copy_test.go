package publish

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	testkube "github.com/meshctl/meshctl/test/kube"
)

// TestMeshConfigCopy: a control plane of a revision keeps the ConfigMap of the revision equal to the
// ConfigMap istio: it adds, changes and removes keys, and reverts edits. It does not write to a
// ConfigMap of the same name that is no copy, and makes none.
func TestMeshConfigCopy(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	c := testkube.Start(t)
	c.Apply(t, `{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: "trustDomain: a", meshNetworks: "networks: {}"}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: istio-canary, namespace: istio-system, annotations: {meshctl.io/copy-of: istio}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: istio-foreign, namespace: istio-system}, data: {mesh: "trustDomain: istio"}}
`)
	for _, revision := range []string{"canary", "foreign", "none", "default", ""} {
		m := NewMeshConfigCopy(MeshConfigCopyConfig{
			API: c.Config(), Namespace: "istio-system", Revision: revision, Interval: 50 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		})
		go func() {
			if err := m.Run(t.Context()); err != nil {
				t.Error(err)
			}
		}()
	}
	data := func(name string) string {
		return c.Kubectl(t, "", "get", "configmap", name, "-n", "istio-system", "-o", "jsonpath={.data}")
	}
	patch := func(name, text string) {
		c.Kubectl(t, "", "patch", "configmap", name, "-n", "istio-system", "--type=merge", "-p", text)
	}
	wait := func(want string) {
		t.Helper()
		for end := time.Now().Add(time.Minute); data("istio-canary") != want; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("the copy is %s, want %s", data("istio-canary"), want)
			}
		}
	}
	wait(`{"mesh":"trustDomain: a","meshNetworks":"networks: {}"}`)
	patch("istio", `{"data": {"mesh": "trustDomain: b", "meshNetworks": null}}`)
	wait(`{"mesh":"trustDomain: b"}`)
	patch("istio-canary", `{"data": {"mesh": "trustDomain: c"}}`)
	wait(`{"mesh":"trustDomain: b"}`)
	if got := data("istio-foreign"); got != `{"mesh":"trustDomain: istio"}` {
		t.Errorf("a ConfigMap that is no copy: %s", got)
	}
	if got := c.Kubectl(t, "", "get", "configmaps", "-n", "istio-system", "-o", "name"); strings.Contains(got, "istio-none") || data("istio") != `{"mesh":"trustDomain: b"}` {
		t.Errorf("ConfigMaps %s, istio %s", got, data("istio"))
	}
}
