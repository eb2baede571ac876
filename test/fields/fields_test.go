//go:build !race

// Package fields checks that no field, annotation or variable of Istio's API is silent: each has an
// effect, is refused, or is reported.
package fields

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	networkingv1beta1 "istio.io/api/networking/v1beta1"
	securityv1beta1 "istio.io/api/security/v1beta1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var kinds = map[string]proto.Message{
	"VirtualService": &networkingv1alpha3.VirtualService{}, "DestinationRule": &networkingv1alpha3.DestinationRule{},
	"Gateway": &networkingv1alpha3.Gateway{}, "ServiceEntry": &networkingv1alpha3.ServiceEntry{}, "Sidecar": &networkingv1alpha3.Sidecar{},
	"WorkloadEntry": &networkingv1alpha3.WorkloadEntry{}, "WorkloadGroup": &networkingv1alpha3.WorkloadGroup{},
	"EnvoyFilter": &networkingv1alpha3.EnvoyFilter{}, "ProxyConfig": &networkingv1beta1.ProxyConfig{},
	"AuthorizationPolicy": &securityv1beta1.AuthorizationPolicy{}, "PeerAuthentication": &securityv1beta1.PeerAuthentication{},
	"RequestAuthentication": &securityv1beta1.RequestAuthentication{}, "Telemetry": &telemetryv1alpha1.Telemetry{},
	"MeshConfig": &meshv1alpha1.MeshConfig{}, kindPodConfig: &meshv1alpha1.ProxyConfig{},
	"WasmPlugin": &extensionsv1alpha1.WasmPlugin{}, "TrafficExtension": &extensionsv1alpha1.TrafficExtension{},
}

// defaults holds the values that mean the same as no value, by kind and path.
var defaults = map[string][]string{
	"DestinationRule connectionPool.http.h2UpgradePolicy":   {"DO_NOT_UPGRADE"},
	"Gateway tls.maxProtocolVersion":                        {"TLSV1_3"},
	"Gateway tls.minProtocolVersion":                        {"TLSV1_2"},
	"Sidecar captureMode":                                   {"DEFAULT", "IPTABLES"},
	"Sidecar tls.maxProtocolVersion":                        {"TLSV1_3"},
	"Sidecar tls.minProtocolVersion":                        {"TLSV1_2"},
	"Gateway servers.tls.mode":                              {"PASSTHROUGH"},
	"MeshConfig accessLogEncoding":                          {"TEXT"},
	"MeshConfig pathNormalization.normalization":            {"BASE"},
	"MeshConfig serviceEntryVisibility.defaultVisibility":   {"PUBLIC"},
	"MeshConfig serviceEntryVisibility.policies.visibility": {"PUBLIC"},
	"MeshConfig meshMTLS.minProtocolVersion":                {"TLSV1_3"},
	"MeshConfig tlsDefaults.minProtocolVersion":             {"TLSV1_2"},
	"MeshConfig controlPlaneAuthPolicy":                     {"MUTUAL_TLS"},
	"MeshConfig ingressControllerMode":                      {"OFF"},
	"MeshConfig outboundTrafficPolicy.mode":                 {"ALLOW_ANY"},
	"PodConfig forwardClientCertDetails":                    {"SANITIZE_SET"},
	"MeshConfig forwardClientCertDetails":                   {"SANITIZE_SET"},
	"Telemetry tagOverrides.operation":                      {"UPSERT"},
	"VirtualService corsPolicy.unmatchedPreflights":         {"FORWARD"},
}

// forPeople holds the fields that describe an object for people, by kind and path.
var forPeople = map[string]bool{"Sidecar ingress.port.name": true, "Sidecar egress.port.name": true}

// testedElsewhere holds the tests that show the effects of further fields, by kind and path.
var testedElsewhere = map[string]string{
	"PodConfig holdApplicationUntilProxyStarts":                "test/fields TestNoFieldIsSilent", // of the injector: see MeshConfig
	"PodConfig readinessProbe.exec":                            "internal/agent/config TestProbe",
	"PodConfig readinessProbe.grpc":                            "internal/agent/config TestProbe",
	"PodConfig readinessProbe.httpGet":                         "internal/agent/config TestProbe",
	"PodConfig readinessProbe.tcpSocket":                       "internal/agent/config TestProbe",
	"WorkloadGroup template.locality":                          "internal/server/autoregister TestEntryOfTemplate",
	"WorkloadGroup template.ports":                             "internal/server/autoregister TestEntryOfTemplate",
	"MeshConfig defaultConfig.holdApplicationUntilProxyStarts": "internal/inject TestGolden",
	"MeshConfig serviceSettings":                               "internal/server/render TestCorpus", // of several clusters
	"MeshConfig caCertificates":                                "internal/server TestTrustBundle",
	"MeshConfig defaultConfig.readinessProbe.exec":             "internal/agent/config TestProbe",
	"MeshConfig defaultConfig.readinessProbe.grpc":             "internal/agent/config TestProbe",
	"MeshConfig defaultConfig.readinessProbe.httpGet":          "internal/agent/config TestProbe",
	"MeshConfig defaultConfig.readinessProbe.tcpSocket":        "internal/agent/config TestProbe",
	"WorkloadGroup template.weight":                            "internal/server/autoregister TestEntryOfTemplate",
}

// elsewhere reports whether another test shows the effect of a field.
func elsewhere(kind, path string) bool {
	for field := range testedElsewhere {
		of, prefix, _ := strings.Cut(field, " ")
		if of == kind && (path == prefix || strings.HasPrefix(path, prefix+".")) {
			return true
		}
	}
	return false
}

// TestElsewhere: the tests of testedElsewhere exist.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	all := maps.Clone(testedElsewhere)
	maps.Copy(all, annotationsElsewhere)
	for field, test := range all {
		dir, name, _ := strings.Cut(test, " ")
		if !strings.HasPrefix(name, "Test") {
			continue
		}
		files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(text), "func "+name+"(")
		}) {
			t.Errorf("%s: there is no %s", field, test)
		}
	}
}

// isDefault reports whether a value of a field means the same as no value.
func isDefault(kind, path, value string) bool {
	for field, values := range defaults {
		of, suffix, _ := strings.Cut(field, " ")
		if of == kind && strings.HasSuffix("."+path, "."+suffix) && slices.Contains(values, value) {
			return true
		}
	}
	return false
}

// TestNoFieldIsSilent sets or removes each field of each kind in the examples of
// testdata/<kind>.yaml. The configuration of some proxy then differs, or the field is refused or
// reported. The golden file has the result of each field.
func TestNoFieldIsSilent(t *testing.T) {
	t.Parallel()
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		if _, err := os.Stat(filepath.Join("testdata", kind+".yaml")); err != nil {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			of, others := examples(t, kind)
			w := &walk{T: t, kind: kind, others: others, examples: of, known: map[string]*result{}}
			for _, example := range of {
				if f := w.result(example).refusal(example); f != nil {
					t.Fatalf("%s is refused: %s: %s", example.id(), f.field, f.text)
				}
			}
			var lines []string
			for _, path := range leaves(kinds[kind].ProtoReflect().Descriptor(), "") {
				lines = append(lines, w.field(path)...)
			}
			golden(t, filepath.Join("testdata", kind+".out.txt"), strings.Join(slices.Compact(lines), "\n")+"\n")
		})
	}
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (run with -update)", err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s differs (-want +got), run with -update if that is right:\n%s", file, d)
	}
}

// walk is the walk through the fields of a kind.
type walk struct {
	*testing.T
	kind             string
	examples, others []object
	known            map[string]*result // by object
}

// result returns the result of the mesh with an object.
func (w *walk) result(o object) *result {
	text, err := json.Marshal(o)
	if err != nil {
		w.Fatal(err)
	}
	r := w.known[string(text)]
	if r == nil {
		r = resultOf(w.T, append(slices.Clone(w.others), o))
		w.known[string(text)] = r
	}
	return r
}

// outcome is what a value of a field does.
type outcome struct {
	rank int // the best one is the lowest
	text string
	of   string // the path of the field that is reported, if not that of the value
}

const (
	hasEffect = iota
	isReported
	isRequired
	isRefused
	isSilent
	isInvalid // in the example, for a reason that is not the field
)

// field returns a line for each value of a field, and fails if one is silent.
func (w *walk) field(path string) []string {
	if elsewhere(w.kind, path) {
		return []string{path + ": in another test"}
	}
	best := map[string]outcome{} // by value, which is "" if one of the values must not be silent
	for _, example := range w.examples {
		for _, p := range places(kinds[w.kind].ProtoReflect().Descriptor(), example.spec(), path) {
			for _, v := range w.valuesAt(&p) {
				key := ""
				if isEach(p.fd) {
					key = shown(v)
				}
				if old, ok := best[key]; ok && old.rank < isRefused {
					continue
				}
				got := w.outcome(example, &p, v)
				if old, ok := best[key]; !ok || got.rank < old.rank {
					best[key] = got
				}
			}
		}
	}
	if len(best) == 0 {
		w.Errorf("%s: no example has the message of the field", path)
	}
	var lines []string
	for _, value := range slices.Sorted(maps.Keys(best)) {
		name := strings.TrimSpace(path + " " + value)
		if best[value].rank >= isSilent {
			switch {
			case isDefault(w.kind, path, value):
				best[value] = outcome{text: "the default"}
			case forPeople[w.kind+" "+path]:
				best[value] = outcome{text: "for people"}
			default:
				w.Errorf("%s: %s", name, best[value].text)
				continue
			}
		}
		if of := best[value].of; of != "" {
			name = of + " and all below"
		}
		lines = append(lines, name+": "+best[value].text)
	}
	return lines
}

// valuesAt returns the values of a field to try in an example, its own first.
func (w *walk) valuesAt(p *place) []any {
	if !p.isSet() {
		return values(p.fd)
	}
	out := []any{p.value()}
	for _, v := range values(p.fd) {
		if shown(v) != shown(p.value()) {
			out = append(out, v)
		}
	}
	return out
}

// outcome compares the mesh with a value of a field to the mesh without it or, if the field is
// required, with another value.
func (w *walk) outcome(example object, p *place, value any) outcome {
	in := func(v any) *result { return w.result(example.with(p.with(example.spec(), v))) }
	with, without := in(value), in(nil)
	if f := with.refusal(example); f != nil {
		ofReference := strings.HasPrefix(p.path, "targetRef") // whose namespace is the policy's
		if !names(f.field, p.path) || strings.Contains(f.text, `"other"`) && !ofReference {
			return outcome{rank: isInvalid, text: "no example can have it: " + f.field + ": " + f.text}
		}
		return outcome{rank: isRefused, text: "refused: " + f.field + ": " + f.text}
	}
	if without.refusal(example) != nil {
		for _, other := range append(values(p.fd), similar(value)...) {
			if r := in(other); r.refusal(example) == nil && w.changedIn(with, r) != "" {
				without = r
			}
		}
		if f := without.refusal(example); f != nil {
			return outcome{rank: isRequired, text: "required: " + f.field + ": " + f.text}
		}
	}
	if changed := w.changedIn(with, without); changed != "" {
		return outcome{rank: hasEffect, text: "changes " + changed}
	}
	before := without.problems(w.T)
	for _, f := range with.problems(w.T) {
		ofWhole := strings.HasPrefix(p.path, pathOf(f.field)+".") && strings.Contains(f.text, "no effect")
		if f.object == example.id() && names(f.field, p.path) && (ofWhole || !slices.Contains(before, f)) {
			out := outcome{rank: isReported, text: "reported: " + f.field + ": " + f.text}
			if ofWhole {
				out.of = pathOf(f.field)
			}
			return out
		}
	}
	return outcome{rank: isSilent, text: "silent"}
}

// refusal returns the fault for which an object is refused, or nil.
func (r *result) refusal(of object) *problem {
	i := slices.IndexFunc(r.faults, func(p problem) bool { return p.object == of.id() && p.refused })
	if i < 0 {
		return nil
	}
	return &r.faults[i]
}

// names reports whether a field in a problem is the one at a path, or holds it.
func names(field, path string) bool {
	field = pathOf(field)
	return field != "" && (field == path || strings.HasPrefix(path, field+".") || strings.HasPrefix(field, path+"."))
}

// changedIn returns the types of what differs between two results at the first place where something
// does.
func (w *walk) changedIn(a, b *result) string {
	all := slices.Concat(a.places(w.T), b.places(w.T))
	slices.Sort(all)
	for _, place := range slices.Compact(all) {
		x, y := a.effects(w.T, place), b.effects(w.T, place)
		changed := map[string]bool{}
		for _, pair := range [][2]map[string]string{{x, y}, {y, x}} {
			for name, text := range pair[0] {
				if pair[1][name] != text {
					changed[strings.SplitN(name, " ", 2)[0]] = true
				}
			}
		}
		if len(changed) > 0 {
			return strings.Join(slices.Sorted(maps.Keys(changed)), ", ")
		}
	}
	return ""
}
