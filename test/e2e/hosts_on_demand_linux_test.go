package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/meshctl/meshctl/internal/dial"
)

// manyHosts returns a ServiceEntry with so many hosts that proxies request virtual hosts on demand.
func manyHosts() string {
	hosts := make([]string, 2_001)
	for i := range hosts {
		hosts[i] = fmt.Sprintf("h%d.many.example", i)
	}
	return entry("many", strings.Join(hosts, ", "), "10.11.0.1")
}

// entry returns a ServiceEntry for hosts at port 80, served at port 9001 of an address.
func entry(name, hosts, ip string) string {
	return fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: shop}
spec: {hosts: [%s], ports: [{number: 80, name: http, protocol: HTTP, targetPort: 9001}], resolution: STATIC, endpoints: [{address: %s}]}
`, name, hosts, ip)
}

// heldHosts returns the names of the virtual hosts that the Envoy of a pod has at port 80.
func heldHosts(t *testing.T) []string {
	t.Helper()
	var dump struct {
		Configs []struct {
			RouteConfig struct {
				Name         string
				VirtualHosts []struct{ Name string } `json:"virtual_hosts"`
			} `json:"route_config"`
		}
	}
	if err := json.Unmarshal([]byte(adminGet(t, "localhost:15000", "/config_dump?resource=dynamic_route_configs")), &dump); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, c := range dump.Configs {
		if c.RouteConfig.Name == "80" {
			for _, h := range c.RouteConfig.VirtualHosts {
				out = append(out, h.Name)
			}
		}
	}
	slices.Sort(out)
	return out
}

// TestRequestedHosts: a proxy that sees many hosts gets the virtual hosts that requests need, and
// their changes. Requests to other hosts behave as without virtual host discovery.
func TestRequestedHosts(t *testing.T) {
	if !inPod(t) {
		return
	}
	base := changedSubsets("s0") + manyHosts() + entry("wild", `"*.wild.example"`, "10.11.0.2") + entry("exact", "exact.wild.example", "10.11.0.1")
	p := preparePod(t, base, "10.11.0.77")
	makeAuthorities(t, p.dir)
	stop := serveMesh(t, p.dir, p.mesh, onDemand)
	defer func() { stop() }()
	p.startProxy(t, secureXDS)
	for ip, answer := range map[string]string{"10.11.0.1": "api", "10.11.0.2": "wild"} {
		p.address(t, ip)
		answers(t, ip+":9001", answer)
	}
	p.address(t, "10.97.0.1")
	answers(t, "10.97.0.1:80", "stranger")
	const url = "http://10.97.0.1/"
	want := func(host, body string) {
		t.Helper()
		eventually(t, "request to "+host, func() error {
			if got := requested(t, url, host); got.body != body {
				return fmt.Errorf("%s: %d %q, want %q", host, got.status, got.body, body)
			}
			return nil
		})
	}
	want("api.shop", "api")
	if got := heldHosts(t); !slices.Equal(got, []string{"80/api.shop", "80/on demand"}) {
		t.Errorf("virtual hosts %q", got)
	}
	hosts := map[string]string{
		"API.shop:80": "api", "api.shop.svc.cluster.local:1234": "api", "unknown.example": "stranger", "unknown.example:80": "stranger",
		"a.wild.example": "wild", "exact.wild.example": "api", "b.wild.example": "wild", "h2000.many.example": "api",
	}
	for host, answer := range hosts {
		if got := requested(t, url, host); got.status != http.StatusOK || got.body != answer {
			t.Errorf("the first request to %s: %d %q, want %q", host, got.status, got.body, answer)
		}
	}
	if got := heldHosts(t); len(got) != 9 {
		t.Errorf("virtual hosts %q, want one for each host without its port, and the first one", got)
	}
	t.Run("body", func(t *testing.T) {
		for i, size := range []int{0, 1, 100_000, 5_000_000} {
			host := fmt.Sprintf("h%d.many.example", i)
			if got := posted(t, url, host, size); got != "200 api" {
				t.Errorf("the first request to %s with %d bytes: %s", host, size, got)
			}
		}
	})
	t.Run("many at once", func(t *testing.T) {
		var all sync.WaitGroup
		for i := range 200 {
			all.Go(func() {
				host := fmt.Sprintf("h%d.many.example", 100+i/10)
				if got := requested(t, url, host); got.body != "api" {
					t.Errorf("%s: %d %q", host, got.status, got.body)
				}
			})
		}
		all.Wait()
	})
	config := filepath.Join(p.mesh, "cluster1", "mesh.yaml")
	t.Run("changed", func(t *testing.T) {
		const only = `---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: only, namespace: shop}
spec: {hosts: [h2000.many.example], http: [{match: [{uri: {prefix: /only}}], directResponse: {status: 299}}]}
`
		replace(t, config, base+only)
		eventually(t, "the changed route", func() error {
			if got := requested(t, url+"only", "h2000.many.example"); got.status != 299 {
				return fmt.Errorf("%d %q", got.status, got.body)
			}
			return nil
		})
		// A virtual host without a route for the request is not requested again and again.
		for range 3 {
			if got := requested(t, url, "h2000.many.example"); got.status != http.StatusNotFound {
				t.Errorf("no route: %d %q", got.status, got.body)
			}
		}
		replace(t, config, base+entry("known", "unknown.example", "10.11.0.1")+entry("more", "b.wild.example", "10.11.0.1"))
		want("unknown.example", "api")
		want("b.wild.example", "api")
		want("a.wild.example", "wild")
		want("h2000.many.example", "api")
		replace(t, config, base)
		want("unknown.example", "stranger")
		want("b.wild.example", "wild")
	})
	t.Run("registry only", func(t *testing.T) {
		replace(t, config, base+`---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: shop}
spec: {outboundTrafficPolicy: {mode: REGISTRY_ONLY}, egress: [{hosts: ["*/*"]}]}
`)
		for _, host := range []string{"unknown.example", "other.example"} {
			eventually(t, "refusal of "+host, func() error {
				if got := requested(t, url, host); got.status != http.StatusBadGateway {
					return fmt.Errorf("%d %q", got.status, got.body)
				}
				return nil
			})
		}
		want("api.shop", "api")
		replace(t, config, base)
		want("other.example", "stranger")
	})
	t.Run("restart", func(t *testing.T) {
		held := len(heldHosts(t))
		for i, flags := range [][]string{{onDemand}, {}, {onDemand}} {
			stop()
			if got := requested(t, url, "api.shop"); got.body != "api" {
				t.Errorf("without a control plane: %d %q", got.status, got.body)
			}
			stop = serveMesh(t, p.dir, p.mesh, flags...)
			sentHosts(t, i == 0) // without the flag no more, until the proxy starts again
			want(fmt.Sprintf("h%d.many.example", 500+i), "api")
			want("api.shop", "api")
			if got := len(heldHosts(t)); i == 0 && got <= held || i > 0 && got < 2_000 {
				t.Errorf("%d virtual hosts, %d before the restart", got, held)
			}
		}
	})
	refusedNothing(t, "localhost:15000")
}

// posted posts a number of bytes, and returns the status and the answer.
func posted(t *testing.T, url, host string, size int) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(strings.Repeat("x", size)))
	if err != nil {
		t.Fatal(err)
	}
	req.Host = host
	client := dial.HTTPClient(deadline, nil)
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return err.Error()
	}
	body, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return err.Error()
	}
	return fmt.Sprint(resp.StatusCode, " ", string(body))
}
