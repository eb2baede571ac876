package e2e

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
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
