package source

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayv1alpha2 "sigs.k8s.io/gateway-api/apis/v1alpha2"
	gatewayv1alpha3 "sigs.k8s.io/gateway-api/apis/v1alpha3"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"
	gatewayx "sigs.k8s.io/gateway-api/apisx/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/server/source/meshconfig"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// kindVersions maps kinds, such as gateways.networking.istio.io Gateway, to
// their versions.
type kindVersions map[string][]string

// istioKinds reads the definitions of resources that istio.io/api ships.
func istioKinds(t *testing.T) kindVersions {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "istio.io/api").Output()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "kubernetes", "customresourcedefinitions.gen.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	out := kindVersions{}
	for _, doc := range regexp.MustCompile(`(?m)^---$`).Split(string(text), -1) {
		var crd struct {
			Spec struct {
				Group    string
				Names    struct{ Kind, Plural string }
				Versions []struct{ Name string }
			}
		}
		if err := yaml.Unmarshal([]byte(doc), &crd); err != nil {
			t.Fatal(err)
		}
		for _, v := range crd.Spec.Versions {
			id := crd.Spec.Names.Plural + "." + crd.Spec.Group + " " + crd.Spec.Names.Kind
			out[id] = append(out[id], v.Name)
		}
	}
	return out
}

// TestEveryKindIsInTheTable: kinds has each kind of the Istio API and of the Kubernetes
// Gateway API exactly once, with all its versions.
func TestEveryKindIsInTheTable(t *testing.T) {
	t.Parallel()
	want := istioKinds(t)
	gateway := map[string][]string{} // group and kind → versions; the plural is not known
	scheme := runtime.NewScheme()
	for _, install := range []func(*runtime.Scheme) error{
		gatewayv1.Install, gatewayv1beta1.Install, gatewayv1alpha3.Install, gatewayv1alpha2.Install, gatewayx.Install,
	} {
		if err := install(scheme); err != nil {
			t.Fatal(err)
		}
	}
	for gvk := range scheme.AllKnownTypes() {
		object, err := scheme.New(gvk)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := object.(metav1.Object); ok && strings.Contains(gvk.Group, "gateway.networking") {
			gateway[gvk.Group+" "+gvk.Kind] = append(gateway[gvk.Group+" "+gvk.Kind], gvk.Version)
		}
	}
	if len(want) < 15 || len(gateway) < 13 {
		t.Fatalf("found %d kinds of Istio and %d of the Gateway API", len(want), len(gateway))
	}
	seen := map[string]bool{}
	for _, k := range kinds {
		if k.support == "" {
			continue
		}
		id, known := k.groupResource()+" "+k.name, want
		if k.shared() {
			id, known = k.group+" "+k.name, gateway
		}
		versions := slices.Sorted(slices.Values(k.versions))
		switch missing := slices.DeleteFunc(slices.Clone(known[id]), func(v string) bool { return slices.Contains(versions, v) }); {
		case seen[id]:
			t.Errorf("%s is in the table twice", id)
		case known[id] == nil:
			t.Errorf("%s is in the table and does not exist", id)
		case len(missing) > 0:
			t.Errorf("%s lacks the versions %v", id, missing)
		}
		seen[id] = true
		if k.support == fields.NoEffect && k.meaning == "" || k.support == fields.Partly && k.meaning == "" {
			t.Errorf("%s: its meaning is missing", id)
		}
	}
	for id := range maps.All(want) {
		if !seen[id] {
			t.Errorf("%s is not in the table", id)
		}
	}
	for id := range gateway {
		if !seen[id] {
			t.Errorf("%s is not in the table", id)
		}
	}
}

// rowsOf returns the rows by path.
func rowsOf(t *testing.T, list []fields.Field) map[string]*fields.Field {
	t.Helper()
	rows := map[string]*fields.Field{}
	for i := range list {
		if rows[list[i].Path] != nil {
			t.Errorf("%s is in the table twice", list[i].Path)
		}
		rows[list[i].Path] = &list[i]
	}
	return rows
}

// checkRows checks that each row has a field of the message and each field a row. With
// all set, it also checks the fields of messages that work partly.
func checkRows(t *testing.T, d protoreflect.MessageDescriptor, parent string, rows map[string]*fields.Field, all bool) {
	t.Helper()
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		path := strings.TrimPrefix(parent+"."+fd.JSONName(), ".")
		row := rows[path]
		switch {
		case row == nil && (all || parent == ""):
			t.Errorf("field %s of %s is not in the table", path, d.FullName())
		case row == nil:
		case row.Support != fields.Works && row.Meaning == "":
			t.Errorf("%s: its meaning is missing", path)
		case row.Support == fields.Partly && fd.Message() != nil:
			checkRows(t, fd.Message(), path, rows, all)
		}
		delete(rows, path)
	}
	if parent == "" {
		for path := range rows {
			t.Errorf("%s is in the table and no field of %s", path, d.FullName())
		}
	}
}

// TestEveryFieldIsInTheTable: each field of MeshConfig and of the kinds that work partly
// is in the table exactly once.
func TestEveryFieldIsInTheTable(t *testing.T) {
	t.Parallel()
	checkRows(t, (&meshv1alpha1.MeshConfig{}).ProtoReflect().Descriptor(), "", rowsOf(t, meshconfig.Fields), true)
	for _, k := range kinds {
		if len(k.fields) > 0 {
			object := k.newObject()
			istio, _ := object.(*Istio)
			checkRows(t, istio.Spec.ProtoReflect().Descriptor(), "", rowsOf(t, k.fields), false)
		}
	}
}

// otherValue sets the field of a message to another value.
func otherValue(m protoreflect.Message, fd protoreflect.FieldDescriptor) {
	set := func(v any) { m.Set(fd, protoreflect.ValueOf(v)) }
	switch {
	case fd.IsMap():
		m.Mutable(fd).Map().Set(protoreflect.ValueOf("k").MapKey(), m.Mutable(fd).Map().NewValue())
	case fd.IsList() && fd.Message() != nil:
		otherValue(m.Mutable(fd).List().AppendMutable().Message(), fd.Message().Fields().Get(0))
	case fd.IsList() && fd.Enum() != nil:
		m.Mutable(fd).List().Append(protoreflect.ValueOf(protoreflect.EnumNumber(1)))
	case fd.IsList():
		m.Mutable(fd).List().Append(protoreflect.ValueOf("other.example"))
	case fd.Message() != nil:
		otherValue(m.Mutable(fd).Message(), fd.Message().Fields().Get(0))
	case fd.Enum() != nil:
		other := protoreflect.EnumNumber(1)
		if m.Get(fd).Enum() == other {
			other = 2
		}
		if fd.Enum().Values().ByNumber(other) == nil {
			other = 0
		}
		set(other)
	case fd.Kind() == protoreflect.BoolKind:
		set(!m.Get(fd).Bool())
	case fd.Kind() == protoreflect.StringKind:
		set("other")
	case fd.Kind() == protoreflect.Int32Kind:
		set(int32(m.Get(fd).Int()) + 1)
	case fd.Kind() == protoreflect.Int64Kind:
		set(m.Get(fd).Int() + 1)
	case fd.Kind() == protoreflect.Uint32Kind:
		set(uint32(m.Get(fd).Uint()) + 1)
	case fd.Kind() == protoreflect.DoubleKind:
		set(m.Get(fd).Float() + 1)
	default:
		panic(fd.FullName())
	}
}

// meshWarnings converts a ConfigMap istio with a MeshConfig in JSON.
func meshWarnings(t *testing.T, c *Converter, text string) []string {
	t.Helper()
	r, err := c.Convert(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "istio", Namespace: "istio-system"}, Data: map[string]string{"mesh": text},
	}, snapshot.Place{})
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	var out []string
	for _, w := range r.Warnings {
		out = append(out, w.Error())
	}
	return out
}

// TestMeshConfigWithoutEffectIsReported: exactly the fields of MeshConfig that have no
// effect according to the table are reported.
func TestMeshConfigWithoutEffectIsReported(t *testing.T) {
	t.Parallel()
	c := &Converter{Cluster: "c"}
	for i := range meshconfig.Fields {
		row := &meshconfig.Fields[i]
		needsGood := strings.Fields("trustDomain meshMTLS tlsDefaults defaultTrafficPolicy defaultServiceExportTo defaultDestinationRuleExportTo localityLbSetting " +
			"defaultConfig.tracing.zipkin defaultConfig.tracing.customTags defaultConfig.tracingServiceName defaultConfig.controlPlaneAuthPolicy " +
			"defaultConfig.discoveryAddress defaultConfig.statusPort defaultConfig.readinessProbe")
		if row.Support == fields.Partly || strings.HasPrefix(row.Path, "caCertificates.") || strings.HasPrefix(row.Path, "extensionProviders.") || slices.Contains(needsGood, row.Path) {
			continue // these need good values, which TestConvert has
		}
		m := meshconfig.Actual()
		parent, names := m.ProtoReflect(), strings.Split(row.Path, ".")
		for _, name := range names[:len(names)-1] {
			parent = parent.Mutable(parent.Descriptor().Fields().ByJSONName(name)).Message()
		}
		fd := parent.Descriptor().Fields().ByJSONName(names[len(names)-1])
		otherValue(parent, fd)
		text, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		given := map[string]any{}
		if err := json.Unmarshal(text, &given); err != nil {
			t.Fatal(err)
		}
		value := given[names[0]]
		if value == nil { // a zero value, which protojson leaves out
			value = fd.Default().Interface()
			if fd.Enum() != nil {
				value = string(fd.DefaultEnumValue().Name())
			}
		}
		if text, err = json.Marshal(map[string]any{names[0]: value}); err != nil {
			t.Fatal(err)
		}
		got := meshWarnings(t, c, string(text))
		switch {
		case row.Support == fields.Works && len(got) > 0:
			t.Errorf("%s works and is reported: %v", row.Path, got)
		case row.Support == fields.NoEffect && (len(got) != 1 || !strings.Contains(got[0], row.Path+": has no effect: ")):
			t.Errorf("%s of %s is reported as %q", row.Path, text, got)
		}
	}
	for text, want := range map[string]int{
		// A mesh that asks for what there is gets it.
		"proxyListenPort: 15001\nenablePrometheusMerge: false\ningressControllerMode: \"OFF\"\nrootNamespace: istio-system": 0,
		"defaultConfig: {discoveryAddress: \"istiod.istio-system.svc:15012\"}":                                              0,
		"tcpKeepalive: {probes: 3}\ndefaultConfig: {statNameLength: 5}\ncertificates: [{secretName: a}]":                    2,
	} {
		if got := meshWarnings(t, c, text); len(got) != want {
			t.Errorf("%s: %q", text, got)
		}
		if got := meshWarnings(t, &Converter{Cluster: "c", Remote: true}, text); len(got) > 0 {
			t.Errorf("%s of another cluster: %q", text, got)
		}
	}
}

// TestKindsWithoutEffectAreReported: exactly the objects of kinds that have no effect
// according to the table are reported.
func TestKindsWithoutEffectAreReported(t *testing.T) {
	t.Parallel()
	good := map[string]string{ // what the kinds that are read need
		"VirtualService": "{hosts: [a], http: [{route: [{destination: {host: a}}]}]}", "DestinationRule": "{host: a}",
		"ServiceEntry": "{hosts: [a.example]}", "Gateway": "{servers: [{port: {number: 15443, name: tls, protocol: TLS}, tls: {mode: AUTO_PASSTHROUGH}, hosts: ['*.local']}]}",
		"WorkloadEntry": "{address: 192.0.2.1}", "WasmPlugin": "{url: file:///a}", "TrafficExtension": "{lua: {inlineCode: a}}",
	}
	watched := map[string]bool{}
	for _, r := range Watched() {
		watched[r.GroupResource()] = true
	}
	for _, k := range kinds {
		if k.support == "" {
			continue
		}
		spec := good[k.name]
		if spec == "" || k.shared() {
			spec = "{}"
		}
		text := fmt.Sprintf("{apiVersion: %s/%s, kind: %s, metadata: {name: x, namespace: 'n'}, spec: %s}", k.group, k.versions[0], k.name, spec)
		doc, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte(text), Line: 1})
		if err != nil {
			t.Fatal(err)
		}
		r, err := (&Converter{Cluster: "c"}).Decode(doc, snapshot.Place{})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		reported := len(r.Warnings) == 1 && strings.HasPrefix(r.Warnings[0].Error(), "has no effect: ")
		if want := k.support == fields.NoEffect && !k.unreported; reported != want {
			t.Errorf("%s is reported: %t, %v", k.groupResource(), reported, r.Warnings)
		}
		if reported && !watched[k.groupResource()] {
			t.Errorf("%s is not followed over the Kubernetes API", k.groupResource())
		}
		if want := k.support == fields.NoEffect && k.group == groupSecurity; r.Unenforced(nil, false) != want {
			t.Errorf("%s: a security policy that is not enforced: %t", text, !want)
		}
		r, err = (&Converter{Cluster: "c", Remote: true}).Decode(doc, snapshot.Place{})
		if err != nil || len(r.Warnings) > 0 || r.Unenforced(nil, false) {
			t.Errorf("%s of another cluster: %v, %v", text, r.Warnings, err)
		}
	}
}

// TestSecurityPoliciesThatAreNotEnforced: security policies that no proxy can enforce refuse
// requests. If they are ignored, they are reported as not enforced.
func TestSecurityPoliciesThatAreNotEnforced(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy":                                              false,
		"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nspec: {action: DENI}":                        false,
		"apiVersion: security.istio.io/v1\nkind: AuthorisationPolicy":                                              true,
		"apiVersion: security.istio.io/v1\nkind: Policy":                                                           true,
		"apiVersion: networking.istio.io/v1\nkind: AuthorizationPolicy":                                            true,
		"apiVersion: networking.istio.io/v1\nkind: PeerAuthentication":                                             true,
		"apiVersion: security.istio.io/v2\nkind: PeerAuthentication":                                               true,
		"apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nspec: {targetRef: {kind: Service, name: a}}": true,
		"apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nspec: {mtls: {mode: STRIKT}}":                 false,
		"apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nspec: {tls: {mode: STRICT}}":                  false,
		"apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nspec: {mtls: {mode: STRICT}}":                 false,
		"apiVersion: networking.istio.io/v1\nkind: VirtualService\nspec: {hosts: [a], tcp: [{}]}":                  false,
		"apiVersion: networking.istio.io/v1\nkind: Sidecarr":                                                       false,
		"apiVersion: gateway.networking.k8s.io/v1\nkind: BackendTLSPolicy":                                         false,
		"apiVersion: example.com/v1\nkind: AuthorizationPolicy":                                                    false,
		"apiVersion: policy.linkerd.io/v1beta1\nkind: AuthorizationPolicy\nspec: {targetRef: {a: b}}":              false,
	} {
		doc, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte(text + "\nmetadata: {name: x, namespace: 'n'}\n"), Line: 1})
		if err != nil {
			t.Fatal(err)
		}
		r, err := (&Converter{Cluster: "c", IgnorePolicies: true}).Decode(doc, snapshot.Place{})
		if got := r.Unenforced(err, false); got != want {
			t.Errorf("%s, ignored: %t (%v)", text, got, err)
		}
		r, err = (&Converter{Cluster: "c"}).Decode(doc, snapshot.Place{})
		if got := r.Unenforced(err, false); got || want && r.Closed == nil {
			t.Errorf("%s: not enforced %t (%v), refuses by %v", text, got, err, r.Closed)
		}
	}
}

// TestFieldsWithoutEffectAreReported: exactly the fields without effect are reported, of
// the kinds that work partly.
func TestFieldsWithoutEffectAreReported(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		if k.support == "" {
			continue
		}
		for j := range k.fields {
			row := &k.fields[j]
			object := k.newObject()
			istio, _ := object.(*Istio)
			spec := proto.Clone(istio.Spec)
			if row.Support == fields.Works {
				continue
			}
			parent, below, _ := strings.Cut(row.Path, ".")
			setPath(spec.ProtoReflect(), strings.Split(row.Path, "."))
			if fd := spec.ProtoReflect().Descriptor().Fields().ByJSONName(parent); strings.HasPrefix(parent, "targetRef") && below != "" {
				ref := (&typev1beta1.PolicyTargetReference{Group: groupGatewayAPI, Kind: "Gateway", Namespace: "other"}).ProtoReflect()
				if spec.ProtoReflect().Clear(fd); fd.IsList() {
					spec.ProtoReflect().Mutable(fd).List().Append(protoreflect.ValueOf(ref))
				} else {
					spec.ProtoReflect().Set(fd, protoreflect.ValueOf(ref))
				}
			}
			reported := slices.ContainsFunc(k.withoutEffect(spec), func(f *fields.Error) bool {
				return regexp.MustCompile(`\[\d+\]`).ReplaceAllString(f.Field, "") == "spec."+row.Path
			})
			if parent == "servers" && row.Path != parent {
				continue // reported as a server that has no effect
			}
			if want := row.Support == fields.NoEffect || row.Lacks != nil; reported != want {
				t.Errorf("%s %s is reported: %t", k.name, row.Path, reported)
			}
		}
	}
}

// setPath sets the field at the path of a message.
func setPath(m protoreflect.Message, names []string) {
	fd := m.Descriptor().Fields().ByJSONName(names[0])
	if fd == nil {
		fd = m.Descriptor().Fields().ByTextName(names[0])
	}
	switch {
	case len(names) == 1:
		otherValue(m, fd)
	case fd.IsList():
		setPath(m.Mutable(fd).List().AppendMutable().Message(), names[1:])
	default:
		setPath(m.Mutable(fd).Message(), names[1:])
	}
}

const page = "../../../docs/api-support.md"

// TestPage: the tables of docs/api-support.md equal the tables of the code.
func TestPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	tables := map[string]string{"kinds": kindTable(), "MeshConfig": fieldTable(meshconfig.Fields)}
	for _, k := range kinds {
		if k.support == "" || k.support == fields.NoEffect || k.shared() {
			continue
		}
		object := k.newObject()
		istio, _ := object.(*Istio)
		tables[k.name] = fieldTable(allFields(istio.Spec.ProtoReflect().Descriptor(), "", rowsOf(t, k.fields)))
	}
	section := regexp.MustCompile(`(?s)<!-- table: (\S+) -->\n(.*?)<!-- end -->`)
	seen := map[string]int{}
	got := section.ReplaceAllStringFunc(string(text), func(old string) string {
		name := section.FindStringSubmatch(old)[1]
		seen[name]++
		return "<!-- table: " + name + " -->\n" + tables[name] + "<!-- end -->"
	})
	for name := range tables {
		if seen[name] != 1 {
			t.Errorf("the page has the table %s %d times", name, seen[name])
		}
	}
	if len(seen) != len(tables) {
		t.Errorf("the page has tables that are not known: %v", seen)
	}
	if update, _ := flag.Lookup("update").Value.(flag.Getter).Get().(bool); update {
		if err := os.WriteFile(page, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(got, string(text)); diff != "" {
		t.Errorf("%s differs (-want +got), -update rewrites it:\n%s", page, diff)
	}
}

func kindTable() string {
	var b strings.Builder
	b.WriteString("| kind | group | effect | what that means |\n|---|---|---|---|\n")
	groups := []string{groupSecurity, groupNetworking, groupTelemetry, groupIstioPlugins, groupGatewayAPI, groupGatewayXAPI}
	byGroup := slices.SortedStableFunc(slices.Values(kinds), func(a, b *kind) int {
		return slices.Index(groups, a.group) - slices.Index(groups, b.group)
	})
	for _, k := range byGroup {
		if k.support == "" {
			continue
		}
		meaning := k.meaning
		if k.unreported {
			meaning += " (not reported)"
		}
		fmt.Fprintf(&b, "| %s | `%s` | %s | %s |\n", k.name, k.group, bold(k.support), meaning)
	}
	return b.String()
}

// allFields returns a row for each field of a message and of the fields that work partly. A
// field without a row works.
func allFields(d protoreflect.MessageDescriptor, parent string, rows map[string]*fields.Field) []fields.Field {
	var out []fields.Field
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		row := fields.Field{Path: strings.TrimPrefix(parent+"."+fd.JSONName(), "."), Support: fields.Works}
		if given := rows[row.Path]; given != nil {
			row = *given
		}
		if out = append(out, row); row.Support == fields.Partly && fd.Message() != nil {
			out = append(out, allFields(fd.Message(), row.Path, rows)...)
		}
	}
	return out
}

func fieldTable(rows []fields.Field) string {
	var b strings.Builder
	b.WriteString("| field | effect | what that means |\n|---|---|---|\n")
	for i := range rows {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", rows[i].Path, bold(rows[i].Support), rows[i].Meaning)
	}
	return b.String()
}

func bold(s fields.Support) string {
	if s == fields.NoEffect {
		return "**" + string(s) + "**"
	}
	return string(s)
}
