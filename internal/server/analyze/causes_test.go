package analyze_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/load"
)

// reported returns the faults of a mesh of one cluster, each with its fix.
func reported(t *testing.T, mesh string) string {
	t.Helper()
	var out strings.Builder
	for _, r := range analyze.Reports(checkWith(t, []load.Cluster{{ID: "east", Files: []load.File{{Name: "mesh.yaml", Text: []byte(mesh)}}}}, options(true))) {
		if r.Level != codes.Info {
			fmt.Fprintf(&out, "%s %s %s: %s | %s\n", r.Level, r.Code, r.Origin, r.Text(), r.Fix)
		}
	}
	return out.String()
}

// causesMesh is a healthy mesh with a gateway, a Gateway in its namespace, and a service in another one.
const causesMesh = `
{apiVersion: v1, kind: Namespace, metadata: {name: istio-ingress}}
---
{apiVersion: v1, kind: Pod, metadata: {name: ingress-1, namespace: istio-ingress, labels: {istio: ingressgateway}}, status: {podIP: 10.1.0.1}}
---
{apiVersion: v1, kind: Service, metadata: {name: ingress, namespace: istio-ingress}, spec: {selector: {istio: ingressgateway}, ports: [{name: http, port: 80}]}}
---
{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: public, namespace: istio-ingress}, spec: {selector: {istio: ingressgateway}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["shop.example.com"]}]}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: sample}}
---
{apiVersion: v1, kind: Pod, metadata: {name: helloworld-1, namespace: sample, labels: {app: helloworld, version: v1}}, status: {podIP: 10.1.0.2}}
---
{apiVersion: v1, kind: Pod, metadata: {name: helloworld-2, namespace: sample, labels: {app: helloworld, version: v2}}, status: {podIP: 10.1.0.3}}
---
{apiVersion: v1, kind: Service, metadata: {name: helloworld, namespace: sample}, spec: {clusterIP: 10.0.0.1, selector: {app: helloworld}, ports: [{name: http-web, port: 5000}]}}
---
{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: helloworld, namespace: sample}, spec: {host: helloworld, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]}}
---
{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: helloworld, namespace: sample}, spec: {hosts: [helloworld], http: [{route: [{destination: {host: helloworld, subset: v1}, weight: 90}, {destination: {host: helloworld, subset: v2}, weight: 10}]}]}}
---
{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: shop, namespace: sample}, spec: {hosts: [shop.example.com], gateways: [istio-ingress/public], http: [{route: [{destination: {host: helloworld, subset: v1}}]}]}}
---
{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: viewers, namespace: sample}, spec: {selector: {matchLabels: {app: helloworld}}, rules: [{to: [{operation: {methods: [GET]}}]}]}}
`

// TestCauses: each mistake in a healthy mesh has one finding that names the cause and the nearest right value,
// without its consequences.
func TestCauses(t *testing.T) {
	t.Parallel()
	if found := reported(t, causesMesh); found != "" {
		t.Fatal(found)
	}
	for name, tt := range map[string]struct{ old, new, want string }{
		"a server for another namespace": {
			`hosts: ["shop.example.com"]`, `hosts: ["istio-ingress/shop.example.com"]`,
			`Warning IST0132 VirtualService sample/shop: spec.gateways[0]: Gateway istio-ingress/public has the host shop.example.com only for VirtualServices of namespace istio-ingress (istio-ingress/shop.example.com): clients get 404 | set hosts[0]: "sample/shop.example.com"`,
		},
		"a server for the namespace of the Gateway": {
			`hosts: ["shop.example.com"]`, `hosts: ["./shop.example.com"]`,
			`only for VirtualServices of namespace istio-ingress (./shop.example.com): clients get 404 | set hosts[0]: "sample/shop.example.com"`,
		},
		"a server without routes": {
			`gateways: [istio-ingress/public]`, `gateways: [mesh]`,
			`Warning MSH0112 Gateway istio-ingress/public: spec.servers[0]: no VirtualService routes the calls to the host shop.example.com: clients get 404 | `,
		},
		"a server for TCP without routes": {
			`{port: {number: 80, name: http, protocol: HTTP}, hosts: ["shop.example.com"]}`, `{port: {number: 80, name: http, protocol: HTTP}, hosts: ["shop.example.com"]}, {port: {number: 80, name: tcp, protocol: TCP}, bind: 10.1.0.1, hosts: [db.example]}`,
			`no VirtualService routes the calls to the host db.example: clients get no answer`,
		},
		"a policy for HTTP at a TCP port": {
			"name: http-web", "name: tcp-web",
			`Error MSH0119 AuthorizationPolicy sample/viewers: spec.rules[0].to[0].operation.methods: port 5000 of workload sample/helloworld-1 (tcp-web of Service sample/helloworld) has no HTTP: no rule allows its connections, so all of them are denied | set appProtocol: "http"`,
		},
		"the host of a VirtualService": {
			"spec: {hosts: [helloworld]", "spec: {hosts: [helloword]",
			`Warning MSH0113 VirtualService sample/helloworld: spec.hosts[0]: no service has the host helloword.sample.svc.cluster.local: proxies route requests to it only at port 80, and resolve no name; did you mean helloworld.sample.svc.cluster.local? | set hosts[0]: "helloworld.sample.svc.cluster.local"`,
		},
		"the host of a VirtualService in another namespace": {
			"name: helloworld, namespace: sample}, spec: {hosts: [helloworld]", "name: helloworld, namespace: sample}, spec: {hosts: [helloworld.default.svc.cluster.local]",
			`did you mean helloworld.sample.svc.cluster.local? | `,
		},
		"the short host of a VirtualService": {
			"spec: {hosts: [helloworld]", "spec: {hosts: [helloworld.sample]",
			`Warning MSH0113 VirtualService sample/helloworld: spec.hosts[0]: no service has the host helloworld.sample: proxies route requests to it only at port 80, and resolve no name; did you mean helloworld.sample.svc.cluster.local? | set hosts[0]: "helloworld.sample.svc.cluster.local"`,
		},
		"the short host of a DestinationRule": {
			"spec: {host: helloworld, subsets", "spec: {host: helloworld.sample.svc, subsets",
			`Error IST0174 DestinationRule sample/helloworld: spec.host: no service has the host helloworld.sample.svc: the rule has no effect, so requests of VirtualService sample/helloworld, VirtualService sample/shop to its subsets fail; did you mean helloworld.sample.svc.cluster.local? | set host: "helloworld.sample.svc.cluster.local"`,
		},
		"the host of a DestinationRule": {
			"spec: {host: helloworld, subsets", "spec: {host: helloword, subsets",
			`Error IST0174 DestinationRule sample/helloworld: spec.host: no service has the host helloword.sample.svc.cluster.local: the rule has no effect, so requests of VirtualService sample/helloworld, VirtualService sample/shop to its subsets fail; did you mean helloworld.sample.svc.cluster.local? | set host: "helloworld.sample.svc.cluster.local"`,
		},
		"a Gateway of another namespace": {
			"gateways: [istio-ingress/public]", "gateways: [public]",
			`IST0101 VirtualService sample/shop: spec.gateways[0]: Gateway sample/public does not exist; did you mean istio-ingress/public? | set gateways[0]: "istio-ingress/public"`,
		},
		"a label of a subset": {
			"{name: v2, labels: {version: v2}}", "{name: v2, labels: {version: V2}}",
			`Error IST0173 DestinationRule sample/helloworld: spec.subsets[1].labels: no endpoint of helloworld.sample.svc.cluster.local in this cluster has the labels version=V2, but version=v1, version=v2: requests to subset v2 fail | set labels[version]: "v2"`,
		},
		"a misspelled protocol of a port": {
			"name: http-web", "name: htpp-web",
			`Warning IST0118 Service sample/helloworld: spec.ports[0]: port 5000 has no known protocol, by appProtocol or else by its name: proxies detect it from the first bytes of each connection; did you mean http? | set appProtocol: "http"`,
		},
		"routes for HTTP at a TCP port": {
			"name: http-web", "name: tcp-web",
			`Warning MSH0120 VirtualService sample/helloworld: spec.http: no port of the host helloworld.sample.svc.cluster.local has HTTP: requests through its ports 5000 (tcp-web) are plain TCP connections, to which the routes never apply | set appProtocol: "http"`,
		},
	} {
		if strings.Count(causesMesh, tt.old) != 1 {
			t.Fatalf("%s: %q is %d times in the mesh", name, tt.old, strings.Count(causesMesh, tt.old))
		}
		found := reported(t, strings.Replace(causesMesh, tt.old, tt.new, 1))
		// Both findings of a TCP port are causes.
		if !strings.Contains(found, tt.want) || strings.Count(found, "\n") != 1 && !strings.Contains(tt.new, "tcp-web") {
			t.Errorf("%s: found\n%s\twant %s", name, found, tt.want)
		}
	}
}

// TestOtherPortNames: a port whose name only resembles a protocol has no warning.
func TestOtherPortNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"rpc", "http1", "mtls", "ftp", "h", "web-http"} {
		if found := reported(t, strings.Replace(causesMesh, "name: http-web", "name: "+name, 1)); found != "" {
			t.Errorf("%s: found\n%s", name, found)
		}
	}
}

// TestAllowedTCP: connections to a TCP port that another rule allows are not all denied.
func TestAllowedTCP(t *testing.T) {
	t.Parallel()
	mesh := strings.Replace(causesMesh, "name: http-web", "name: tcp-web", 1)
	policy := func(namespace, spec string) string {
		return fmt.Sprintf("---\n{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: other, namespace: %s}, spec: {%s}}\n", namespace, spec)
	}
	for spec, want := range map[string]string{
		policy("sample", "rules: [{from: [{source: {namespaces: [sample]}}]}]"):                                       "Warning",
		policy("istio-system", "rules: [{}]"):                                                                         "Warning",
		policy("sample", "rules: [{to: [{operation: {ports: ['5000']}}]}]"):                                           "Warning",
		policy("sample", "rules: [{to: [{operation: {ports: ['5001']}}]}]"):                                           "Error",
		policy("sample", "selector: {matchLabels: {app: other}}, rules: [{}]"):                                        "Error",
		policy("istio-ingress", "rules: [{}]"):                                                                        "Error",
		policy("sample", "action: DENY, rules: [{to: [{operation: {ports: ['5001']}}]}]"):                             "Error",
		policy("sample", "rules: [{when: [{key: 'request.headers[a]', values: [b]}]}]"):                               "Error",
		policy("sample", "rules: [{when: [{key: destination.port, values: ['5001']}]}]"):                              "Error",
		policy("sample", "rules: [{from: [{source: {requestPrincipals: ['*']}}, {source: {namespaces: [sample]}}]}]"): "Warning",
		policy("sample", "rules: [{to: [{operation: {methods: [GET]}}, {operation: {ports: ['5000']}}]}]"):            "Warning",
	} {
		if found := reported(t, mesh+spec); !strings.Contains(found, want+" MSH0119 AuthorizationPolicy sample/viewers") {
			t.Errorf("%s: want %s, found\n%s", spec, want, found)
		}
	}
}
