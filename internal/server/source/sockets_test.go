package source_test

import (
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// objectsWithSocket are the places where an object may name a Unix socket.
var objectsWithSocket = map[string]string{
	"bind of a Gateway":             "{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: a, namespace: 'n'}, spec: {selector: {a: b}, servers: [{port: {number: 0, name: a, protocol: HTTP}, bind: 'SOCKET', hosts: ['*']}]}}",
	"defaultEndpoint of a Sidecar":  "{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: a, namespace: 'n'}, spec: {ingress: [{port: {number: 80, name: a, protocol: HTTP}, defaultEndpoint: 'SOCKET'}]}}",
	"egress of a Sidecar":           "{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: a, namespace: 'n'}, spec: {egress: [{port: {protocol: HTTP}, bind: 'SOCKET', hosts: ['*/*']}]}}",
	"endpoint of a ServiceEntry":    "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: a, namespace: 'n'}, spec: {hosts: [a], resolution: STATIC, ports: [{number: 80, name: a, protocol: HTTP}], endpoints: [{address: 'SOCKET'}]}}",
	"ServiceEntry with DNS":         "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: a, namespace: 'n'}, spec: {hosts: [a], resolution: DNS, ports: [{number: 80, name: a, protocol: HTTP}], endpoints: [{address: 'SOCKET'}]}}",
	"WorkloadEntry":                 "{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: a, namespace: 'n'}, spec: {address: 'SOCKET'}}",
	"defaultEndpoint of a Gateway":  "{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: a, namespace: 'n'}, spec: {selector: {a: b}, servers: [{port: {number: 80, name: a, protocol: HTTP}, defaultEndpoint: 'SOCKET', hosts: ['*']}]}}",
	"bind of an ingress":            "{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: a, namespace: 'n'}, spec: {ingress: [{port: {number: 80, name: a, protocol: HTTP}, bind: 'SOCKET'}]}}",
	"destination of VirtualService": "{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: a, namespace: 'n'}, spec: {hosts: [a], http: [{route: [{destination: {host: 'SOCKET'}}]}]}}",
}

// supportsSockets lists the places that lead to a Unix socket.
var supportsSockets = []string{"bind of a Gateway", "defaultEndpoint of a Sidecar", "egress of a Sidecar", "endpoint of a ServiceEntry"}

// usesSocket reports whether an object with a socket is used, without any report.
func usesSocket(t *testing.T, c *source.Converter, document, socket string) (used bool, report string) {
	t.Helper()
	r, err := c.Decode(objects(t, strings.ReplaceAll(document, "SOCKET", socket))[0], snapshot.Place{})
	if err != nil {
		return false, err.Error()
	}
	for _, w := range r.Warnings {
		report += w.Error()
	}
	return report == "", report
}

// TestUnixSockets: objects name only Unix sockets below the folder that is allowed, and in a Kubernetes
// API none. Everything else is refused or reported.
func TestUnixSockets(t *testing.T) {
	t.Parallel()
	allowed := []string{"unix:///run/apps/a.sock", "unix:///run/apps/b/..c/@d"}
	refused := []string{
		"unix:///etc/istio/proxy/XDS", "unix:///var/run/secrets/workload-spiffe-uds/socket", "unix://", "unix:///", "unix://run/apps/a", "unix://@apps", "unix://@/run/apps/a",
		"unix:///run/apps", "unix:///run/apps/", "unix:///run/apps2/a", "unix:///run/apps/../a", "unix:///run/apps/./a", "unix:///run/apps//a", "unix:///run/apps/a/",
		"unix:///run/apps/../../etc/istio/proxy/XDS", "unix:////run/apps/a", "unix:///run/apps/" + strings.Repeat("a", 100),
	}
	for name, document := range objectsWithSocket {
		supported := false
		for _, s := range supportsSockets {
			supported = supported || s == name
		}
		for _, socket := range append(refused, allowed...) {
			for kind, c := range map[string]*source.Converter{
				"directory": {Cluster: "c"}, "API": {Cluster: "c", RefuseLocal: true}, "folder": {Cluster: "c", SocketDir: "/run/apps"},
			} {
				want := supported && kind == "folder" && (socket == allowed[0] || socket == allowed[1])
				if used, report := usesSocket(t, c, document, socket); used != want {
					t.Errorf("%s, %s of %s: used %t (%s), want %t", name, socket, kind, used, report, want)
				}
			}
		}
	}
	for c, want := range map[*source.Converter]string{
		{Cluster: "c"}:                         `spec.servers[0].bind: "unix:///x" is a Unix socket of the proxy's machine: allow the folder of such sockets with --socket-dir`,
		{Cluster: "c", RefuseLocal: true}:      `spec.servers[0].bind: "unix:///x" is a Unix socket of the proxy's machine, which objects of a Kubernetes API cannot use`,
		{Cluster: "c", SocketDir: "/run/apps"}: `spec.servers[0].bind: "unix:///x" is not a Unix socket below /run/apps (--socket-dir)`,
	} {
		if _, report := usesSocket(t, c, objectsWithSocket["bind of a Gateway"], "unix:///x"); report != want {
			t.Errorf("refused with %q, want %q", report, want)
		}
	}
}

func TestCheckSocketDir(t *testing.T) {
	t.Parallel()
	for dir, want := range map[string]bool{
		"": true, "/run/apps": true, "/etc/istio/apps": true, "/etc/istio/proxy2": true,
		"/": false, ".": false, "apps": false, "/run/apps/": false, "/run/../etc": false, "/etc": false, "/etc/istio": false, "/etc/istio/proxy": false, "/etc/istio/proxy/a": false,
		"@apps": false,
	} {
		if err := source.CheckSocketDir(dir); (err == nil) != want {
			t.Errorf("CheckSocketDir(%q) = %v", dir, err)
		}
	}
}

// TestPortsOfTheProxy: a Sidecar cannot make a port of the proxy public, at any address of its
// machine.
func TestPortsOfTheProxy(t *testing.T) {
	t.Parallel()
	for _, c := range []*source.Converter{{Cluster: "c"}, {Cluster: "c", RefuseLocal: true}} {
		for _, host := range []string{"127.0.0.1", "0.0.0.0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "127.0.0.2", "localhost"} {
			for _, port := range []string{"15000", "15001", "15004", "15006", "15020", "15021", "15053", "15090", "15463", "8080"} {
				want := port == "8080" && (host == "127.0.0.1" || host == "0.0.0.0" || host == "[::1]" || host == "[::]")
				document := objectsWithSocket["defaultEndpoint of a Sidecar"]
				if used, report := usesSocket(t, c, document, host+":"+port); used != want {
					t.Errorf("%s:%s: used %t (%s), want %t", host, port, used, report, want)
				}
			}
		}
	}
}
