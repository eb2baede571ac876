package analyze_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/load"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// ofAPI returns the findings in files as if their objects were in the APIs of the clusters.
func ofAPI(t *testing.T, clusters []load.Cluster) []analyze.Finding {
	t.Helper()
	_, views := meshOf(t, clusters)
	for _, v := range views {
		forgetPlaces(v)
	}
	o := options(true)
	o.Flags = func(id mesh.ClusterID) string { return "--context " + string(id) }
	return analyze.CheckClusters(views, o)
}

// forgetPlaces removes the files of objects.
func forgetPlaces(c *registry.Contents) {
	for _, objects := range c.Objects {
		for _, o := range objects {
			if meta, ok := o.(interface{ Info() *snapshot.Meta }); ok {
				meta.Info().Place = snapshot.Place{}
			}
		}
	}
}

// TestFixesAreCommands: where the right value is known, the fix is a command, and else the object can be
// opened by one.
func TestFixesAreCommands(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		cluster  int
		old, new string
		want     string
	}{
		{0, "destination: {host: reviews, subset: v1}", "destination: {host: reviews, subset: v2}", `kubectl --context east -n shop patch virtualservice reviews --type json -p '[{"op":"replace","path":"/spec/http/0/route/0/destination/subset","value":"v1"}]'`},
		{0, "destination: {host: reviews, subset: v1}", "destination: {host: reviewz}", `"path":"/spec/http/0/route/0/destination/host","value":"reviews.shop.svc.cluster.local"`},
		{0, "destination: {host: reviews, subset: v1}", "destination: {host: reviews, subset: v1, port: {number: 80}}", `"path":"/spec/http/0/route/0/destination/port/number","value":9080`},
		{0, "http: [{route:", "http: [{match: [{port: 80}], route:", ""},
		{0, "http: [{route:", "http: [{match: [{port: 81}], route:", `"path":"/spec/http/0/match/0/port","value":9080`},
		{0, "http: [{route:", "gateways: [shop/web, mesh]\n  http: [{route:", ""},
		{0, "  host: reviews\n", "  host: revews\n", `kubectl --context east -n shop patch destinationrule reviews --type json -p '[{"op":"replace","path":"/spec/host","value":"reviews.shop.svc.cluster.local"}]'`},
		{0, "selector: {istio: eastwest}\n", "selector: {istio: eastwst}\n", `kubectl --context east -n istio-system patch gateway.networking.istio.io cross-network-gateway --type json -p '[{"op":"replace","path":"/spec/selector/istio","value":"eastwest"}]'`},
		{0, "trafficPolicy: {connectionPool: {tcp: {maxConnections: 100}}}", "trafficPolicy: {tls: {mode: DISABLE}}", `"path":"/spec/trafficPolicy/tls/mode","value":"ISTIO_MUTUAL"`},
		{1, "selector: {app: reviews}, ports: [{name: http,", "selector: {app: reviews}, ports: [{name: tcp,", `kubectl --context west -n shop patch service reviews --type json -p '[{"op":"add","path":"/spec/ports/0/appProtocol","value":"http"}]' # or, if cluster west is right: kubectl --context east -n shop patch service reviews --type json -p '[{"op":"add","path":"/spec/ports/0/appProtocol","value":"tcp"}]'`},
		{0, "selector: {app: reviews}, ports: [{name: http,", "selector: {app: reviews}, ports: [{name: tcp,", `kubectl --context east -n shop patch service reviews --type json -p '[{"op":"add","path":"/spec/ports/0/appProtocol","value":"http"}]' # or, if cluster east is right: `},
	} {
		clusters := twoClusters(t)
		file := &clusters[tt.cluster].Files[0]
		if strings.Count(string(file.Text), tt.old) != 1 {
			t.Fatalf("%q is not once in the mesh", tt.old)
		}
		file.Text = []byte(strings.Replace(string(file.Text), tt.old, tt.new, 1))
		var fixes []string
		for _, f := range ofAPI(t, clusters) {
			fixes = append(fixes, string(f.Code)+" "+f.Fix)
		}
		if all := strings.Join(fixes, "\n"); !strings.Contains(all, tt.want) {
			t.Errorf("%s: no fix %s in\n%s", tt.new, tt.want, all)
		}
	}
}

// TestCommandOfFieldWithoutEffect: the command for a field without effect removes it.
func TestCommandOfFieldWithoutEffect(t *testing.T) {
	t.Parallel()
	key := snapshot.Key{Kind: snapshot.KindVirtualService, Cluster: "east", Namespace: "shop", Name: "orders"}
	for message, want := range map[string]string{
		"spec.tcp[0].match[0].sourceSubnet: has no effect: as with Istio; use sourceLabels": `kubectl --context east -n shop patch virtualservice orders --type json -p '[{"op":"remove","path":"/spec/tcp/0/match/0/sourceSubnet"}]'`,
		"has no effect": "kubectl --context east -n shop edit virtualservice orders",
	} {
		f := analyze.Finding{Code: codes.NoEffect, Object: key, Message: message}
		if got := f.Command("--context east"); got != want {
			t.Errorf("%s: got %s, want %s", message, got, want)
		}
	}
}

// TestEveryFindingOfAnObjectHasACommand: each finding about an object of an API has a command, or a command
// opens the object.
func TestEveryFindingOfAnObjectHasACommand(t *testing.T) {
	t.Parallel()
	commands := 0
	for _, k := range codes.Kinds() {
		text, err := os.ReadFile(filepath.Join("testdata", string(k.Code)+".yaml"))
		if err != nil {
			continue
		}
		for _, f := range ofAPI(t, []load.Cluster{{ID: "east", Files: []load.File{{Name: "mesh.yaml", Text: text}}}}) {
			switch {
			case f.Object.Name == "":
			case strings.HasPrefix(f.Fix, "kubectl ") || strings.HasPrefix(f.Fix, "meshctl "):
				commands++
			case f.Fix != "":
				t.Errorf("%s: the fix is no command: %s", f.Code, f.Fix)
			case f.Command("--context east") == "":
				t.Errorf("%s: no command opens %v", f.Code, f.Object)
			}
		}
	}
	if commands < 20 {
		t.Errorf("only %d findings have a command", commands)
	}
}

// entryMesh has a ServiceEntry, to which a VirtualService routes.
const entryMesh = `
{apiVersion: v1, kind: Pod, metadata: {name: client-1, namespace: shop}, status: {podIP: 10.1.0.1}}
---
{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: bank, namespace: shop}, spec: {hosts: [bank.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS, location: MESH_EXTERNAL}}
---
{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: bank, namespace: shop}, spec: {hosts: [bank.example], http: [{timeout: 2s, route: [{destination: {host: bank.example}}]}]}}
`

// TestEntriesOfEachCluster: the VirtualServices of each cluster route to the ServiceEntries of the same cluster.
func TestEntriesOfEachCluster(t *testing.T) {
	t.Parallel()
	only, _, _ := strings.Cut(entryMesh, "---")
	for name, tt := range map[string]struct{ east, west, want string }{
		"both":        {entryMesh, entryMesh, ""},
		"one":         {only, entryMesh, ""},
		"without one": {entryMesh, strings.ReplaceAll(entryMesh, "hosts: [bank.example], ports", "hosts: [bank.test], ports"), "destination bank.example is no service"},
	} {
		var found strings.Builder
		for _, f := range check(t, []load.Cluster{
			{ID: "east", Files: []load.File{{Name: "east.yaml", Text: []byte(tt.east)}}},
			{ID: "west", Files: []load.File{{Name: "west.yaml", Text: []byte(tt.west)}}},
		}) {
			if f.Level != codes.Info {
				found.WriteString(f.Message + "\n")
			}
		}
		if !strings.Contains(found.String(), tt.want) || tt.want == "" && found.Len() > 0 {
			t.Errorf("%s: found\n%s\twant %q", name, &found, tt.want)
		}
	}
}

// TestFaultsAreNotCopied: a mistake in the object of one of two clusters is one finding, and no command copies
// the mistake to the other cluster.
func TestFaultsAreNotCopied(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ old, new string }{
		{"destination: {host: reviews, subset: v1}", "destination: {host: reviews, subset: v9}"},
		{"destination: {host: reviews, subset: v1}", "destination: {host: reviewz}"},
		{"selector: {matchLabels: {app: reviews}}\n  action: DENY", "selector: {matchLabels: {app: reviewz}}\n  action: DENY"},
	} {
		for broken := range 2 {
			clusters := twoClusters(t)
			text := &clusters[broken].Files[0].Text
			if n := strings.Count(string(*text), tt.old); n != 1 {
				t.Fatalf("%q is %d times in the mesh", tt.old, n)
			}
			*text = []byte(strings.Replace(string(*text), tt.old, tt.new, 1))
			if found := ofAPI(t, clusters); len(found) != 1 || found[0].Object.Cluster != clusters[broken].ID || strings.Contains(found[0].Fix, "apply") {
				t.Errorf("%s in %s: found\n%s", tt.new, clusters[broken].ID, texts(found))
			}
		}
	}
}

// TestMisspelledNetworkOfGateway: if the pods have the network of the namespace, the label of the gateway's
// Service is the mistake.
func TestMisspelledNetworkOfGateway(t *testing.T) {
	t.Parallel()
	clusters := twoClusters(t)
	clusters[1].Files[0].Text = []byte(strings.NewReplacer(
		"name: eastwest, namespace: istio-system, labels: {topology.istio.io/network: network2}", "name: eastwest, namespace: istio-system, labels: {topology.istio.io/network: netwrk2}",
		"labels: {istio: eastwest}\n  annotations", "labels: {istio: eastwest, topology.istio.io/network: network2}\n  annotations",
	).Replace(string(clusters[1].Files[0].Text)))
	const want = "kubectl --context west -n istio-system label service eastwest topology.istio.io/network=network2 --overwrite"
	if found := ofAPI(t, clusters); len(found) != 1 || found[0].Code != "MSH0107" || found[0].Fix != want {
		t.Errorf("found\n%s\nwant only MSH0107 with %s", texts(found), want)
	}
}

// TestPoliciesOfTheirCluster: a policy is compared with the ports of the workloads in its own cluster.
func TestPoliciesOfTheirCluster(t *testing.T) {
	t.Parallel()
	for _, tcp := range [][]int{{0}, {1}, {0, 1}} {
		clusters := twoClusters(t)
		for _, i := range tcp {
			clusters[i].Files[0].Text = bytes.ReplaceAll(clusters[i].Files[0].Text, []byte("selector: {app: reviews}, ports: [{name: http,"), []byte("selector: {app: reviews}, ports: [{name: tcp,"))
		}
		var in []int
		for _, f := range ofAPI(t, clusters) {
			if f.Code == "MSH0119" {
				in = append(in, slices.IndexFunc(clusters, func(c load.Cluster) bool { return c.ID == f.Object.Cluster }))
			}
		}
		if slices.Sort(in); !slices.Equal(in, tcp) {
			t.Errorf("port of TCP in %v: findings in %v", tcp, in)
		}
	}
}

// TestVersionsDuringRollout: proxies are compared with the control plane that serves, not with one that does not
// start.
func TestVersionsDuringRollout(t *testing.T) {
	t.Parallel()
	const next = `---
{apiVersion: v1, kind: Pod, metadata: {name: istiod-NAME, namespace: istio-system, labels: {app: istiod, istio.io/rev: default}},
  spec: {containers: [{name: discovery, image: "example.com/meshctl:3"}]}, status: {phase: Running, podIP: 10.1.1.8, conditions: [{type: Ready, status: "READY"}]}}
`
	for _, name := range []string{"0", "2"} { // before and after istiod-1
		for _, ready := range []string{"False", "True"} {
			clusters := twoClusters(t)
			clusters[0].Files[0].Text = append(clusters[0].Files[0].Text, strings.NewReplacer("NAME", name, "READY", ready).Replace(next)...)
			if found := ofAPI(t, clusters); len(found) > 0 {
				t.Errorf("istiod-%s, ready: %s: found\n%s", name, ready, texts(found))
			}
		}
	}
	clusters := twoClusters(t)
	clusters[0].Files[0].Text = bytes.Replace(clusters[0].Files[0].Text, []byte(`{name: discovery, image: "example.com/meshctl:2"}`), []byte(`{name: discovery, image: "example.com/meshctl:3"}`), 1)
	if found := ofAPI(t, clusters); len(found) == 0 || found[0].Code != "IST0105" {
		t.Errorf("after the rollout: found\n%s", texts(found))
	}
}

// TestRulesOfClients: a DestinationRule in the namespace of clients does not apply to the east-west gateway, and
// the command copies it to the namespace of the service.
func TestRulesOfClients(t *testing.T) {
	t.Parallel()
	clusters := twoClusters(t)
	for i := range clusters {
		text := string(clusters[i].Files[0].Text)
		rule := document(t, text, "kind: DestinationRule")
		moved := strings.NewReplacer("namespace: shop", "namespace: clients", "host: reviews", "host: reviews.shop.svc.cluster.local").Replace(rule)
		routes := document(t, text, "kind: VirtualService")
		text = strings.Replace(text, routes, strings.NewReplacer("namespace: shop", "namespace: clients", "[reviews]", "[reviews.shop.svc.cluster.local]", "host: reviews", "host: reviews.shop.svc.cluster.local").Replace(routes), 1)
		clusters[i].Files[0].Text = []byte(strings.Replace(text, rule, moved, 1) + "---\n{apiVersion: v1, kind: Namespace, metadata: {name: clients}}\n")
	}
	found := ofAPI(t, clusters)
	if len(found) != 2 {
		t.Fatalf("found\n%s", texts(found))
	}
	for _, f := range found {
		id := string(f.Object.Cluster)
		want := "kubectl --context " + id + " -n clients get destinationrule.v1.networking.istio.io reviews -o yaml | sed -E '/^  (creationTimestamp|generation|resourceVersion|uid): /d; s/^  namespace: .*/  namespace: shop/' | kubectl --context " + id + " apply -f -"
		if f.Code != "MSH0135" || f.Field != "metadata.namespace" || f.Fix != want {
			t.Errorf("found %s, fix %s\nwant %s", f.Message, f.Fix, want)
		}
	}
}

// canary is a further control plane.
const canary = `---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: istio-sidecar-injector-canary, labels: {app: sidecar-injector, istio.io/rev: canary}}
webhooks:
- name: rev.namespace.sidecar-injector.istio.io
  clientConfig: {service: {name: istiod-canary, namespace: istio-system, path: /inject}}
  namespaceSelector:
    matchExpressions: [{key: istio.io/rev, operator: In, values: [canary]}, {key: istio-injection, operator: DoesNotExist}]
---
{apiVersion: v1, kind: Service, metadata: {name: istiod-canary, namespace: istio-system}, spec: {clusterIP: 10.1.0.8, selector: {istio.io/rev: canary}, ports: [{name: https-webhook, port: 443}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: istiod-canary-1, namespace: istio-system, labels: {app: istiod, istio.io/rev: canary}},
  spec: {containers: [{name: discovery, image: "example.com/meshctl:3"}]}, status: {phase: Running, podIP: 10.1.1.8}}
`

// TestUpgradeByRevision: after the label of a namespace chooses another revision, its pods need a restart.
func TestUpgradeByRevision(t *testing.T) {
	t.Parallel()
	const label, chosen = "name: shop, labels: {istio-injection: enabled}", "name: shop, labels: {istio.io/rev: canary}"
	for _, moved := range []bool{false, true} {
		clusters := twoClusters(t)
		text := string(clusters[0].Files[0].Text) + canary
		if moved {
			if text = strings.Replace(text, label, chosen, 1); !strings.Contains(text, chosen) {
				t.Fatalf("the mesh has no %q", label)
			}
		}
		clusters[0].Files[0].Text = []byte(text)
		found := ofAPI(t, clusters)
		if !moved && len(found) == 0 {
			continue
		}
		if len(found) != 1 || found[0].Code != "IST0105" || !strings.Contains(found[0].Message, "is of revision default, but the labels choose canary") ||
			found[0].Fix != "kubectl --context east -n shop rollout restart deployment reviews-v1" {
			t.Errorf("moved: %v: found\n%s", moved, texts(found))
		}
	}
}

// TestLabelWithoutDefaultRevision: if no injector has the revision default, the command uses the one that there is.
func TestLabelWithoutDefaultRevision(t *testing.T) {
	t.Parallel()
	text := "{apiVersion: v1, kind: Namespace, metadata: {name: team, labels: {istio-injection: enable}}}\n" + canary
	const want = "kubectl --context east label namespace team istio-injection- istio.io/rev=canary"
	if found := ofAPI(t, []load.Cluster{{ID: "east", Files: []load.File{{Name: "east.yaml", Text: []byte(text)}}}}); len(found) != 1 || found[0].Fix != want {
		t.Errorf("found\n%s", texts(found))
	}
}
