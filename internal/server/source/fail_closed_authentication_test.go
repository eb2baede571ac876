package source

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/keyset"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// closedSpec returns the spec of the valid parts of an invalid object, or nil.
func closedSpec(t *testing.T, kind, spec string) proto.Message {
	t.Helper()
	text := "apiVersion: security.istio.io/v1\nkind: " + kind + "\nmetadata: {name: a, namespace: 'n'}\nspec:\n" + spec
	v, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte(text), Line: 1})
	if err != nil {
		t.Fatal(err)
	}
	conv := Converter{Cluster: "c"}
	r, err := conv.Decode(v, snapshot.Place{})
	if err == nil {
		t.Errorf("%s\nis valid", text)
	}
	if p, ok := r.Closed.(snapshot.Policy); ok {
		return p.Content()
	}
	return nil
}

// TestClosedPeerAuthentication: unknown values mean STRICT.
func TestClosedPeerAuthentication(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ spec, want string }{
		"unknown mode":        {"  mtls: {mode: STRCT}", "mtls: {mode: STRICT}"},
		"unknown field":       {"  mtls: {mode: PERMISSIVE}\n  except: [a]", "mtls: {mode: STRICT}"},
		"unknown inner field": {"  mtls: {mode: PERMISSIVE, except: [a]}", "mtls: {mode: STRICT}"},
		"no mapping":          {"  - mtls", "mtls: {mode: STRICT}"},
		"port of no workload": {"  mtls: {mode: DISABLE}\n  portLevelMtls: {80: {mode: DISABLE}}", "mtls: {mode: DISABLE}"},
		"strict port of none": {"  mtls: {mode: DISABLE}\n  portLevelMtls: {80: {mode: STRICT}}", "mtls: {mode: STRICT}"},
		"unknown port":        {"  selector: {matchLabels: {a: b}}\n  portLevelMtls: {http: {mode: STRICT}, 80: {mode: DISABLE}}", "selector: {matchLabels: {a: b}}, mtls: {mode: STRICT}, portLevelMtls: {80: {mode: DISABLE}}"},
		"large port":          {"  selector: {matchLabels: {a: b}}\n  mtls: {mode: DISABLE}\n  portLevelMtls: {70000: {mode: DISABLE}}", "selector: {matchLabels: {a: b}}, mtls: {mode: DISABLE}"},
		"mode of a port":      {"  selector: {matchLabels: {a: b}}\n  port_level_mtls: {80: {mode: 1.5}, 81: null}", "selector: {matchLabels: {a: b}}, portLevelMtls: {80: {mode: STRICT}, 81: {mode: STRICT}}"},
		"list of ports":       {"  selector: {matchLabels: {a: b}}\n  portLevelMtls: [80]", "selector: {matchLabels: {a: b}}, mtls: {mode: STRICT}"},
		"strict selector":     {"  selector: {matchLabels: {a: '*'}}\n  mtls: {mode: STRICT}", "mtls: {mode: STRICT}"},
		"permissive selector": {"  selector: {matchLabels: [a]}\n  mtls: {mode: PERMISSIVE}", ""},
	} {
		var want proto.Message
		if tc.want != "" {
			want = specFrom(t, tc.want, &securityv1beta1.PeerAuthentication{})
		}
		if diff := cmp.Diff(want, closedSpec(t, "PeerAuthentication", tc.spec), protocmp.Transform()); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

// specFrom decodes the fields of a message.
func specFrom(t *testing.T, fields string, into proto.Message) proto.Message {
	t.Helper()
	v, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte("{" + fields + "}"), Line: 1})
	if err != nil {
		t.Fatal(err)
	}
	text, err := v.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
	return into
}

// TestClosedTokens: a rule that is not understood refuses the tokens that it finds.
func TestClosedTokens(t *testing.T) {
	t.Parallel()
	const (
		good   = "issuer: a, jwksUri: https://a/keys"
		refuse = "issuer: nobody, jwks: '" + keyset.Nobodys + "'"
	)
	for name, tc := range map[string]struct{ spec, want string }{
		"no issuer":        {"  jwtRules: [{jwksUri: https://a}]", "jwtRules: [{" + refuse + "}]"},
		"another rule":     {"  jwtRules: [{" + good + "}, {issuer: b}]", "jwtRules: [{" + good + "}, {" + refuse + "}]"},
		"unknown in rule":  {"  jwtRules: [{" + good + ", maxAge: 5s}]", "jwtRules: [{" + refuse + "}]"},
		"unknown field":    {"  jwtRules: [{" + good + "}]\n  except: [a]", "jwtRules: [{" + refuse + "}]"},
		"selector":         {"  selector: {matchLabels: {a: '*'}}\n  jwtRules: [{" + good + "}]", "jwtRules: [{" + refuse + "}]"},
		"selector stays":   {"  selector: {matchLabels: {a: b}}\n  jwtRules: [{}]", "selector: {matchLabels: {a: b}}, jwtRules: [{" + refuse + "}]"},
		"both attachments": {"  selector: {}\n  targetRefs: [{kind: Gateway, name: g}]\n  jwtRules: [{" + good + "}]", "jwtRules: [{" + refuse + "}]"},
		"other namespace":  {"  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: g, namespace: o}]\n  jwtRules: [{" + good + "}]", "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: g, namespace: o}], jwtRules: [{" + refuse + "}]"},
		"no waypoint":      {"  targetRefs: [{kind: Service, name: s}]\n  jwtRules: [{" + good + "}]", "targetRefs: [{kind: '*', name: '*'}], jwtRules: [{" + refuse + "}]"},
		"no waypoint, one": {"  targetRef: {kind: Service, name: s}\n  jwtRules: [{" + good + "}]", "targetRef: {kind: '*', name: '*'}, jwtRules: [{" + refuse + "}]"},
		"no name":          {"  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway}]\n  jwtRules: [{" + good + "}]", "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: '*'}], jwtRules: [{" + refuse + "}]"},
		"no list":          {"  jwt_rules: {issuer: a}", "jwtRules: [{" + refuse + "}]"},
		"empty rule":       {"  jwtRules: [null]", "jwtRules: [{" + refuse + "}]"},
		"no mapping":       {"  - jwtRules", "jwtRules: [{" + refuse + "}]"},
		"places": {
			"  jwtRules: [{fromHeaders: [{name: x-a, prefix: T}, {name: 'a b'}, {name: x-b, other: 1}], fromCookies: [c, 'd;'], fromParams: [p, '', 7]}]",
			"jwtRules: [{" + refuse + ", fromHeaders: [{name: x-a, prefix: T}, {name: x-b}], fromCookies: [c], fromParams: [p]}]",
		},
		"outputs": {
			"  jwtRules: [{outputPayloadToHeader: x-p, outputClaimToHeaders: [{header: x-a, claim: a}, {header: ':path', claim: a}, {header: X-A, claim: b}]}]",
			"jwtRules: [{" + refuse + ", outputPayloadToHeader: x-p, outputClaimToHeaders: [{header: x-a, claim: a}]}]",
		},
	} {
		want := specFrom(t, tc.want, &securityv1beta1.RequestAuthentication{})
		if diff := cmp.Diff(want, closedSpec(t, "RequestAuthentication", tc.spec), protocmp.Transform()); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}
