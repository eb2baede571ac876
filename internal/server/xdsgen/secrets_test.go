package xdsgen_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

var (
	noon  = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	night = noon.Add(12 * time.Hour)
)

// testSecret returns a Secret whose content contains its name. what lists its parts: p
// is a key pair, c CA certificates.
func testSecret(c mesh.ClusterID, ns, name, what string) *snapshot.Secret {
	id := fmt.Sprintf("%s/%s/%s", c, ns, name)
	s := &snapshot.Secret{Meta: metaOf(c, ns, name), NoPair: "no pair in " + id, NoCA: "no CA in " + id}
	if strings.Contains(what, "p") {
		s.Pair = &snapshot.KeyPair{Chain: []byte("chain " + id), Key: snapshot.NewPrivateKey([]byte("key " + id)), NotBefore: noon, NotAfter: night}
	}
	if strings.Contains(what, "c") {
		s.CA = &snapshot.CABundle{Roots: []byte("roots " + id), CRL: []byte("crl " + id), NotBefore: noon, NotAfter: night}
	}
	return s
}

// testConfigMap returns a ConfigMap whose CA certificates contain its name.
func testConfigMap(c mesh.ClusterID, ns, name string, cas bool) *snapshot.ConfigMap {
	id := fmt.Sprintf("map %s/%s/%s", c, ns, name)
	m := &snapshot.ConfigMap{Meta: metaOf(c, ns, name), NoCA: "no CA in " + id}
	if cas {
		m.CA = &snapshot.CABundle{Roots: []byte("roots " + id), CRL: []byte("crl " + id), NotBefore: noon, NotAfter: night}
	}
	return m
}

func callerIn(c mesh.ClusterID, ns string) mesh.Caller {
	return mesh.Caller{Identity: mesh.Identity{TrustDomain: "td", Namespace: ns, ServiceAccount: "gw"}, Cluster: c}
}

// given returns the content of a view by name: chain and key, or CA certificates.
func given(t *testing.T, s *snapshot.Snapshot, v units.View) map[string]string {
	t.Helper()
	out := make(map[string]string)
	var enc xdswire.Encoder
	for _, u := range units.Units(v, s) {
		resources, err := u.Generate(&enc)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range resources {
			var m tlsv3.Secret
			if err := proto.Unmarshal(r.Message(), &m); err != nil {
				t.Fatal(err)
			}
			if m.GetName() != r.Name {
				t.Errorf("secret %s is sent as %s", m.GetName(), r.Name)
			}
			if p := m.GetTlsCertificate(); p != nil {
				out[r.Name] = string(p.GetCertificateChain().GetInlineBytes()) + ", " + string(p.GetPrivateKey().GetInlineBytes())
			} else {
				c := m.GetValidationContext()
				out[r.Name] = string(c.GetTrustedCa().GetInlineBytes()) + ", " + string(c.GetCrl().GetInlineBytes())
			}
		}
	}
	return out
}

// TestSecrets requests secrets by all forms of names. It checks results and reasons.
func TestSecrets(t *testing.T) {
	s := build(t, []mesh.ClusterID{"c1", "c2"}, []snapshot.Event{
		put(testSecret("c1", "gw", "both", "pc")), put(testSecret("c1", "gw", "pair", "p")), put(testSecret("c1", "gw", "pair-cacert", "c")),
		put(testSecret("c1", "gw", "x-cacert", "p")), put(testSecret("c1", "gw", "x", "pc")),
		put(testSecret("c1", "other", "both", "pc")), put(testSecret("c2", "gw", "both", "pc")),
		put(testConfigMap("c1", "gw", "roots", true)), put(testConfigMap("c1", "other", "roots", true)), put(testConfigMap("c1", "other", "roots-cacert", true)),
		put(testConfigMap("c1", "gw", "empty", false)), put(testConfigMap("c2", "gw", "remote", true)),
	})
	const pair, roots = "chain %[1]s, key %[1]s", "roots %[1]s, crl %[1]s"
	own, remote := callerIn("c1", "gw"), callerIn("c2", "gw")
	for _, tc := range []struct {
		name   string
		caller mesh.Caller
		keys   bool
		want   string // a form
		of     string // the secret, or the reason
	}{
		{"kubernetes://both", own, true, pair, "c1/gw/both"},
		{"kubernetes://gw/both", own, true, pair, "c1/gw/both"},
		{"kubernetes-gateway://gw/both", own, true, pair, "c1/gw/both"},
		{"kubernetes://both-cacert", own, true, roots, "c1/gw/both"},
		{"kubernetes://gw/both-cacert", own, false, roots, "c1/gw/both"},
		{"kubernetes://pair-cacert", own, true, roots, "c1/gw/pair-cacert"},
		{"kubernetes://both", remote, true, pair, "c2/gw/both"},

		{"configmap://gw/roots", own, false, roots, "map c1/gw/roots"},
		{"configmap://gw/roots-cacert", own, false, roots, "map c1/gw/roots"},
		{"configmap://other/roots", own, true, roots, "map c1/other/roots"},
		{"configmap://other/roots-cacert", own, true, roots, "map c1/other/roots-cacert"},
		{"configmap://gw/roots", remote, false, roots, "map c1/gw/roots"},
		{"configmap://gw/empty", own, true, "", "no CA in map c1/gw/empty"},
		{"configmap://gw/both", own, true, "", "configmap gw/both with key cacert or ca.crt not found"},
		{"configmap://gw/none-cacert", own, true, "", "configmap gw/none with key cacert or ca.crt not found"},
		{"configmap://gw/remote", remote, true, "", "configmap gw/remote with key cacert or ca.crt not found"},
		{"configmap://roots", own, true, "", "has no namespace: want configmap://namespace/name"},
		{"configmap://gw/../other/roots", own, true, "", "has an invalid object name"},
		{"configmap://gw/roots", mesh.Caller{}, true, "", "secrets are served only over TLS, to callers with an authenticated identity and cluster"},

		{"kubernetes://both", own, false, "", "the proxy is not authorized to read secrets"},
		{"kubernetes://x-cacert", own, true, "", "no CA in c1/gw/x-cacert"}, // never its key, nor the key of x
		{"kubernetes://pair-cacert-cacert", own, true, roots, "c1/gw/pair-cacert"},
		{"kubernetes://none", own, true, "", "secret gw/none not found"},
		{"kubernetes://none-cacert", own, true, "", "secret gw/none not found"},
		{"kubernetes://other/both", own, true, "", "is in another namespace than the proxy, which is in gw"},
		{"kubernetes://other/both-cacert", own, true, "", "is in another namespace than the proxy, which is in gw"},
		{"kubernetes-gateway://other/both", own, true, "", "is in another namespace than the proxy, which is in gw"},
		{"kubernetes-gateway://gw/both", remote, true, "", "is in another cluster than the proxy, which is in c2"},
		{"kubernetes-gateway://both", own, true, "", "has no namespace: want kubernetes-gateway://namespace/name"},
		{"kubernetes://both", mesh.Caller{}, true, "", "secrets are served only over TLS, to callers with an authenticated identity and cluster"},
		{"kubernetes://both", callerIn("", "gw"), true, "", "secrets are served only over TLS, to callers with an authenticated identity and cluster"},
		{"kubernetes://both", mesh.Caller{Cluster: "c1"}, true, "", "secrets are served only over TLS, to callers with an authenticated identity and cluster"},
		{"kubernetes://gw/../other/both", own, true, "", "has an invalid object name"},
		{"kubernetes://../other/both", own, true, "", "has an invalid namespace"},
		{"kubernetes:///both", own, true, "", "has an invalid namespace"},
		{"kubernetes://", own, true, "", "has an invalid object name"},
		{"kubernetes://gw%2fboth", own, true, "", "has an invalid object name"},
		{"kubernetes://both\n", own, true, "", "has an invalid object name"},
		{"kubernetes://" + strings.Repeat("a", 10<<10), own, true, "", "has an invalid object name"},
		{"invalid://", own, true, "", "is not a supported name: want kubernetes://name, kubernetes://namespace/name or configmap://namespace/name"},
		{"default", own, true, "", "is not a supported name: want kubernetes://name, kubernetes://namespace/name or configmap://namespace/name"},
		{"*", own, true, "", "is not a supported name: want kubernetes://name, kubernetes://namespace/name or configmap://namespace/name"},
	} {
		t.Run(fmt.Sprintf("%.40q of %s", tc.name, tc.caller.Cluster), func(t *testing.T) {
			names := xdswire.NewNameSets().Of([]string{tc.name})
			v := units.AssignSecrets(s, tc.caller, tc.keys, names)
			got, err := given(t, s, v), v.Check(s, tc.name, noon)
			if tc.want == "" {
				if len(got) > 0 || err == nil || err.Error() != tc.of {
					t.Errorf("given %v, checked as %v, want the reason %q", got, err, tc.of)
				}
				return
			}
			want := map[string]string{tc.name: fmt.Sprintf(tc.want, tc.of)}
			if !maps.Equal(got, want) || err != nil {
				t.Errorf("given %v, checked as %v, want %v", got, err, want)
			}
		})
	}
}

// TestSecretsOutOfDate: an expired certificate is served, and Check reports it.
func TestSecretsOutOfDate(t *testing.T) {
	s := build(t, []mesh.ClusterID{"c1"}, []snapshot.Event{put(testSecret("c1", "gw", "s", "pc"))})
	names := xdswire.NewNameSets().Of([]string{"kubernetes://s", "kubernetes://s-cacert"})
	v := units.AssignSecrets(s, callerIn("c1", "gw"), true, names)
	if got := given(t, s, v); len(got) != 2 {
		t.Fatalf("given %v", got)
	}
	for _, name := range names.Names() {
		if err := v.Check(s, name, night.Add(time.Second)); err == nil || err.Error() != "secret gw/s is served although its certificate expired at 2026-01-02T00:00:00Z" {
			t.Errorf("%s, expired: %v", name, err)
		}
		if err := v.Check(s, name, noon.Add(-time.Second)); err == nil || err.Error() != "secret gw/s is served although its certificate is not valid before 2026-01-01T12:00:00Z" {
			t.Errorf("%s, not yet valid: %v", name, err)
		}
	}
}

// TestSecretsAreShared: only callers with the same rights and names share a view.
func TestSecretsAreShared(t *testing.T) {
	s := build(t, []mesh.ClusterID{"c1", "c2"}, nil)
	sets := xdswire.NewNameSets()
	names := sets.Of([]string{"kubernetes://a"})
	v := units.AssignSecrets(s, callerIn("c1", "gw"), true, names)
	twin := callerIn("c1", "gw")
	twin.Identity.ServiceAccount = "twin"
	if v != units.AssignSecrets(s, twin, true, sets.Of([]string{"kubernetes://a"})) {
		t.Error("two callers of one namespace do not share")
	}
	for what, other := range map[string]units.View{
		"namespace": units.AssignSecrets(s, callerIn("c1", "other"), true, names),
		"cluster":   units.AssignSecrets(s, callerIn("c2", "gw"), true, names),
		"right":     units.AssignSecrets(s, callerIn("c1", "gw"), false, names),
		"names":     units.AssignSecrets(s, callerIn("c1", "gw"), true, sets.Of([]string{"kubernetes://b"})),
	} {
		if other == units.View(v) {
			t.Errorf("a caller of another %s shares", what)
		}
	}
	for name, want := range map[string]bool{
		"kubernetes://a": true, "kubernetes-gateway://gw/a": true, "kubernetes://a-cacert": false, "configmap://gw/a": false, "default": false,
	} {
		if got := units.AskForKeys(sets.Of([]string{"x", name})); got != want {
			t.Errorf("%s asks for keys: %v", name, got)
		}
	}
	if err := v.Check(s, "kubernetes://a", noon); err == nil || errors.Is(err, units.ErrKeysDenied) {
		t.Errorf("a missing secret: %v", err)
	}
}

// secretNames returns names in all forms for the objects of randomSecret.
func secretNames() []string {
	var out []string
	for _, name := range []string{"s0", "s0-cacert", "s1", "s1-cacert", "s1-cacert-cacert"} {
		out = append(out, "kubernetes://"+name, "kubernetes://ns0/"+name, "kubernetes-gateway://ns0/"+name, "configmap://ns0/"+name, "configmap://ns1/"+name)
	}
	return out
}

func secretViews(s *snapshot.Snapshot, names *xdswire.NameSet) []units.View {
	var out []units.View
	for _, c := range []mesh.ClusterID{"c1", "c2"} {
		for _, ns := range []string{"ns0", "ns1"} {
			out = append(out, units.AssignSecrets(s, callerIn(c, ns), true, names), units.AssignSecrets(s, callerIn(c, ns), false, names))
		}
	}
	return slices.Concat(out, []units.View{units.AssignSecrets(s, mesh.Caller{}, true, names)})
}

func randomSecret(r *rand.Rand) snapshot.Event {
	c, ns := mesh.ClusterID(fmt.Sprintf("c%d", 1+r.IntN(2))), fmt.Sprintf("ns%d", r.IntN(2))
	name := []string{"s0", "s0-cacert", "s1", "s1-cacert"}[r.IntN(4)]
	var o snapshot.Object = testSecret(c, ns, name, []string{"", "p", "c", "pc"}[r.IntN(4)])
	if r.IntN(2) == 0 {
		o = testConfigMap(c, ns, name, r.IntN(3) > 0)
	}
	if r.IntN(3) == 0 {
		return snapshot.Event{Key: o.Key()}
	}
	return put(o)
}

// TestSecretNames: an invalid name gets nothing.
func TestSecretNames(t *testing.T) {
	s := build(t, []mesh.ClusterID{"c1"}, []snapshot.Event{put(testSecret("c1", "gw", "s", "pc")), put(testSecret("c1", "other", "s", "pc"))})
	for _, name := range []string{
		"", "..", "../other/s", "gw/../other/s", "gw/..", "gw%2fs", "%2e%2e/other/s", "s\n", "s\x00", "gw/s/", "/gw/s", "S", strings.Repeat("a", 10<<10), "gw/" + strings.Repeat("a", 254),
	} {
		for _, prefix := range []string{"kubernetes://", "kubernetes-gateway://", "configmap://", ""} {
			names := xdswire.NewNameSets().Of([]string{prefix + name})
			v := units.AssignSecrets(s, callerIn("c1", "gw"), true, names)
			if got := given(t, s, v); len(got) > 0 {
				t.Errorf("%.60q is given %v", prefix+name, got)
			}
			if err := v.Check(s, prefix+name, noon); err == nil || len(err.Error()) > 200 {
				t.Errorf("%.60q: %v", prefix+name, err)
			}
		}
	}
}

// TestCASuffix: a request for CA certificates never gets a key, even if a Secret has
// the name with the suffix.
func TestCASuffix(t *testing.T) {
	s := build(t, []mesh.ClusterID{"c1"}, []snapshot.Event{
		put(testSecret("c1", "gw", "x-cacert", "pc")), put(testSecret("c1", "gw", "y-cacert", "p")), put(testSecret("c1", "gw", "z", "p")),
	})
	for _, name := range []string{"x-cacert", "x-cacert-cacert", "x", "y-cacert", "y", "z-cacert", "z-cacert-cacert"} {
		for _, keys := range []bool{false, true} {
			names := xdswire.NewNameSets().Of([]string{"kubernetes://" + name})
			for _, got := range given(t, s, units.AssignSecrets(s, callerIn("c1", "gw"), keys, names)) {
				if strings.Contains(got, "key") || !strings.HasPrefix(got, "roots c1/gw/x-cacert") {
					t.Errorf("%s is given %s", name, got)
				}
			}
		}
	}
}
