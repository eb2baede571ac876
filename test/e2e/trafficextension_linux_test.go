package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// luaExtension returns a TrafficExtension that runs Lua code for requests of the pod.
func luaExtension(code string) string {
	return fmt.Sprintf(`---
apiVersion: extensions.istio.io/v1alpha1
kind: TrafficExtension
metadata: {name: lua, namespace: shop}
spec: {selector: {matchLabels: {app: client}}, match: [{mode: CLIENT}], lua: {inlineCode: %q}}
`, code)
}

// TestLuaExtension: requests meet the Lua code of a TrafficExtension and its changes. Code that Envoy
// cannot compile is reported, and the last good code stays. Without good code, requests are refused.
func TestLuaExtension(t *testing.T) {
	if !inPod(t) {
		return
	}
	header := func(value string) string {
		return luaExtension(`function envoy_on_response(h) h:headers():add("x-lua", "` + value + `") end`)
	}
	p := startPod(t, changedSubsets("s0")+header("one"), "10.11.0.77")
	for _, ip := range []string{"10.11.0.1", "10.96.1.1"} {
		p.address(t, ip)
	}
	answers(t, "10.11.0.1:9001", "api")
	config := filepath.Join(p.mesh, "cluster1", "mesh.yaml")
	want := func(status int, value string) {
		t.Helper()
		eventually(t, fmt.Sprint("status ", status, " with header ", value), func() error {
			got := requested(t, "http://10.96.1.1/", "api.shop")
			if got.status != status || got.header.Get("X-Lua") != value {
				return fmt.Errorf("status %d, header %q", got.status, got.header.Get("X-Lua"))
			}
			return nil
		})
	}
	want(200, "one")
	replace(t, config, changedSubsets("s0")+header("two"))
	want(200, "two")
	const broken = "function ("
	replace(t, config, changedSubsets("s0")+luaExtension(broken))
	eventually(t, "a refused extension", func() error {
		log, err := os.ReadFile(filepath.Join(p.dir, "serve.log"))
		if err == nil && !strings.Contains(string(log), "type=ECDS") {
			err = errors.New("it is not in the log of the control plane")
		}
		return err
	})
	want(200, "two")
	replace(t, config, changedSubsets("s0"))
	want(200, "")
	replace(t, config, changedSubsets("s0")+strings.Replace(luaExtension(broken), "name: lua", "name: other", 1))
	want(500, "")
	replace(t, config, changedSubsets("s0"))
	want(200, "")
}
