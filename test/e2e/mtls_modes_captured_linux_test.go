package e2e

import (
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestMTLSModesOfCapturedPorts changes the modes of a pod whose connections a real Envoy captures.
// Each caller calls ports of Services, ports that no Service has, which the pass-through filter
// chains serve, and a port of these with a mode of its own, over both IP versions.
func TestMTLSModesOfCapturedPorts(t *testing.T) {
	if !inPod(t) {
		return
	}
	n := startNode(t, redirectedMesh)
	server := n.startPod(t, "server", "10.11.0.5", "fd00:a::5")
	// Ports: HTTP and TCP of a Service, without a Service, and without a Service but with a mode.
	for _, port := range []string{"8080", "9000", "6000", "6001"} {
		servesOn(t, server.listen(t, port), func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "server") })
	}
	callers := mtlsCallers(t, n.dir)
	policies := filepath.Join(n.dir, "mesh", "cluster1", "policies.yaml")
	const workload = "selector: {matchLabels: {app: server}}, "
	for _, tc := range []struct {
		name, policies           string
		service, other, portMode string
	}{
		{"strict", mtlsPolicy("shop", "own", workload+"mtls: {mode: STRICT}"), strict, strict, strict},
		{"permissive", mtlsPolicy("shop", "own", workload+"mtls: {mode: PERMISSIVE}"), permissive, permissive, permissive},
		{"disable", mtlsPolicy("shop", "own", workload+"mtls: {mode: DISABLE}"), disable, disable, disable},
		{
			"permissive, a strict port",
			mtlsPolicy("shop", "own", workload+"mtls: {mode: PERMISSIVE}, portLevelMtls: {6001: {mode: STRICT}}"),
			permissive, permissive, strict,
		},
		{
			"disable, a permissive port",
			mtlsPolicy("shop", "own", workload+"mtls: {mode: DISABLE}, portLevelMtls: {6001: {mode: PERMISSIVE}}"),
			disable, disable, permissive,
		},
		{"inherited, a disabled port", mtlsPolicy("shop", "own", workload+"portLevelMtls: {6001: {mode: DISABLE}}"), strict, strict, disable},
	} {
		replace(t, policies, tc.policies)
		for _, ip := range []string{"10.11.0.5", "fd00:a::5"} {
			for port, permitted := range map[string]string{"8080": tc.service, "9000": tc.service, "6000": tc.other, "6001": tc.portMode} {
				eventuallyReach(t, tc.name, net.JoinHostPort(ip, port), callers, permitted)
			}
		}
	}
}

// databases is a Service of a server that speaks first, and of ports with TLS of the application.
const databases = `
---
apiVersion: v1
kind: Service
metadata: {name: databases, namespace: shop}
spec:
  clusterIP: 10.96.0.81
  selector: {app: server}
  ports: [{name: mysql, port: 3306}, {name: https, port: 8443}, {name: any, port: 8444}]
`

// TestDisabledPortsOfTheApplication calls ports of a pod whose mode is DISABLE at each level: a
// server that speaks first, and TLS of the application, also at a port that no Service has.
func TestDisabledPortsOfTheApplication(t *testing.T) {
	if !inPod(t) {
		return
	}
	const namespacePolicy = `---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
`
	n := startNode(t, strings.Replace(redirectedMesh, namespacePolicy, "", 1)+databases)
	server := n.startPod(t, "server", "10.11.0.5", "fd00:a::5")
	servesEach(t, server.listen(t, "3306"), nil, sendsFirst("banner"))
	for _, port := range []string{"8443", "8444", "6443"} {
		servesTLSOn(t, server.listen(t, port), nil, http.NotFound)
	}
	policies := filepath.Join(n.dir, "mesh", "cluster1", "policies.yaml")
	const workload = "selector: {matchLabels: {app: server}}, "
	for _, tc := range []struct{ name, policies string }{
		{"mesh", mtlsPolicy("istio-system", "default", "mtls: {mode: DISABLE}")},
		{"namespace", mtlsPolicy("shop", "default", "mtls: {mode: DISABLE}")},
		{"workload", mtlsPolicy("shop", "default", "mtls: {mode: STRICT}") + mtlsPolicy("shop", "own", workload+"mtls: {mode: DISABLE}")},
		{
			"ports", mtlsPolicy("shop", "default", "mtls: {mode: STRICT}") + mtlsPolicy("shop", "own", workload+
				"portLevelMtls: {3306: {mode: DISABLE}, 8443: {mode: DISABLE}, 8444: {mode: DISABLE}, 6443: {mode: DISABLE}}"),
		},
		{"all but a port", mtlsPolicy("shop", "own", workload+"mtls: {mode: DISABLE}, portLevelMtls: {8080: {mode: STRICT}}")},
	} {
		// A port is called only after the proxy refuses what the test calls next.
		replace(t, policies, mtlsPolicy("shop", "default", "mtls: {mode: STRICT}"))
		for _, ip := range []string{"10.11.0.5", "fd00:a::5"} {
			eventually(t, "strict before "+tc.name, func() error {
				if ownTLS(net.JoinHostPort(ip, "6443")) == nil {
					return errors.New("the port takes TLS of the application")
				}
				return nil
			})
		}
		replace(t, policies, tc.policies)
		for _, ip := range []string{"10.11.0.5", "fd00:a::5"} {
			for _, port := range []string{"8443", "8444", "6443"} {
				eventually(t, tc.name+", TLS of the application at "+port, func() error { return ownTLS(net.JoinHostPort(ip, port)) })
			}
			eventually(t, tc.name+", a server that speaks first", func() error { return speaksFirst(net.JoinHostPort(ip, "3306"), "banner") })
		}
	}
}
