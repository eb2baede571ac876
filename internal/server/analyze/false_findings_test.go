package analyze_test

import (
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/load"
)

const ingressPods = `
apiVersion: v1
kind: Pod
metadata: {name: ingress-1, namespace: istio-ingress, labels: {istio: ingressgateway}}
status: {podIP: 10.1.0.1}
---
apiVersion: v1
kind: Service
metadata: {name: ingress, namespace: istio-ingress}
spec: {selector: {istio: ingressgateway}, ports: [{name: https, port: 443, targetPort: 8443}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: paths, namespace: istio-ingress}
spec:
  selector: {matchLabels: {istio: ingressgateway}}
  action: DENY
  rules: [{to: [{operation: {paths: [/admin]}}]}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: public, namespace: istio-ingress}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: 8443, name: https, protocol: HTTPS}, hosts: [a.example], tls: TLS}
`

const subsetMesh = `
apiVersion: v1
kind: Service
metadata: {name: a, namespace: shop}
spec: {clusterIP: 10.0.0.1, selector: {app: a}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: a-1, namespace: shop, labels: {app: a, version: v1}}
spec: {nodeName: one, containers: []}
status: {podIP: 10.1.0.1}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: a, namespace: shop}
spec: {host: a, subsets: [{name: s, labels: LABELS}]}
`

const subsetNode = `---
apiVersion: v1
kind: Node
metadata: {name: one, labels: {topology.kubernetes.io/region: eu, topology.kubernetes.io/zone: eu-1}}
`

const subsetSlice = `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a-1, namespace: shop, labels: {kubernetes.io/service-name: a}}
addressType: IPv4
endpoints: [{addresses: [10.1.0.1], targetRef: {kind: Pod, name: a-1, namespace: shop}}]
ports: [{name: http, port: 80}]
`

const sharedCertificate = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: one, namespace: shop}
spec: {selector: {a: b}, servers: [{bind: BIND1, port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.example], tls: {mode: SIMPLE, credentialName: c}}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: two, namespace: shop}
spec: {selector: {a: b}, servers: [{bind: BIND2, port: {number: 443, name: https, protocol: HTTPS}, hosts: [b.example], tls: {mode: SIMPLE, credentialName: c}}]}
`

const claimRoute = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: public, namespace: shop}
spec: {selector: {istio: ingressgateway}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [a.example]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: a, namespace: shop}
spec: {hosts: [a.example], gateways: [public], http: [{match: [{headers: {"@request.auth.claims.group": {exact: admin}}}], directResponse: {status: 200}}]}
---
`

const tokens = `
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: tokens, namespace: istio-ingress}
spec: {selector: {matchLabels: LABELS}, jwtRules: [{issuer: a, jwksUri: "https://a.example/keys"}]}
`

// selectingPods returns a pod without an address, and a policy that selects pods.
func selectingPods(app string) string {
	return `
apiVersion: v1
kind: Pod
metadata: {name: a-1, namespace: shop, labels: {app: a}}
spec: {containers: []}
status: {phase: Pending}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: a, namespace: shop}
spec: {selector: {matchLabels: {app: ` + app + `}}, mtls: {mode: STRICT}}
`
}

// servicePods is selectingPods with a Service.
func servicePods(app string) string {
	return selectingPods(app) + `---
apiVersion: v1
kind: Service
metadata: {name: a, namespace: shop}
spec: {clusterIP: 10.0.0.1, selector: {app: ` + app + `}, ports: [{name: http, port: 80}]}
`
}

// wildcards returns two VirtualServices, and a service of example.com.
func wildcards(first, second string) string {
	const route = ", http: [{route: [{destination: {host: a.example.com}}]}]}\n"
	return `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: a, namespace: shop}
spec: {hosts: [a.example.com], resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: one, namespace: shop}
spec: {hosts: [` + first + "]" + route + `---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: two, namespace: web}
spec: {hosts: [` + second + "]" + route
}

func sourceNamespaces(name string) string {
	return `
apiVersion: v1
kind: Namespace
metadata: {name: web}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: a, namespace: web}
spec: {rules: [{from: [{source: {namespaces: [` + name + `]}}]}]}
`
}

// deployment returns a Deployment with annotations of its own and of its pods.
func deployment(own, pods string) string {
	return `
apiVersion: apps/v1
kind: Deployment
metadata: {name: a, namespace: shop, annotations: {` + own + `}}
spec: {template: {metadata: {annotations: {` + pods + `}}, spec: {containers: []}}}
`
}

const cronJob = `
apiVersion: batch/v1
kind: CronJob
metadata: {name: a, namespace: shop}
spec: {jobTemplate: {spec: {template: {metadata: {annotations: {networking.istio.io/exportTo: "*"}}, spec: {containers: []}}}}}
`

func unserved(routes string) string {
	return `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: a, namespace: shop}
spec: {hosts: [a.example], ` + routes + `}
`
}

func delayed(percent string) string {
	return `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: a, namespace: shop}
spec: {hosts: [a.example], http: [{fault: {delay: {fixedDelay: 1s, ` + percent + `}}, route: [{destination: {host: a.example}}]}]}
`
}

// TestNoFalseFindings: what is right has no finding of the code, and what is wrong beside it has.
func TestNoFalseFindings(t *testing.T) {
	t.Parallel()
	service := func(namespace string) string {
		return "apiVersion: v1\nkind: Service\nmetadata: {name: dns, namespace: " + namespace + "}\nspec: {selector: {a: b}, ports: [{name: metrics, port: 9153}]}\n"
	}
	subset := func(labels, further string) string {
		return strings.ReplaceAll(subsetMesh, "LABELS", labels) + further
	}
	gateways := func(first, second string) string {
		return strings.NewReplacer("BIND1", first, "BIND2", second).Replace(sharedCertificate)
	}
	claim := func(authentication string) string { return claimRoute + authentication }
	for name, tt := range map[string]struct {
		code, mesh string
		want       bool
	}{
		"paths at a gateway that terminates TLS":     {"MSH0119", strings.Replace(ingressPods, "TLS}\n", "{mode: SIMPLE, credentialName: a}}\n", 1), false},
		"paths at a gateway that passes on TLS":      {"MSH0119", strings.Replace(ingressPods, "TLS}\n", "{mode: PASSTHROUGH}}\n", 1), true},
		"port names of Kubernetes' own namespaces":   {"IST0118", service("kube-system"), false},
		"port names of namespaces with applications": {"IST0118", service("shop"), true},

		"a subset by the region of a known node":          {"IST0173", subset("{topology.kubernetes.io/region: eu}", subsetNode), false},
		"a subset by another region than the known node":  {"IST0173", subset("{topology.kubernetes.io/region: us}", subsetNode), true},
		"a subset by a region and a missing label":        {"IST0173", subset("{topology.kubernetes.io/region: eu, version: v9}", subsetNode), true},
		"a subset by region, no node is known":            {"IST0173", subset("{topology.kubernetes.io/region: eu}", ""), false},
		"a subset by region, nodes of slices are unknown": {"IST0173", subset("{topology.kubernetes.io/zone: eu-1}", subsetSlice), false},
		"a subset by the locality label of the pod":       {"IST0173", strings.Replace(subset("{topology.kubernetes.io/region: eu}", ""), "app: a", "app: a, topology.istio.io/locality: eu.eu-1", 1), false},
		"a subset by another cluster, one is known":       {"IST0173", subset("{topology.istio.io/cluster: west}", ""), false},
		"a subset by network, none is known":              {"IST0173", subset("{topology.istio.io/network: west}", ""), false},
		"a subset by version without EndpointSlices":      {"IST0173", subset("{version: v9}", ""), true},
		"a subset of a pod without an address":            {"IST0173", strings.Replace(subset("{version: v9}", ""), "status: {podIP: 10.1.0.1}", "", 1), true},

		"one certificate at two addresses":           {"IST0138", gateways("10.0.0.1", "10.0.0.2"), false},
		"one certificate at a socket and an address": {"IST0138", gateways("unix:///a.sock", "10.0.0.1"), false},
		"one certificate at one address":             {"IST0138", gateways("10.0.0.1", "10.0.0.1"), true},
		"one certificate at an address and all":      {"IST0138", gateways("10.0.0.1", "0.0.0.0"), true},
		"one certificate at all addresses":           {"IST0138", gateways("\"\"", "\"\""), true},

		"claims without RequestAuthentication, no pod known": {"IST0149", claim(""), true},
		"claims with one for the gateway, no pod known":      {"IST0149", claim(strings.Replace(tokens, "LABELS", "{istio: ingressgateway}", 1)), false},
		"claims with one for all, no pod known":              {"IST0149", claim(strings.Replace(tokens, "selector: {matchLabels: LABELS}, ", "", 1)), false},
		"claims with one for another, no pod known":          {"IST0149", claim(strings.Replace(tokens, "LABELS", "{istio: other}", 1)), true},

		"a selector of a pod without an address":  {"IST0127", selectingPods("a"), false},
		"a selector of no pod without an address": {"IST0127", selectingPods("b"), true},
		"a Service of a pod without an address":   {"MSH0116", servicePods("a"), false},
		"a Service of no pod without an address":  {"MSH0116", servicePods("b"), true},

		"equal wildcard hosts":                        {"IST0109", wildcards("'*.example.com'", "'*.example.com'"), true},
		"equal wildcard hosts without a service":      {"IST0109", wildcards("'*.example.org'", "'*.example.org'"), true},
		"wildcards of which one is narrower":          {"IST0109", wildcards("'*.example.com'", "'*.a.example.com'"), false},
		"a wildcard and a host below it":              {"IST0109", wildcards("'*.example.com'", "a.example.com"), false},
		"equal wildcard hosts, each in its namespace": {"IST0109", strings.ReplaceAll(wildcards("'*.example.com'", "'*.example.com'"), "spec: {", "spec: {exportTo: [.], "), false},

		"sources of a namespace that does not exist":        {"IST0101", sourceNamespaces("gone"), true},
		"sources of the namespace of the control plane":     {"IST0101", sourceNamespaces("istio-system"), false},
		"sources of a namespace of Kubernetes":              {"IST0101", sourceNamespaces("kube-system"), false},
		"sources of a namespace that exists":                {"IST0101", sourceNamespaces("web"), false},
		"sources of namespaces with a prefix that none has": {"IST0101", sourceNamespaces("gone-*"), true},
		"sources of namespaces with a prefix that one has":  {"IST0101", sourceNamespaces("w*"), false},
		"sources of namespaces with a suffix that none has": {"IST0101", sourceNamespaces("'*-gone'"), true},
		"sources of all namespaces":                         {"IST0101", sourceNamespaces("'*'"), false},

		"an annotation of pods at a Deployment":            {"IST0107", deployment("sidecar.istio.io/inject: 'true'", ""), true},
		"an annotation of pods at its template":            {"IST0107", deployment("", "proxy.istio.io/config: '{}'"), false},
		"an annotation of Services at its template":        {"IST0107", deployment("", "networking.istio.io/exportTo: '*'"), true},
		"an annotation that Istio does not have":           {"IST0108", deployment("", "sidecar.istio.io/injekt: 'true'"), true},
		"an annotation of pods at a CronJob's template":    {"IST0107", cronJob, true},
		"an annotation of another program at a Deployment": {"IST0107", deployment("example.com/a: b", "example.com/a: b"), false},

		"a host without a service, TLS routes": {"open no port for its TCP and TLS routes", unserved("tls: [{match: [{sniHosts: [a.example]}], route: [{destination: {host: a.example}}]}]"), true},
		"a host without a service, requests":   {"open no port for its TCP and TLS routes", unserved("http: [{route: [{destination: {host: a.example}}]}]"), false},
		"a host without a service, at port 80": {"only at port 80", unserved("http: [{route: [{destination: {host: a.example}}]}]"), true},

		"a delay with percent":      {"IST0002", delayed("percent: 50"), true},
		"a delay with a percentage": {"IST0002", delayed("percentage: {value: 50}"), false},
	} {
		found := check(t, []load.Cluster{{ID: "east", Files: []load.File{{Name: "mesh.yaml", Text: []byte(tt.mesh)}}}})
		if got := strings.Contains(texts(found), tt.code); got != tt.want {
			t.Errorf("%s: %s reported: %v, want %v:\n%s", name, tt.code, got, tt.want, texts(found))
		}
	}
}
