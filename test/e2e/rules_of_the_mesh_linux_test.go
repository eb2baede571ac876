package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// differentExports has two DestinationRules of one host: clients of its namespace get both, others the
// newer one.
const differentExports = `---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: exported-own, namespace: shop, creationTimestamp: "2026-01-01T00:00:00Z"}
spec: {host: exported, exportTo: ["."], trafficPolicy: {connectionPool: {http: {h2UpgradePolicy: UPGRADE}}}, subsets: [{name: one, labels: {version: v1}}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: exported-public, namespace: shop, creationTimestamp: "2026-01-02T00:00:00Z"}
spec: {host: exported, subsets: [{name: two, labels: {version: v2}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: exported, namespace: shop}
spec:
  hosts: [exported]
  http:
  - {match: [{uri: {prefix: /one}}], route: [{destination: {host: exported, subset: one}}], rewrite: {uri: /}}
  - {match: [{uri: {prefix: /two}}], route: [{destination: {host: exported, subset: two}}], rewrite: {uri: /}}
  - {route: [{destination: {host: exported}}]}
`

// TestRulesOfTheMesh: outlier detection of defaultTrafficPolicy ejects endpoints, but requests still go
// to all localities, unless a rule has a setting for them. Of DestinationRules with different exportTo,
// the newest applies, and no subset is lost.
func TestRulesOfTheMesh(t *testing.T) {
	if !inPod(t) {
		return
	}
	objects := strings.Replace(destinationMesh, `"protocolDetectionTimeout: 5s"`,
		`"defaultTrafficPolicy: {outlierDetection: {consecutive5xxErrors: 1, interval: 0.1s, baseEjectionTime: 300s, maxEjectionPercent: 100}}"`, 1)
	for i, s := range []testService{
		{name: "spread"},
		{name: "near", rule: "trafficPolicy: {loadBalancer: {localityLbSetting: {failover: [{from: r1, to: r2}]}}}"},
		{name: "exported"},
	} {
		s.vip, s.protocol, s.port, s.target = fmt.Sprint("10.96.1.", i+1), "http", 80, webPort
		objects += s.objects()
	}
	p := startPod(t, objects+differentExports, "10.11.0.77")
	for _, pod := range []string{"v1", "v2"} {
		p.address(t, podIPs[pod])
		startPodServers(t, pod, podIPs[pod])
	}

	t.Run("all localities", func(t *testing.T) {
		if got := shares(t, "http://10.96.1.1", 50); got["v1"] == 0 || got["v2"] == 0 || got["v1"]+got["v2"] != 50 {
			t.Errorf("shares %v, want both versions", got)
		}
	})
	t.Run("the near locality, by a rule", func(t *testing.T) {
		if got := shares(t, "http://10.96.1.2", 20); got["v1"] != 20 {
			t.Errorf("shares %v", got)
		}
	})
	t.Run("different exports", func(t *testing.T) {
		for path, want := range map[string]string{"/one": "v1", "/two": "v2"} {
			for range 5 {
				if got := requested(t, "http://10.96.1.3"+path, ""); got.status != http.StatusOK || got.body != want {
					t.Errorf("%s: status %d, %q, want %s", path, got.status, got.body, want)
				}
			}
		}
		if got := requested(t, "http://10.96.1.3/protocol", "").body; got != "HTTP/1.1" {
			t.Errorf("requests arrive by %s: the policy of the older rule applies", got)
		}
	})
	t.Run("ejection", func(t *testing.T) { // last, as v1 fails
		eventually(t, "v1 is ejected", func() error {
			requested(t, "http://10.96.1.1/v1-fails", "")
			if got := shares(t, "http://10.96.1.1", 10); got["v2"] != 10 {
				return fmt.Errorf("shares %v", got)
			}
			return nil
		})
	})
}
