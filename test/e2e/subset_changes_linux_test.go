package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// changedSubsets returns a mesh in which requests to one service go to the last of some
// subsets. Responses name it.
func changedSubsets(names ...string) string {
	var subsets []string
	for _, name := range names {
		subsets = append(subsets, "{name: "+name+"}")
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: shop, labels: {app: client}}
spec: {serviceAccountName: client}
status: {podIP: 10.11.0.77}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop}
spec:
  clusterIP: 10.96.1.1
  ports: [{name: http, port: 80, targetPort: 9001}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: api, namespace: shop, labels: {kubernetes.io/service-name: api}}
addressType: IPv4
ports: [{name: http, port: 9001}]
endpoints: [{addresses: [10.11.0.1]}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: api, namespace: shop}
spec: {host: api, subsets: [%s]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: api, namespace: shop}
spec:
  hosts: [api]
  http: [{route: [{destination: {host: api, subset: %[2]s}, headers: {response: {set: {x-subset: %[2]s}}}}], retries: {attempts: 0}}]
`, strings.Join(subsets, ", "), names[len(names)-1])
}

// TestSubsetsChangeWithoutErrors adds and removes the subset to which requests go. No
// request fails meanwhile.
func TestSubsetsChangeWithoutErrors(t *testing.T) {
	if !inPod(t) {
		return
	}
	p := startPod(t, changedSubsets("s0"), "10.11.0.77")
	changeSubsets(t, p, 200, func(int) {})
}

// changeSubsets changes the subset again and again, and calls before each time. It fails if a
// request fails meanwhile.
func changeSubsets(t *testing.T, p *pod, changes int, before func(n int)) {
	t.Helper()
	for _, ip := range []string{"10.11.0.1", "10.96.1.1"} {
		p.address(t, ip)
	}
	answers(t, "10.11.0.1:9001", "api")
	var clients sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		clients.Go(func() {
			failed := 0
			for {
				select {
				case <-done:
					return
				default:
				}
				if got := requested(t, "http://10.96.1.1", "api.shop"); got.status != http.StatusOK {
					if failed++; failed < 10 {
						t.Errorf("a request between changes: %+v", got)
					}
				}
			}
		})
	}
	defer func() {
		close(done)
		clients.Wait()
	}()
	for n := range changes {
		names := []string{fmt.Sprint("s", n), fmt.Sprint("s", n+1)}
		if n >= changes/2 { // without an overlap
			names = names[1:]
		}
		before(n)
		replace(t, filepath.Join(p.mesh, "cluster1", "mesh.yaml"), changedSubsets(names...))
		eventually(t, "requests go to the new subset", func() error {
			if got := requested(t, "http://10.96.1.1", "api.shop").header.Get("X-Subset"); got != fmt.Sprint("s", n+1) {
				return fmt.Errorf("they go to %q", got)
			}
			return nil
		})
	}
}
