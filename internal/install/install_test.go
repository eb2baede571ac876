package install

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var update = flag.Bool("update", false, "rewrite golden files")

const testImage = "registry.example/meshctl:v1"

// golden compares text with a file of testdata.
func golden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// generate returns the manifest of values, without the rules of the control plane: they
// are in deploy/rbac.yaml.
func generate(t *testing.T, v *Values) string {
	t.Helper()
	objects, err := Objects(v)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if strings.HasPrefix(o.GetName(), istiod) && !strings.Contains(o.GetName(), "-remote-") {
			delete(o.Object, "rules")
		}
	}
	text, err := YAML(objects)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestObjects: each file testdata/<case>.values.yaml gives the objects of <case>.yaml.
// Values without an effect are listed in its first lines.
func TestObjects(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".values.yaml")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			v := Default(testImage)
			unsupported, err := v.Read(filepath.Base(file), text)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			for _, p := range unsupported {
				fmt.Fprintf(&out, "# no effect: %s\n", p)
			}
			golden(t, name+".yaml", out.String()+generate(t, &v))
		})
	}
}

// TestFlags: values that only flags have give these objects.
func TestFlags(t *testing.T) {
	t.Parallel()
	v := Default(testImage)
	v.Network, v.ClusterID, v.MeshID, v.Revision, v.Tags = "network1", "cluster1", "mesh1", "canary", []string{"prod"}
	v.Gateways = []Gateway{EastWestGateway("network1"), IngressGateway()}
	v.Gateways[1].Namespace = "istio-ingress"
	v.ExposeServices, v.ExposeControlPlane = true, true
	golden(t, "flags.yaml", generate(t, &v))

	remote := Default(testImage)
	remote.Network, remote.ClusterID = "network2", "cluster2"
	remote.Remote = Remote{Enabled: true, Cluster: "cluster1", Address: "istiod.example"}
	remote.Gateways = []Gateway{EastWestGateway("network2")}
	golden(t, "remote-flags.yaml", generate(t, &remote))

	external := Default(testImage)
	external.ClusterID, external.ConfigCluster, external.MeshID = "cluster1", "cluster2", "mesh1"
	golden(t, "external.yaml", generate(t, &external))

	config := Default(testImage)
	config.ClusterID, config.ConfigCluster, config.Network = "cluster2", "cluster2", "network2"
	config.Remote = Remote{Enabled: true, Cluster: "cluster1", Address: "192.0.2.1"}
	golden(t, "config-cluster.yaml", generate(t, &config))

	// Another cluster permits the control plane to write by the name of its configuration.
	other := config
	other.ClusterID, other.Network = "cluster3", "network3"
	if text := generate(t, &other); !strings.Contains(text, "topology.istio.io/controlPlaneClusters: cluster2") {
		t.Errorf("cluster3 does not permit cluster2:\n%s", text)
	}
}

// TestConfigClusterRefused: values that have no effect beside --config-cluster are refused.
func TestConfigClusterRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		change func(*Values)
		want   string
	}{
		{func(v *Values) { v.ConfigCluster = "a/b" }, `cluster "a/b" with the configuration`},
		{func(v *Values) { v.ConfigCluster = v.ClusterID }, "cluster cluster1 has the configuration, and is this one"},
		{func(v *Values) { v.ControlPlane.Disabled = true }, "no effect without a control plane"},
		{func(v *Values) { v.Revision = "canary" }, "--revision does not work with --config-cluster"},
		{func(v *Values) { v.Network = "network1" }, "--network, or global.network, has no effect in the cluster of an external control plane"},
		{func(v *Values) { v.Gateways = []Gateway{EastWestGateway("network1")} }, "a gateway has no effect"},
		{func(v *Values) { v.CRDs = true }, "--crds has no effect"},
		{func(v *Values) {
			v.ConfigCluster, v.ExposeControlPlane = v.ClusterID, true
			v.Remote = Remote{Enabled: true, Address: "192.0.2.1"}
		}, "--expose-istiod has no effect in a cluster without a control plane"},
	} {
		v := Default(testImage)
		v.ClusterID, v.ConfigCluster = "cluster1", "cluster2"
		tt.change(&v)
		if err := v.Check(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
}

// TestRefused: wrong values are refused with their place and the reason.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ values, want string }{
		{"", "f: it has no values"},
		{"kind: Deployment", "f: kind Deployment, want IstioOperator or Helm values"},
		{"global: 1", "f:1: global: want a mapping"},
		{"global:\n  meshID: [a]", "f:2: global.meshID: want a text"},
		{"pilot:\n  replicaCount: many", "f:2: pilot.replicaCount: want a number of at least 0"},
		{"pilot:\n  autoscaleEnabled: perhaps", "f:2: pilot.autoscaleEnabled: want true or false"},
		{"pilot:\n  env: [A]", "f:2: pilot.env: want a mapping of names to values"},
		{"kind: IstioOperator\nspec:\n  profile: demo", "f:3: spec.profile: profile demo is not supported, use default, minimal, remote or empty"},
		{"kind: IstioOperator\nspec: {components: {ingressGateways: {a: b}}}", "want a list"},
		{"kind: IstioOperator\nspec: {components: {ingressGateways: [{k8s: {service: {ports: [{prt: 1}]}}}]}}", `unknown field "prt"`},
		{"global: {}\n---\nglobal: {}", "a second YAML document"},
		{"revision: Canary", `revision "Canary" is not a DNS label`},
		{"revision: default", "revision default is the name of a control plane without a revision: leave it out"},
		{"global: {istioNamespace: a/b}", `namespace "a/b" is not a DNS label`},
		{"pilot: {autoscaleMin: 3, autoscaleMax: 2}", "control plane: autoscaling from 3 to 2 replicas"},
		{"istiodRemote: {enabled: true}\nglobal: {multiCluster: {clusterName: c}}", "the address of the control plane is missing"},
		{"istiodRemote: {enabled: true}\nglobal: {remotePilotAddress: 192.0.2.1}", "needs its own name"},
		{"istiodRemote: {enabled: true, injectionPath: /x}\nglobal: {remotePilotAddress: a.example}", `injectionPath "/x": want /inject/`},
		{"istiodRemote: {enabled: true}\nglobal: {multiCluster: {clusterName: c}, remotePilotAddress: 127.0.0.1}", "pods do not reach the control plane at 127.0.0.1"},
		{"istiodRemote: {enabled: true}\nglobal: {multiCluster: {clusterName: c}, remotePilotAddress: 'a:1'}", `address "a:1" of the control plane is neither`},
		{"istiodRemote: {enabled: true}\nglobal: {meshID: m, multiCluster: {clusterName: c}, remotePilotAddress: 192.0.2.1}", "global.meshID, has no effect"},
		{"global: {remotePilotAddress: 192.0.2.1}", "global.remotePilotAddress needs profile remote"},
		{"global: {configCluster: true}", "global.configCluster needs profile remote"},
		{"istiodRemote: {enabled: true}\nrevision: canary\nglobal: {configCluster: true, multiCluster: {clusterName: c}, remotePilotAddress: 192.0.2.1}", "--revision does not work with --config-cluster"},
		{"kind: IstioOperator\nspec: {components: {ingressGateways: [{k8s: {service: {ports: []}}}]}}", "gateway istio-ingressgateway has no ports"},
	} {
		v := Default(testImage)
		_, err := v.Read("f", []byte(tt.values))
		if err == nil {
			err = v.Check()
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %s", tt.values, err, tt.want)
		}
	}
}

// TestSet: --set sets the value at a path of the spec, and lists paths without effect.
func TestSet(t *testing.T) {
	t.Parallel()
	v := Default(testImage)
	var unsupported []string
	for _, s := range []string{
		"values.global.meshID=mesh1", "values.global.multiCluster.clusterName=east", "values.pilot.autoscaleEnabled=false",
		`meshConfig.defaultConfig.proxyMetadata.A\.B=1`, "meshConfig.accessLogFile=/dev/stdout", "values.global.proxy.privileged=true", "values.global.proxy.logLevel=debug",
		"tag=v2", "hub=registry.example/mesh",
	} {
		more, err := v.Set(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range more {
			unsupported = append(unsupported, p.String())
		}
	}
	if v.MeshID != "mesh1" || v.ClusterID != "east" || v.ControlPlane.Workload.Autoscale || v.Image != "registry.example/mesh/meshctl:v2" {
		t.Errorf("%+v", v)
	}
	const want = "map[accessLogFile:/dev/stdout defaultConfig:map[proxyMetadata:map[A.B:1]]]"
	if got := fmt.Sprint(v.MeshConfig); got != want {
		t.Errorf("meshConfig %s, want %s", got, want)
	}
	if want := []string{"--set: values.global.proxy.privileged"}; !slices.Equal(want, unsupported) {
		t.Errorf("unsupported %q, want %q", unsupported, want)
	}
	for _, s := range []string{"a", "=1", "a..b=1", "components.ingressGateways[0].name=a", "a={"} {
		if _, err := v.Set(s); err == nil {
			t.Errorf("%s is accepted", s)
		}
	}
}

// TestSetKeepsTexts: a text field gets the text as typed, other fields their type.
func TestSetKeepsTexts(t *testing.T) {
	t.Parallel()
	for assignment, want := range map[string]func(*Values) (any, any){
		"tag=1.10":                  func(v *Values) (any, any) { return v.Image, "registry.example/meshctl:1.10" },
		"hub=0x10.example":          func(v *Values) (any, any) { return v.Image, "0x10.example/meshctl:v1" },
		"values.global.network=on":  func(v *Values) (any, any) { return v.Network, "on" },
		"values.global.meshID=1e3":  func(v *Values) (any, any) { return v.MeshID, "1e3" },
		"values.global.meshID=null": func(v *Values) (any, any) { return v.MeshID, "" },
		"values.global.proxy.logLevel=off": func(v *Values) (any, any) {
			return v.Injector["global"].(map[string]any)["proxy"].(map[string]any)["logLevel"], "off"
		},
		"values.pilot.env.MESHCTL_A=yes":   func(v *Values) (any, any) { return v.ControlPlane.Env[0].Value, "yes" },
		"values.pilot.autoscaleEnabled=no": func(v *Values) (any, any) { return v.ControlPlane.Workload.Autoscale, false },
		"values.pilot.replicaCount=07":     func(v *Values) (any, any) { return v.ControlPlane.Workload.Replicas, int32(7) },
		"values.pilot.resources.limits.cpu=2": func(v *Values) (any, any) {
			return v.ControlPlane.Workload.Resources.Limits.Cpu().String(), "2"
		},
		"values.pilot.podAnnotations.a=true":       func(v *Values) (any, any) { return v.ControlPlane.Workload.Annotations["a"], "true" },
		"meshConfig.enableAutoMtls=false":          func(v *Values) (any, any) { return v.MeshConfig["enableAutoMtls"], false },
		"meshConfig.trustDomain=1.10":              func(v *Values) (any, any) { return v.MeshConfig["trustDomain"], "1.10" },
		"values.meshConfig.accessLogEncoding=TEXT": func(v *Values) (any, any) { return v.MeshConfig["accessLogEncoding"], "TEXT" },
		"values.global.proxy.excludeInboundPorts=8080": func(v *Values) (any, any) {
			return v.Injector["global"].(map[string]any)["proxy"].(map[string]any)["excludeInboundPorts"], "8080"
		},
		"values.global.proxy.readinessPeriodSeconds=5": func(v *Values) (any, any) {
			return v.Injector["global"].(map[string]any)["proxy"].(map[string]any)["readinessPeriodSeconds"], 5.0
		},
		"meshConfig.defaultConfig.proxyMetadata.X=true": func(v *Values) (any, any) {
			return v.MeshConfig["defaultConfig"].(map[string]any)["proxyMetadata"].(map[string]any)["X"], "true"
		},
		"meshConfig.defaultConfig.concurrency=3": func(v *Values) (any, any) {
			return fmt.Sprint(v.MeshConfig["defaultConfig"].(map[string]any)["concurrency"]), "3"
		},
	} {
		v := Default(testImage)
		if _, err := v.Set(assignment); err != nil {
			t.Errorf("%s: %v", assignment, err)
			continue
		}
		if got, want := want(&v); got != want {
			t.Errorf("%s: got %#v, want %#v", assignment, got, want)
		}
	}
	v := Default(testImage)
	if _, err := v.Set("meshConfig.enableAutoMtls=maybe"); err == nil || len(v.MeshConfig) > 0 {
		t.Errorf("a text for a boolean: %v, %v", err, v.MeshConfig)
	}
}

// TestImageWarning: a hub of Istio has no image of meshctl.
func TestImageWarning(t *testing.T) {
	t.Parallel()
	for hub, want := range map[string]bool{"docker.io/istio": true, "gcr.io/istio-release": true, "registry.example/istio": false, "docker.io/istio/mirror": false} {
		v := Default(testImage)
		if _, err := v.Read("f", []byte("global: {hub: "+hub+", tag: 1.29.0}")); err != nil {
			t.Fatal(err)
		}
		if got := v.ImageWarning(); (got != "") != want {
			t.Errorf("%s: %q", hub, got)
		}
	}
}

// TestEmptyTexts: empty texts, the defaults of many charts, are not set.
func TestEmptyTexts(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"global: {multiCluster: {clusterName: '', enabled: ''}, istioNamespace: '', imagePullPolicy: '', hub: '', tag: '', network: '', priorityClassName: ''}",
		"pilot: {autoscaleEnabled: '', autoscaleMin: '', resources: '', nodeSelector: '', image: '', podAnnotations: ''}",
		"kind: IstioOperator\nspec: {profile: '', hub: '', tag: '', revision: '', namespace: '', meshConfig: '', components: {base: {enabled: ''}}}",
	} {
		v := Default(testImage)
		unsupported, err := v.Read("f", []byte(text))
		if diff := cmp.Diff(Default(testImage), v); diff != "" || err != nil || len(unsupported) > 0 {
			t.Errorf("%s: %v, no effect: %v, (-none +empty):\n%s", text, err, unsupported, diff)
		}
	}
}

// TestGenericObjects: every object has the labels by which uninstall finds it, and no two
// have the same name.
func TestGenericObjects(t *testing.T) {
	t.Parallel()
	v := Default(testImage)
	v.CRDs, v.Network = true, "network1"
	v.Gateways, v.ExposeServices, v.ExposeControlPlane = []Gateway{EastWestGateway("network1")}, true, true
	objects, err := Objects(&v)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, o := range objects {
		ref := Ref(o)
		if seen[ref] || o.GetLabels()[LabelInstallation] == "" {
			t.Errorf("%s: labels %v, or twice", ref, o.GetLabels())
		}
		seen[ref] = true
	}
	if !seen["Service istio-system/istiod"] || !seen["Gateway istio-system/cross-network-gateway"] {
		t.Error(seen)
	}
	index := func(ref string) int {
		return slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return Ref(o) == ref })
	}
	// A pod of a gateway that is created before the injector is configured stays without
	// an image.
	if index("MutatingWebhookConfiguration istio-sidecar-injector") > index("Deployment istio-system/istio-eastwestgateway") {
		t.Error("a gateway precedes the injector")
	}
}

// FuzzRead: no file of values makes Read or Objects fail otherwise than with an error.
func FuzzRead(f *testing.F) {
	files, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v := Default(testImage)
		if _, err := v.Read("f", text); err != nil {
			return
		}
		objects, err := Objects(&v)
		if err != nil {
			return
		}
		if _, err := YAML(objects); err != nil {
			t.Error(err)
		}
	})
}
