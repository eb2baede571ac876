package apply

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/install"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
	kubetest "github.com/meshctl/meshctl/test/kube"
)

// lab holds a cluster without nodes, and the reports of commands.
type lab struct {
	*kubetest.Cluster
	cluster *Cluster
	said    []string
}

func start(t *testing.T) *lab {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Kubernetes: make kube")
	}
	c := kubetest.Start(t)
	api, err := kube.NewClient(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	return &lab{Cluster: c, cluster: &Cluster{Name: "context test", API: api}}
}

func (l *lab) options() Options {
	l.said = nil
	return Options{Now: time.Now(), Say: func(format string, args ...any) { l.said = append(l.said, fmt.Sprintf(format, args...)) }}
}

func (l *lab) install(t *testing.T, v *install.Values) Result {
	t.Helper()
	r, _, err := l.cluster.Install(t.Context(), v, l.options())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func (l *lab) uninstall(t *testing.T, names ...string) Result {
	t.Helper()
	r, err := l.cluster.Uninstall(t.Context(), names, "istio-system", l.options())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// reported checks that a line contains the text.
func (l *lab) reported(t *testing.T, want string) {
	t.Helper()
	if !slices.ContainsFunc(l.said, func(line string) bool { return strings.Contains(line, want) }) {
		t.Errorf("reported\n%s\nwant %s", strings.Join(l.said, "\n"), want)
	}
}

// objects lists the objects of an installation, with their versions.
func (l *lab) objects(t *testing.T, installation string) string {
	t.Helper()
	kinds := "namespaces,customresourcedefinitions,mutatingwebhookconfigurations,validatingwebhookconfigurations,deployments,services,configmaps," +
		"serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,horizontalpodautoscalers,poddisruptionbudgets"
	return l.Kubectl(t, "", "get", kinds, "-A", "-l", install.LabelInstallation+installation, "-o",
		"jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name} {.metadata.resourceVersion}{\"\\n\"}{end}")
}

func values() *install.Values {
	v := install.Default("registry.example/meshctl:v1")
	v.ClusterID, v.Network, v.MeshID, v.CRDs = "cluster1", "network1", "mesh1", true
	v.Gateways, v.ExposeServices, v.ExposeControlPlane = []install.Gateway{install.EastWestGateway("network1")}, true, true
	return &v
}

// TestInstall: a second run changes nothing, removed objects are deleted, revisions live
// side by side, and uninstalling keeps only objects of others.
func TestInstall(t *testing.T) {
	t.Parallel()
	l := start(t)
	first := l.install(t, values())
	if first.Created < 30 || first.Changed+first.Unchanged+first.Deleted > 0 {
		t.Errorf("first run: %+v", first)
	}
	if got := l.Kubectl(t, "", "get", "namespace", "istio-system", "-o", `jsonpath={.metadata.labels.topology\.istio\.io/network}`); got != "network1" {
		t.Errorf("network %q", got)
	}
	replicas := func() string {
		return l.Kubectl(t, "", "get", "deployment", "istiod", "-n", "istio-system", "-o", "jsonpath={.spec.replicas}")
	}
	if got := replicas(); got != "2" {
		t.Errorf("%s replicas at first, want the least number of the autoscaler", got)
	}
	before := l.objects(t, "")
	if r := l.install(t, values()); r != (Result{Unchanged: first.Created}) {
		t.Errorf("second run: %+v\n%s", r, strings.Join(l.said, "\n"))
	}
	if after := l.objects(t, ""); after != before {
		t.Errorf("the second run writes:\n%s\nwas\n%s", after, before)
	}

	changed := values()
	changed.Image, changed.ExposeControlPlane = "registry.example/meshctl:v2", false
	options := l.options()
	options.DryRun = true
	r, diff, err := l.cluster.Install(t.Context(), changed, options)
	if err != nil || r.Changed != 2 || r.Deleted != 2 || !strings.Contains(diff, "+        image: registry.example/meshctl:v2\n") ||
		!strings.Contains(diff, "--- Gateway istio-system/istiod-gateway\n") {
		t.Errorf("%+v %v\n%s", r, err, diff)
	}
	if after := l.objects(t, ""); after != before {
		t.Error("a dry run writes")
	}
	l.Kubectl(t, "", "scale", "deployment", "istiod", "-n", "istio-system", "--replicas=4") // as an autoscaler does
	if r := l.install(t, changed); r.Changed != 2 || r.Deleted != 2 {
		t.Errorf("a change: %+v", r)
	}
	l.reported(t, "deleted VirtualService istio-system/istiod-vs")
	if got := replicas(); got != "4" {
		t.Errorf("%s replicas, want those of the autoscaler", got)
	}

	l.Apply(t, "{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: mine}, spec: {hosts: [a.example]}}")
	// The control plane owns these fields.
	for _, patch := range [][]string{
		{"mutatingwebhookconfiguration", "istio-sidecar-injector", `[{"op":"add","path":"/webhooks/0/clientConfig/caBundle","value":"Cg=="}]`},
		{"validatingwebhookconfiguration", "istio-validator-istio-system", `[{"op":"replace","path":"/webhooks/0/failurePolicy","value":"Fail"}]`},
	} {
		l.Kubectl(t, "", "patch", patch[0], patch[1], "--type=json", "-p", patch[2])
	}
	changed.Gateways, changed.ExposeServices = nil, false // no control plane validates them
	if r := l.install(t, changed); r.Created+r.Changed > 0 || r.Deleted < 5 {
		t.Errorf("a change beside the control plane: %+v\n%s", r, strings.Join(l.said, "\n"))
	}

	canary := values()
	canary.Revision, canary.Gateways, canary.ExposeServices, canary.ExposeControlPlane = "canary", nil, false, false
	l.install(t, canary)
	l.reported(t, "kept (all revisions share it) ConfigMap istio-system/istio")
	before = l.objects(t, "=meshctl")
	l.uninstall(t, "meshctl-canary")
	l.reported(t, "as there is still meshctl")
	if after := l.objects(t, "=meshctl"); after != before || l.objects(t, "=meshctl-canary") != "" {
		t.Errorf("the other revision is\n%s\nwas\n%s", after, before)
	}

	// Objects of users, and of control planes.
	l.Apply(t, `{apiVersion: v1, kind: Secret, metadata: {name: cacerts, namespace: istio-system}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: istio-ca-root-cert, labels: {istio.io/config: "true"}}}
---
{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: meshctl-writer, namespace: istio-system}}`)
	for _, o := range (create.Scope{}).Objects(create.Account{Namespace: "istio-system", Name: "reader"}) {
		text, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		l.Apply(t, string(text))
	}
	l.Apply(t, "{apiVersion: v1, kind: Secret, metadata: {name: reader-istio-remote-secret-token, namespace: istio-system}}")
	settings := []string{"create", "configmap", "meshctl-clusters", "-n", "istio-system", "--from-literal=clusters.yaml={}"}
	l.Kubectl(t, "", settings...)
	l.uninstall(t, "meshctl")
	l.reported(t, "kept ConfigMap istio-system/meshctl-clusters: kubectl-create wrote it, too")
	l.reported(t, "kept ServiceAccount istio-system/reader and its roles")
	l.reported(t, "kept CustomResourceDefinition virtualservices.networking.istio.io: there are objects, such as VirtualService default/mine")
	l.reported(t, "kept Namespace istio-system: it has other objects, such as ConfigMap istio-system/meshctl-clusters")
	l.reported(t, "deleted ConfigMap default/istio-ca-root-cert")
	l.reported(t, "deleted Lease istio-system/meshctl-writer")
	if left := strings.Count(l.objects(t, ""), "\n"); left != 2 {
		t.Errorf("left:\n%s", l.objects(t, ""))
	}
	l.Kubectl(t, "", "delete", "configmap/meshctl-clusters", "-n", "istio-system")
	l.Kubectl(t, "", append(settings, "--field-manager=meshctl")...) // as multicluster drain and weight do
	l.Kubectl(t, "", "delete", "virtualservice/mine")
	l.Kubectl(t, "", "delete", "secret/cacerts", "secret/reader-istio-remote-secret-token", "-n", "istio-system")
	l.uninstall(t, "meshctl")
	l.reported(t, "deleted ConfigMap istio-system/meshctl-clusters")
	l.reported(t, "deleted ClusterRole meshctl-reader-istio-system-reader")
	l.reported(t, "deleted ServiceAccount istio-system/reader")
	for deadline := time.Now().Add(time.Minute); l.objects(t, "") != ""; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("left:\n%s", l.objects(t, ""))
		}
	}
}

// TestInstallOfOthers: nothing is written where an object is another program's, and its
// shared objects stay.
func TestInstallOfOthers(t *testing.T) {
	t.Parallel()
	l := start(t)
	l.Apply(t, `{apiVersion: v1, kind: Namespace, metadata: {name: istio-system, labels: {topology.istio.io/network: other}}}
---
{apiVersion: v1, kind: Service, metadata: {name: istiod, namespace: istio-system}, spec: {ports: [{port: 15012}]}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, data: {mesh: ""}}`)
	_, _, err := l.cluster.Install(t.Context(), values(), l.options())
	for _, want := range []string{
		"nothing is written", "Service istio-system/istiod exists and is not of installation meshctl",
		"Namespace istio-system has the label topology.istio.io/network=other, not network1", "install beside it with --revision NAME",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if got := l.objects(t, ""); got != "" {
		t.Errorf("written: %s", got)
	}
	v := values()
	v.Revision, v.Network = "mine", "other"
	v.Gateways[0].Network = "other"
	l.install(t, v)
	l.reported(t, "kept (it is not meshctl's) ConfigMap istio-system/istio")
	l.uninstall(t, "meshctl-mine")
	for _, object := range []string{"namespace/istio-system", "service/istiod", "configmap/istio"} {
		l.Kubectl(t, "", "get", object, "-n", "istio-system")
	}
	if got := l.objects(t, ""); got != "" {
		t.Errorf("left: %s", got)
	}
}

// TestHelm: objects that Helm manages are neither changed nor deleted.
func TestHelm(t *testing.T) {
	t.Parallel()
	l := start(t)
	l.install(t, values())
	l.Kubectl(t, "", "label", "services", "istiod", "-n", "istio-system", "--overwrite", "app.kubernetes.io/managed-by=Helm")
	if _, _, err := l.cluster.Install(t.Context(), values(), l.options()); err == nil || !strings.Contains(err.Error(), "Service istio-system/istiod exists and is managed by Helm") {
		t.Errorf("install over Helm's objects: %v", err)
	}
	l.uninstall(t, "meshctl")
	if left := l.objects(t, "=meshctl"); !strings.HasPrefix(left, "Service istio-system/istiod ") || strings.Count(left, "\n") != 1 {
		t.Errorf("left:\n%s", left)
	}
	if _, err := l.cluster.Uninstall(t.Context(), []string{"meshctl"}, "istio-system", l.options()); err == nil || !strings.Contains(err.Error(), "helm uninstall") {
		t.Errorf("uninstall of Helm's objects: %v", err)
	}
}

// TestWaitNames: the wait reports the reason why a Deployment is not available, and ends
// with it.
func TestWaitNames(t *testing.T) {
	t.Parallel()
	l := start(t)
	l.install(t, values())
	l.Apply(t, `{apiVersion: v1, kind: Pod, metadata: {name: istiod-0, namespace: istio-system, labels: {app: istiod, istio.io/rev: default, sidecar.istio.io/inject: "false"}},
spec: {containers: [{name: discovery, image: a}]},
status: {containerStatuses: [{name: discovery, image: a, imageID: "", ready: false, restartCount: 0, state: {waiting: {reason: ImagePullBackOff, message: no such image}}}]}}`)
	options := l.options()
	options.Wait = quiet + time.Second
	_, _, err := l.cluster.Install(t.Context(), values(), options)
	const want = "context test: after 11s Deployment istio-system/istiod is not available: 0 of 2 replicas are available; " +
		"pod istiod-0: container discovery: ImagePullBackOff: no such image"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	l.reported(t, "waiting for Deployment istio-system/istiod: 0 of 2 replicas are available; pod istiod-0: container discovery: ImagePullBackOff")

	// A control plane that runs makes itself known to the API server.
	l.Kubectl(t, "", "patch", "deployment", "istiod", "-n", "istio-system", "--subresource=status", "--type=merge", "-p",
		`{"status": {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2}}`)
	options.Wait = time.Second
	_, _, err = l.cluster.Install(t.Context(), values(), options)
	if err == nil || !strings.Contains(err.Error(), "MutatingWebhookConfiguration istio-sidecar-injector is not available: webhook rev.namespace.sidecar-injector.istio.io has no caBundle") {
		t.Errorf("without caBundle: %v", err)
	}
}

// TestExternal: an external control plane is not installed before the Secrets exist that it
// starts with, and check names the missing ones.
func TestExternal(t *testing.T) {
	t.Parallel()
	l := start(t)
	v := install.Default("registry.example/meshctl:v1")
	v.ClusterID, v.ConfigCluster = "cluster1", "cluster2"
	server, err := create.Connect("context test", l.Config())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct{ missing, fix string }{
		{"istio-kubeconfig", "meshctl create-remote-secret --type config --name cluster2"},
		{"cacerts", "give install the flag --ca-dir"},
	} {
		found, err := l.cluster.CheckBefore(t.Context(), &v, server)
		if err != nil {
			t.Fatal(err)
		}
		has(t, found, "Secret istio-system/"+s.missing, "the control plane does not start without it")
		_, _, err = l.cluster.Install(t.Context(), &v, Options{Say: func(string, ...any) {}})
		if err == nil || !strings.Contains(err.Error(), "nothing is written: the control plane needs Secret istio-system/"+s.missing) || !strings.Contains(err.Error(), s.fix) {
			t.Errorf("without Secret %s: %v", s.missing, err)
		}
		l.Apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}\n---\n{apiVersion: v1, kind: Secret, metadata: {name: "+s.missing+", namespace: istio-system}}")
	}
	l.install(t, &v)
}

// TestRemote: a cluster that uses the control plane of another one has its address as the
// endpoint of the Service, and a changed address replaces it. Uninstalling leaves nothing.
func TestRemote(t *testing.T) {
	t.Parallel()
	l := start(t)
	v := install.Default("")
	v.ClusterID, v.Network = "cluster2", "network2"
	v.Remote = install.Remote{Enabled: true, Cluster: "cluster1", Address: "192.0.2.1"}
	v.Gateways = []install.Gateway{install.EastWestGateway("network2")}
	first := l.install(t, &v)
	if r := l.install(t, &v); r != (Result{Unchanged: first.Created}) {
		t.Errorf("second run: %+v\n%s", r, strings.Join(l.said, "\n"))
	}
	for want, args := range map[string]string{
		"cluster1":                              `namespace istio-system -o jsonpath={.metadata.annotations.topology\.istio\.io/controlPlaneClusters}`,
		"192.0.2.1":                             "endpointslice -n istio-system -l kubernetes.io/service-name=istiod -o jsonpath={.items[*].endpoints[*].addresses[*]}",
		"/inject/cluster/cluster2/net/network2": "mutatingwebhookconfiguration istio-sidecar-injector -o jsonpath={.webhooks[0].clientConfig.service.path}",
	} {
		if got := l.Kubectl(t, "", append([]string{"get"}, strings.Fields(args)...)...); got != want {
			t.Errorf("%s: %q, want %q", args, got, want)
		}
	}
	found, err := l.cluster.CheckAfter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		if f.Object == "Service istio-system/istiod" {
			t.Errorf("a fault: %+v", f)
		}
		if f.Object == "MutatingWebhookConfiguration istio-sidecar-injector" && !strings.Contains(f.Fault, "remote secret") {
			t.Errorf("%+v, want the missing remote secret", f)
		}
	}
	v.Remote.Address = "istiod.example"
	if r := l.install(t, &v); r.Deleted != 1 || r.Changed != 2 {
		t.Errorf("with a host name: %+v\n%s", r, strings.Join(l.said, "\n"))
	}
	if got := l.Kubectl(t, "", "get", "service", "istiod", "-n", "istio-system", "-o", "jsonpath={.spec.externalName} {.spec.clusterIP}"); got != "istiod.example " {
		t.Errorf("the Service has the external name and address %q", got)
	}
	v.Remote.Address = "2001:db8::1"
	l.install(t, &v)
	l.uninstall(t, "meshctl")
	l.Kubectl(t, "", "wait", "--for=delete", "namespace/istio-system", "--timeout=60s")
	if left := l.objects(t, ""); left != "" {
		t.Errorf("left:\n%s", left)
	}
}

// TestUpgradeOfLabels: a revision that was installed before its Service and Deployment got Istio's
// label, and its pods the annotations for Prometheus, is upgraded. Its selectors stay.
func TestUpgradeOfLabels(t *testing.T) {
	t.Parallel()
	l := start(t)
	v := values()
	v.Revision, v.Gateways, v.ExposeServices, v.ExposeControlPlane = "canary", nil, false, false
	objects, err := install.Objects(v)
	if err != nil {
		t.Fatal(err)
	}
	text, err := install.YAML(objects)
	if err != nil {
		t.Fatal(err)
	}
	old := strings.NewReplacer(
		"istio: pilot\n", "istio: istiod\n", `        prometheus.io/port: "15014"`+"\n"+`        prometheus.io/scrape: "true"`+"\n", "",
	).Replace(string(text))
	l.Kubectl(t, old, "apply", "--server-side", "--field-manager="+manager, "-f", "-")
	selectors := func() string {
		return l.Kubectl(t, "", "get", "service/istiod-canary", "deployment/istiod-canary", "-n", "istio-system", "-o", "jsonpath={.items[*].spec.selector}")
	}
	before := selectors()
	if r := l.install(t, v); r.Created+r.Deleted != 0 || r.Changed != 4 {
		t.Errorf("upgrade: %+v\n%s", r, strings.Join(l.said, "\n"))
	}
	if after := selectors(); after != before {
		t.Errorf("selectors %s, were %s", after, before)
	}
	for _, want := range [][]string{
		{"service", ".metadata.labels.istio", "pilot"},
		{"deployment", ".metadata.labels.istio", "pilot"},
		{"deployment", ".spec.template.metadata.labels.istio", "istiod"},
		{"deployment", `.spec.template.metadata.annotations.prometheus\.io/scrape`, "true"},
		{"deployment", `.spec.template.metadata.annotations.prometheus\.io/port`, "15014"},
	} {
		if got := l.Kubectl(t, "", "get", want[0], "istiod-canary", "-n", "istio-system", "-o", "jsonpath={"+want[1]+"}"); got != want[2] {
			t.Errorf("%s of the %s: %q, want %q", want[1], want[0], got, want[2])
		}
	}
}

// TestMeshConfigOfRevision: a revision has a ConfigMap to which its control plane, and no other, may
// copy the MeshConfig. A later run keeps the copy, and uninstalling deletes it.
func TestMeshConfigOfRevision(t *testing.T) {
	t.Parallel()
	l := start(t)
	v := values()
	v.Revision, v.Gateways, v.ExposeServices, v.ExposeControlPlane = "canary", nil, false, false
	first := l.install(t, v)
	for _, verb := range []string{"get", "patch"} {
		if got := l.Kubectl(t, "", "auth", "can-i", verb, "configmaps/istio-canary", "-n", "istio-system", "--as=system:serviceaccount:istio-system:istiod-canary"); got != "yes\n" {
			t.Errorf("%s: %s", verb, got)
		}
	}
	l.Kubectl(t, "", "patch", "configmap", "istio-canary", "-n", "istio-system", "--type=merge", "-p", `{"data": {"mesh": "trustDomain: mesh.example"}}`)
	if r := l.install(t, v); r != (Result{Unchanged: first.Created}) {
		t.Errorf("second run: %+v\n%s", r, strings.Join(l.said, "\n"))
	}
	if got := l.Kubectl(t, "", "get", "configmap", "istio-canary", "-n", "istio-system", "-o", "jsonpath={.data.mesh}"); got != "trustDomain: mesh.example" {
		t.Errorf("the copy is %q", got)
	}
	l.uninstall(t, "meshctl-canary")
	if left := l.Kubectl(t, "", "get", "configmaps", "-n", "istio-system", "-o", "name"); strings.Contains(left, "istio-canary") {
		t.Errorf("left:\n%s", left)
	}

	for revision, refused := range map[string]bool{"ca-root-cert": true, "sidecar-injector": true, "sidecar": false} {
		v.Revision = revision
		if _, err := install.Objects(v); (err != nil) != refused {
			t.Errorf("revision %s: %v", revision, err)
		}
	}
}
