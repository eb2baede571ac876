//go:build !race

package fields

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/load"
	"github.com/meshctl/meshctl/internal/server/render"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/dir"
	_ "github.com/meshctl/meshctl/internal/xdswire/protos" // of EnvoyFilters
)

// object is an object of Kubernetes in JSON.
type object map[string]any

func (o object) at(names ...string) any {
	var v any = map[string]any(o)
	for _, name := range names {
		inner, _ := v.(map[string]any)
		v = inner[name]
	}
	return v
}

func (o object) kind() string { text, _ := o["kind"].(string); return text }

func (o object) spec() map[string]any { spec, _ := o["spec"].(map[string]any); return spec }

func (o object) id() string {
	return fmt.Sprintf("%s %v/%v", o.kind(), o.at("metadata", "namespace"), o.at("metadata", "name"))
}

// with returns a copy with another spec.
func (o object) with(spec map[string]any) object {
	out := maps.Clone(o)
	out["spec"] = spec
	return out
}

// objectsOf parses the documents of a file of YAML.
func objectsOf(t *testing.T, file string) []object {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []object
	for doc := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var o object
		if err := yaml.Unmarshal(doc, &o); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		items, isList := o["items"].([]any)
		if !isList && o != nil {
			out = append(out, o)
		}
		for _, item := range items {
			item, _ := item.(map[string]any)
			out = append(out, item)
		}
	}
	return out
}

// examples returns the objects of a kind in testdata/<kind>.yaml, and the other objects of the mesh:
// those of that file, and those of testdata/mesh.yaml and of the corpus that it does not define itself.
func examples(t *testing.T, kind string) (of, others []object) {
	t.Helper()
	own := map[string]bool{}
	for _, o := range objectsOf(t, filepath.Join("testdata", kind+".yaml")) {
		if own[o.id()] = true; o.kind() == kind && !strings.HasPrefix(fmt.Sprint(o.at("metadata", "name")), "other") {
			of = append(of, o)
		} else {
			others = append(others, o)
		}
	}
	if kind == "MeshConfig" { // its defaultConfig has the fields of PROXY_CONFIG
		pods, _ := examples(t, kindPodConfig)
		for _, o := range pods {
			of = append(of, of[0].with(map[string]any{"defaultConfig": o.spec()}))
		}
	}
	for _, file := range []string{"testdata/mesh.yaml", "../../internal/server/render/testdata/base.yaml"} {
		for _, o := range objectsOf(t, file) {
			if !own[o.id()] && (kind != "MeshConfig" || o.kind() != "ConfigMap") {
				others = append(others, o)
			}
		}
	}
	return of, others
}

// problem is a fault of an object that meshctl reports.
type problem struct {
	object, field, text string
	refused             bool
}

// result is what a mesh gives.
type result struct {
	objects  []object
	clusters []load.Cluster
	events   []snapshot.Event
	// podConfig is PROXY_CONFIG of an agent in JSON, or "" for that of an injected pod. proxyConfig is what
	// the agent makes of it, and warned are its warnings.
	podConfig   string
	proxyConfig map[string]any
	warned      []problem
	// faults are those of single objects.
	faults []problem
	// found are the faults of all objects, and generated the effects by place. Both are made when they
	// are needed.
	found     []problem
	mesh      *render.Mesh
	nodes     map[string]render.Node // by place
	generated map[string]map[string]string
}

// resultOf reads a mesh.
func resultOf(t *testing.T, objects []object) *result {
	t.Helper()
	var text bytes.Buffer
	out := &result{objects: objects}
	for _, o := range objects {
		doc, err := json.Marshal(inKubernetes(t, o))
		if err != nil {
			t.Fatal(err)
		}
		if o.kind() == kindPodConfig {
			if doc, err = json.Marshal(o.spec()); err != nil {
				t.Fatal(err)
			}
			out.podConfig = string(doc)
			continue
		}
		text.WriteString("---\n")
		text.Write(doc)
		text.WriteString("\n")
	}
	out.clusters = []load.Cluster{{ID: "c1", Files: []load.File{{Name: "mesh.yaml", Text: text.Bytes()}}}}
	events, faults := dir.Parse(&source.Converter{Cluster: "c1", SocketDir: "/run"}, "mesh.yaml", text.Bytes())
	out.events, out.faults = events, problemsOf(analyze.OfFiles(faults))
	return out
}

// onWorkloads names the effects on workloads, apart from the configurations of proxies.
const onWorkloads = "workloads"

// places returns what the mesh has effects on: workloads, and each proxy.
func (r *result) places(t *testing.T) []string {
	t.Helper()
	if r.nodes != nil {
		return slices.Sorted(maps.Keys(r.nodes))
	}
	r.nodes, r.generated = map[string]render.Node{}, map[string]map[string]string{}
	if last := r.objects[len(r.objects)-1].kind(); slices.Contains([]string{"MeshConfig", "ProxyConfig", "WorkloadGroup", kindPodConfig}, last) {
		r.nodes[onWorkloads], r.generated[onWorkloads] = nil, map[string]string{}
		r.workload(t)
	}
	config, err := structpb.NewValue(r.proxyConfig)
	if err != nil {
		t.Fatal(err)
	}
	if r.mesh, err = render.Read(t.Context(), renderConfig(r.clusters)); err != nil {
		t.Fatal(err)
	}
	for _, n := range r.mesh.Nodes() {
		if strings.Contains(n.GetId(), "reviews-2.shop") {
			continue // like reviews-1
		}
		for name, value := range map[string]string{"DNS_CAPTURE": "true", "MESHCTL_RELAY": "true", "BOOTSTRAP_XDS_AGENT": "true", "ISTIO_VERSION": "meshctl-1.0"} {
			n.Metadata.Fields[name] = structpb.NewStringValue(value)
		}
		n.Metadata.Fields["PROXY_CONFIG"] = config
		r.nodes[n.GetId()] = n
	}
	return slices.Sorted(maps.Keys(r.nodes))
}

// effects returns the effects on a place: texts by the name of what they are, such as "route http.80".
func (r *result) effects(t *testing.T, place string) map[string]string {
	t.Helper()
	n := r.nodes[place]
	if r.generated[place] != nil || n == nil {
		return r.generated[place]
	}
	p, err := r.mesh.Proxy(n)
	if err != nil {
		t.Fatal(err)
	}
	resources, err := p.Resources()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, typ := range render.Types() {
		for _, resource := range resources.Of(typ) {
			text, err := resource.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			out[typ+" "+resource.Name] = string(text)
		}
	}
	r.generated[place] = out
	return out
}

func renderConfig(clusters []load.Cluster) render.Config {
	return render.Config{Clusters: clusters, SystemNamespace: "istio-system", SocketDir: "/run", Now: now, Log: slog.New(slog.DiscardHandler)}
}

// now is the time of all meshes.
func now() time.Time { return time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC) }

// problems returns what validate and analyze find.
func (r *result) problems(t *testing.T) []problem {
	t.Helper()
	if r.found == nil {
		m, err := load.Read(t.Context(), load.Config{Clusters: r.clusters, SystemNamespace: "istio-system", SocketDir: "/run", Now: now})
		if err != nil {
			t.Fatal(err)
		}
		r.found = append(slices.Concat(r.faults, r.warned), problemsOf(analyze.Check(m.Contents, analyze.Options{Now: now()}))...)
	}
	return r.found
}

func problemsOf(findings []analyze.Finding) []problem {
	var out []problem
	for i := range findings {
		f := &findings[i]
		p := problem{
			object: fmt.Sprintf("%s %s/%s", f.Object.Kind, f.Object.Namespace, f.Object.Name), field: f.Field, text: f.Message,
			refused: f.Code == codes.SchemaValidationError,
		}
		if p.object == "ConfigMap istio-system/istio" {
			p.object = "MeshConfig istio-system/istio"
		}
		if p.field == "" {
			p.field, p.text = splitReason(f.Message)
		}
		out = append(out, p)
	}
	return out
}

// reason matches the reason of a fault that begins with a field.
var reason = regexp.MustCompile(`(?s)^(?:data\.mesh(?:, line \d+)?: )?([a-zA-Z][^ ]*): (.*)$`)

func splitReason(text string) (field, rest string) {
	if m := reason.FindStringSubmatch(text); m != nil {
		return m[1], m[2]
	}
	return "", text
}

// pathOf returns the path of names within the spec of a field.
func pathOf(field string) string {
	field = regexp.MustCompile(`\[[^\]]*\]`).ReplaceAllString(field, "")
	return strings.TrimPrefix(strings.TrimPrefix(field, "spec"), ".")
}

// kindPodConfig is the kind of examples of PROXY_CONFIG, which are no objects of Kubernetes.
const kindPodConfig = "PodConfig"

// inKubernetes returns the object that holds a MeshConfig, or the object itself.
func inKubernetes(t *testing.T, o object) object {
	t.Helper()
	if o.kind() != "MeshConfig" {
		return o
	}
	text, err := yaml.Marshal(o.spec())
	if err != nil {
		t.Fatal(err)
	}
	return object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": o["metadata"], "data": map[string]any{"mesh": string(text)}}
}
