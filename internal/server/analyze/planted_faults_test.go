package analyze_test

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/load"
)

// twoClusters returns the files of a healthy mesh of the clusters east and west, in two networks.
func twoClusters(t *testing.T) []load.Cluster {
	t.Helper()
	text, err := os.ReadFile("testdata/two_clusters.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var out []load.Cluster
	for i, id := range []mesh.ClusterID{"east", "west"} {
		name := string(id) + ".yaml"
		out = append(out, load.Cluster{ID: id, Files: []load.File{{Name: name, Text: []byte(strings.ReplaceAll(string(text), "$N", strconv.Itoa(i+1)))}}})
	}
	return out
}

// document returns the only document of a mesh with a text.
func document(t *testing.T, mesh, text string) string {
	t.Helper()
	var out []string
	for doc := range strings.SplitSeq(mesh, "---\n") {
		if strings.Contains(doc, text) {
			out = append(out, doc)
		}
	}
	if len(out) != 1 {
		t.Fatalf("%d documents have %q, want one", len(out), text)
	}
	return out[0]
}

func options(whole bool) analyze.Options {
	return analyze.Options{Now: time.Now(), Whole: func(mesh.ClusterID) bool { return whole }}
}

// TestHealthyMesh: a healthy mesh of two clusters has no finding, also not in the view of one.
func TestHealthyMesh(t *testing.T) {
	t.Parallel()
	clusters := twoClusters(t)
	for _, of := range [][]load.Cluster{clusters, clusters[:1]} {
		for _, whole := range []bool{true, false} {
			if found := checkWith(t, of, options(whole)); len(found) > 0 {
				t.Errorf("%d clusters, whole: %v: %s", len(of), whole, texts(found))
			}
		}
	}
}

// TestClusterWithoutControlPlane: a cluster that uses the control plane of another one needs none of the
// configuration.
func TestClusterWithoutControlPlane(t *testing.T) {
	t.Parallel()
	clusters := twoClusters(t)
	var kept []string
	for doc := range strings.SplitSeq(string(clusters[1].Files[0].Text), "---\n") {
		if !strings.Contains(doc, ".istio.io/v1\n") && !strings.Contains(doc, "name: istiod-1") && !strings.Contains(doc, "kind: ConfigMap") {
			kept = append(kept, strings.Replace(doc, "selector: {app: istiod}, ", "", 1))
		}
	}
	remote := strings.Join(kept, "---\n")
	clusters[1].Files[0].Text = []byte(remote)
	if found := check(t, clusters); len(found) > 0 {
		t.Error(texts(found))
	}
	clusters[1].Files[0].Text = []byte(strings.Replace(remote, "metadata: {name: istiod,", "metadata: {name: other,", 1))
	if found := check(t, clusters); len(found) == 0 {
		t.Error("a cluster of its own without configuration has no finding")
	}
}

// TestPlantedFaults: each fault in a healthy mesh of two clusters has a finding that names cause and
// fix, and nothing else is found but what want lists.
func TestPlantedFaults(t *testing.T) {
	t.Parallel()
	const (
		ownedPod   = "name: reviews-v1-5f7-a"
		shop       = "metadata: {name: shop, labels: {istio-injection: enabled}}"
		proxy      = `{name: istio-proxy, image: "example.com/meshctl:2", restartPolicy: Always}`
		annotated  = "annotations: {sidecar.istio.io/status: \"{}\", istio.io/rev: default}\n  ownerReferences"
		reviewsNew = "kubectl -n shop rollout restart deployment reviews-v1"
	)
	for name, tt := range map[string]struct {
		cluster  int    // 0 is east, 1 west
		old, new string // new "" deletes the document with old
		code     codes.Code
		level    codes.Level
		cause    string
		fix      string
	}{
		"a wrong value of the label": {
			0, shop, `metadata: {name: shop, labels: {istio-injection: "true"}}`,
			"IST0102", codes.Warning, `Namespace shop: metadata.labels[istio-injection]: is "true"`, "kubectl label namespace shop istio-injection=enabled --overwrite",
		},
		"a misspelled revision": {
			0, "metadata: {name: tagged, labels: {istio.io/rev: stable}}", "metadata: {name: tagged, labels: {istio.io/rev: stabel}}",
			"MSH0130", codes.Error, `Namespace tagged: metadata.labels[istio.io/rev]: is "stabel", but the revisions of the cluster are default, stable: pods of the namespace are not injected`, "kubectl label namespace tagged istio.io/rev=stable --overwrite",
		},
		"both labels": {
			0, shop, "metadata: {name: shop, labels: {istio-injection: enabled, istio.io/rev: stable}}",
			"IST0123", codes.Warning, "istio.io/rev has no effect", "kubectl label namespace shop istio-injection-",
		},
		"a pod without a proxy": {
			0, proxy, `{name: init, image: "example.com/init:1"}`,
			"IST0103", codes.Warning, "Pod shop/reviews-v1-5f7-a: has no container istio-proxy", reviewsNew,
		},
		"an old proxy": {
			0, proxy, strings.Replace(proxy, ":2", ":1", 1),
			"IST0105", codes.Warning, "the proxy has the version 1, the control plane of its revision 2", reviewsNew,
		},
		"a proxy of a removed revision": {
			0, annotated, strings.Replace(annotated, "default", "old", 1),
			"MSH0132", codes.Error, `is of revision "old", which has no control plane any more`, reviewsNew,
		},
		"a denied pod": {
			0, "conditions: []", `conditions: [{type: ReplicaFailure, status: "True", reason: FailedCreate, message: 'admission webhook "namespace.sidecar-injector.istio.io" denied the request: annotation a is wrong'}]`,
			"MSH0133", codes.Error, "ReplicaSet shop/reviews-v1-5f7: the injector refuses its pods: annotation a is wrong", "kubectl -n shop edit deployment reviews-v1",
		},
		"a denied pod of a StatefulSet": {
			0, "# applications\n", "{apiVersion: v1, kind: Event, metadata: {name: db.1, namespace: shop}, involvedObject: {kind: StatefulSet, name: db}, reason: FailedCreate, message: 'create Pod db-0 in StatefulSet db failed error: admission webhook \"namespace.sidecar-injector.istio.io\" denied the request: annotation a is wrong'}\n---\n",
			"MSH0133", codes.Error, "StatefulSet shop/db: the injector refuses its pods: annotation a is wrong", "kubectl -n shop edit statefulset db",
		},
		"an image that cannot be pulled": {
			0, "status: {phase: Running, podIP: 10.1.1.1}", "status: {phase: Pending, initContainerStatuses: [{name: istio-proxy, image: \"example.com/meshctl:7\", state: {waiting: {reason: ErrImagePull, message: not found}}}]}",
			"MSH0134", codes.Error, "cannot pull the image example.com/meshctl:7 of the proxy (ErrImagePull: not found)", "meshctl upgrade --image example.com/meshctl:2 && " + reviewsNew,
		},
		"a wrong value of the label of a pod": {
			0, "labels: {sidecar.istio.io/inject: \"false\"}", "labels: {sidecar.istio.io/inject: \"yes\"}",
			"IST0103", codes.Warning, `is "yes", want "true" or "false"`, "get pod legacy-1 -o yaml | kubectl label sidecar.istio.io/inject=true --local --overwrite",
		},
		"an annotation in a namespace without a label": {
			0, "metadata: {name: web-1, namespace: ambient}", "metadata: {name: web-1, namespace: other, annotations: {sidecar.istio.io/inject: \"true\"}}",
			"IST0103", codes.Warning, "only the label of this name has an effect", "kubectl -n other get pod web-1 -o yaml | kubectl label sidecar.istio.io/inject=true",
		},
		"a gateway that no injector has changed": {
			0, `spec: {containers: [{name: istio-proxy, image: "example.com/meshctl:2"}]}`, "spec: {containers: [{name: istio-proxy, image: auto}]}",
			"IST0103", codes.Warning, `is "auto", which the injector replaces`, "kubectl -n istio-system get pod eastwest-1 -o yaml | kubectl label sidecar.istio.io/inject=true --local",
		},
		"a control plane that is gone": {
			0, "name: istiod-1", "",
			"MSH0131", codes.Error, "istio-system/istiod has no pod: revision default has no control plane, and the API server refuses the pods that the webhook selects in shop", "kubectl -n istio-system scale deployment istiod --replicas=2",
		},
		"a Service that does not select its control plane": {
			0, "selector: {app: istiod}", "selector: {app: istiodd}",
			"MSH0131", codes.Error, "istio-system/istiod does not select the pods of the control plane: revision default injects nothing, and the API server refuses the pods that the webhook selects in shop",
			`kubectl -n istio-system patch service istiod --type json -p '[{"op":"add","path":"/spec/selector","value":{"app":"istiod","istio.io/rev":"default"}}]'`,
		},
		"a subset that the far cluster lacks": {
			1, "kind: DestinationRule", "",
			"MSH0135", codes.Error, "subset v1 of reviews.shop.svc.cluster.local is not defined in cluster west", "add DestinationRule shop/reviews (east.yaml:",
		},
		"a subset with other labels": {
			1, "subsets: [{name: v1, labels: {version: v1}}]", "subsets: [{name: v1, labels: {version: v2}}]",
			"MSH0135", codes.Error, "has the labels version=v2 in cluster west, which no pod there has", "add DestinationRule shop/reviews (east.yaml:",
		},
		"a DestinationRule with TLS in one cluster": {
			1, "trafficPolicy: {connectionPool: {tcp: {maxConnections: 100}}}", "trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}",
			"MSH0136", codes.Warning, "does not apply to clients in cluster west, which has another DestinationRule of this name", "(west.yaml:",
		},
		"a DestinationRule with other settings in one cluster": {
			1, "maxConnections: 100", "maxConnections: 50",
			"MSH0136", codes.Warning, "does not apply to clients in cluster west, which has another DestinationRule of this name", "add DestinationRule shop/reviews (east.yaml:",
		},
		"a DestinationRule without subsets in one cluster": {
			1, "spec: {mtls: {mode: STRICT}}", "spec: {mtls: {mode: STRICT}}\n---\n{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: limits, namespace: shop}, spec: {host: istiod.istio-system.svc.cluster.local, trafficPolicy: {connectionPool: {tcp: {maxConnections: 100}}}}}",
			"MSH0136", codes.Warning, "spec.trafficPolicy: does not apply to clients in cluster east, which has no such DestinationRule", "add DestinationRule shop/limits (west.yaml:",
		},
		"a VirtualService in one cluster": {
			1, "kind: VirtualService", "",
			"MSH0143", codes.Warning, "VirtualService shop/reviews: does not apply to clients in cluster west, which has no such VirtualService: their requests to reviews.shop.svc.cluster.local do not use its routes", "add VirtualService shop/reviews (east.yaml:",
		},
		"other routes in one cluster": {
			1, "http: [{route:", "http: [{timeout: 2s, route:",
			"MSH0143", codes.Warning, "VirtualService shop/reviews: does not apply to clients in cluster west, which has another VirtualService of this name", "add VirtualService shop/reviews (east.yaml:",
		},
		"STRICT in one cluster": {
			1, "kind: PeerAuthentication", "",
			"MSH0138", codes.Warning, "PeerAuthentication istio-system/default: spec.mtls.mode: is STRICT, but in cluster west it is PERMISSIVE for the same services", "to cluster west, too, or, if cluster west is right, delete it in cluster east",
		},
		"mTLS disabled in one cluster": {
			1, "spec: {mtls: {mode: STRICT}}", "spec: {mtls: {mode: DISABLE}}",
			"MSH0138", codes.Error, "refuse the mTLS of clients in cluster east", "to cluster west, too, or, if cluster west is right, add PeerAuthentication istio-system/default (west.yaml:",
		},
		"a policy in one cluster": {
			1, "kind: AuthorizationPolicy", "",
			"MSH0138", codes.Warning, "AuthorizationPolicy shop/no-admin: applies only in cluster east: cluster west has no such AuthorizationPolicy", "to cluster west, too, or, if cluster west is right, delete it in cluster east",
		},
		"a gateway that passes on nothing": {
			1, "kind: Gateway", "",
			"MSH0137", codes.Error, "no server of mode AUTO_PASSTHROUGH at port 15443 passes on the requests that clients in cluster east send to cluster west", "add Gateway istio-system/cross-network-gateway (east.yaml:",
		},
		"a gateway with other hosts": {
			1, `hosts: ["*.local"]`, `hosts: ["*.example"]`,
			"MSH0137", codes.Error, "requests to reviews.shop.svc.cluster.local fail there", "add Gateway istio-system/cross-network-gateway (east.yaml:",
		},
		"another trust domain": {
			1, "trustDomain: cluster.local", "trustDomain: west.example",
			"MSH0139", codes.Error, `is "west.example", but that of cluster east is "cluster.local"`, "kubectl -n istio-system edit configmap istio",
		},
		"another policy for unknown destinations": {
			1, "mode: REGISTRY_ONLY", "mode: ALLOW_ANY",
			"MSH0140", codes.Warning, "data.mesh.outboundTrafficPolicy: is ", "kubectl -n istio-system edit configmap istio",
		},
		"a namespace without its network": {
			1, "metadata: {name: istio-system, labels: {topology.istio.io/network: network2}}", "metadata: {name: istio-system}",
			"MSH0141", codes.Error, "Namespace istio-system: metadata.labels[topology.istio.io/network]: is missing, but Service istio-system/eastwest is a gateway of network network2: clients in cluster east, which has the network network1, call the pods of cluster west that have no label of this name, such as pods without a sidecar, directly, not through the gateway", "kubectl label namespace istio-system topology.istio.io/network=network2",
		},
		"STRICT at a port in one cluster": {
			1, "spec: {mtls: {mode: STRICT}}", "spec: {mtls: {mode: STRICT}}\n---\n{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: port, namespace: shop}, spec: {selector: {matchLabels: {app: reviews}}, portLevelMtls: {9080: {mode: PERMISSIVE}}}}",
			"MSH0138", codes.Warning, "spec.portLevelMtls[9080].mode: is PERMISSIVE, but in cluster east it is STRICT for the same services", "(west.yaml:",
		},
		"a Service that only one cluster exports": {
			1, "metadata: {name: reviews, namespace: shop}\nspec: {clusterIP", "metadata: {name: reviews, namespace: shop, annotations: {networking.istio.io/exportTo: .}}\nspec: {clusterIP",
			"IST0170", codes.Warning, "it is exported to ., there to all namespaces", "",
		},
		"a gateway without an address": {
			1, "status: {loadBalancer: {ingress: [{ip: 192.0.2.2}]}}", "status: {}",
			"MSH0107", codes.Warning, "Service istio-system/eastwest of cluster west: it has no address", "",
		},
		"no gateway of the first cluster": {
			0, "metadata: {name: eastwest, namespace: istio-system", "",
			"MSH0107", codes.Warning, "Namespace istio-system: metadata.labels[topology.istio.io/network]: network network1: proxies in other networks get none", "meshctl upgrade --east-west-gateway --network network1",
		},
		"no gateway": {
			1, "metadata: {name: eastwest, namespace: istio-system", "",
			"MSH0107", codes.Warning, "network network2: proxies in other networks get none of its endpoints: no gateway is known", "meshctl upgrade --east-west-gateway --network network2",
		},
		"a namespace with another network": {
			1, "metadata: {name: istio-system, labels: {topology.istio.io/network: network2}}", "metadata: {name: istio-system, labels: {topology.istio.io/network: network-2}}",
			"MSH0141", codes.Error, "is network-2, but Service istio-system/eastwest is a gateway of network network2: pods of cluster west without a label of this name, such as pods without a sidecar, count as pods of network network-2, and clients in cluster east do not reach them", "kubectl label namespace istio-system topology.istio.io/network=network2 --overwrite",
		},
		"a namespace with the network of the other cluster": {
			1, "metadata: {name: istio-system, labels: {topology.istio.io/network: network2}}", "metadata: {name: istio-system, labels: {topology.istio.io/network: network1}}",
			"MSH0141", codes.Error, "is network1, but Service istio-system/eastwest is a gateway of network network2: pods of cluster west without a label of this name, such as pods without a sidecar, count as pods of network network1, and clients in cluster east call them directly, not through the gateway", "kubectl label namespace istio-system topology.istio.io/network=network2 --overwrite",
		},
		"a subset without pods that no route names": {
			0, "subsets: [{name: v1, labels: {version: v1}}]", "subsets: [{name: v1, labels: {version: v1}}, {name: v9, labels: {version: v9}}]",
			"IST0173", codes.Info, "requests to subset v9 would fail, but no VirtualService routes to it", "",
		},
		"a Service with another port": {
			1, "selector: {app: reviews}, ports: [{name: http, port: 9080}]", "selector: {app: reviews}, ports: [{name: http, port: 9090}]",
			"IST0170", codes.Warning, "differs from the Service of the same name in cluster east", "",
		},
		"a fault of the configuration of the other cluster": {
			1, "destination: {host: reviews, subset: v1}", "destination: {host: reviews, subset: v9}",
			"IST0101", codes.Error, `"v9" is defined by no DestinationRule`, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			clusters := twoClusters(t)
			file := &clusters[tt.cluster].Files[0]
			text := string(file.Text)
			if strings.Count(text, tt.old) != 1 {
				t.Fatalf("%q is %d times in the mesh, want once", tt.old, strings.Count(text, tt.old))
			}
			if tt.new == "" {
				text = strings.Replace(text, document(t, text, tt.old), "", 1)
			} else {
				text = strings.Replace(text, tt.old, tt.new, 1)
			}
			file.Text = []byte(text)
			found := analyze.Reports(checkWith(t, clusters, options(true)))
			for i := range found {
				r := &found[i]
				if r.Code == tt.code && r.Level == tt.level && strings.Contains(r.String(), tt.cause) && strings.Contains(r.Fix, tt.fix) {
					return
				}
			}
			t.Errorf("no %s %s with cause %q and fix %q:", tt.level, tt.code, tt.cause, tt.fix)
			for i := range found {
				t.Errorf("%s %s\n\tFIX %s", found[i].Level, found[i], found[i].Fix)
			}
		})
	}
}

// TestUnreadClusters: what pods or Services of a cluster that was not read may refute is a remark,
// and the remark names the cluster.
func TestUnreadClusters(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		old, new string
		code     codes.Code
		level    codes.Level
		cause    string
	}{
		"a subset": {
			"subsets: [{name: v1, labels: {version: v1}}]", "subsets: [{name: v1, labels: {version: v9}}]", "IST0173", codes.Info,
			"no endpoint of reviews.shop.svc.cluster.local in this cluster has the labels version=v9, but version=v1: requests to subset v1 fail, unless it is in cluster west, which was not read",
		},
		"a destination": {
			"destination: {host: reviews, subset: v1}", "destination: {host: ratings}", "IST0101", codes.Info,
			"ratings.shop.svc.cluster.local is no service: requests to it fail, unless it is in cluster west",
		},
		"a Service without pods": {
			"selector: {app: reviews}, ports", "selector: {app: ratings}, ports", "MSH0116", codes.Info, "unless it is in cluster west",
		},
		"a subset that no rule defines": {
			"destination: {host: reviews, subset: v1}", "destination: {host: reviews, subset: v9}", "IST0101", codes.Error, "requests to it fail",
		},
	} {
		clusters := twoClusters(t)[:1]
		file := &clusters[0].Files[0]
		if !strings.Contains(string(file.Text), tt.old) {
			t.Fatalf("%s: the mesh has no %q", name, tt.old)
		}
		file.Text = []byte(strings.Replace(string(file.Text), tt.old, tt.new, 1))
		if tt.code == "MSH0116" {
			file.Text = []byte(strings.Replace(string(file.Text), document(t, string(file.Text), "kind: EndpointSlice"), "", 1))
		}
		o := options(true)
		o.Unread = []mesh.ClusterID{"west"}
		found := analyze.Reports(checkWith(t, clusters, o))
		i := slices.IndexFunc(found, func(r analyze.Report) bool { return r.Code == tt.code })
		if i < 0 || found[i].Level != tt.level || !strings.Contains(found[i].Message, tt.cause) {
			t.Errorf("%s: want %s %s with %q, found %v", name, tt.level, tt.code, tt.cause, found)
		}
	}
}

// TestEventsThatAreOver: an Event about refused pods is no fault if it is old, or if a pod was created
// since.
func TestEventsThatAreOver(t *testing.T) {
	t.Parallel()
	const event = "{apiVersion: v1, kind: Event, metadata: {name: db.1, namespace: shop}, involvedObject: {kind: StatefulSet, name: db}, reason: FailedCreate, lastTimestamp: LAST, " +
		"message: 'admission webhook \"namespace.sidecar-injector.istio.io\" denied the request: annotation a is wrong'}\n"
	now := time.Now().UTC()
	pod := "---\n{apiVersion: v1, kind: Pod, metadata: {name: db-0, namespace: shop, creationTimestamp: " + now.Format(time.RFC3339) +
		", ownerReferences: [{apiVersion: apps/v1, kind: StatefulSet, name: db, uid: '1', controller: true}]}, spec: {containers: [{name: istio-proxy, image: a}]}}\n"
	for name, tt := range map[string]struct {
		text string
		last time.Time
		want bool
	}{
		"a young event":                 {event, now.Add(-time.Minute), true},
		"an old event":                  {event, now.Add(-time.Hour), false},
		"an event before the first pod": {event + pod, now.Add(-time.Minute), false},
	} {
		text := strings.Replace(tt.text, "LAST", tt.last.Format(time.RFC3339), 1)
		found := check(t, []load.Cluster{{ID: "east", Files: []load.File{{Name: "mesh.yaml", Text: []byte(text)}}}})
		if got := strings.Contains(texts(found), "MSH0133"); got != tt.want {
			t.Errorf("%s: reported: %v, want %v:%s", name, got, tt.want, texts(found))
		}
	}
}
