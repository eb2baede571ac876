package registry

import (
	"maps"
	"testing"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestKeptKeys: a rule with a new source keeps its earlier keys until the new ones are fetched.
// Rules of other issuers, objects and namespaces never get them.
func TestKeptKeys(t *testing.T) {
	t.Parallel()
	s := newState(Config{Local: "c1", Clusters: nil})
	rule := func(issuer, uri, keys string) *securityv1beta1.JWTRule {
		return &securityv1beta1.JWTRule{Issuer: issuer, JwksUri: uri, Jwks: keys}
	}
	set := func(namespace, name string, rules ...*securityv1beta1.JWTRule) {
		o := &snapshot.RequestAuthentication{
			Meta: snapshot.Meta{Cluster: "c1", Namespace: namespace, Name: name}, Kind: snapshot.KindRequestAuthentication,
			Spec: &securityv1beta1.RequestAuthentication{JwtRules: rules},
		}
		b := newBatch()
		if b.apply([]snapshot.Event{{Key: o.Key(), Object: o}}); rules == nil {
			b.apply([]snapshot.Event{{Key: o.Key()}})
		}
		b.into(s)
	}
	fetched := func(of map[string]string) {
		keys := make(map[snapshot.KeySource]string)
		for url, text := range of {
			keys[snapshot.KeySource{URL: url}] = text
		}
		s.setKeySets(keys)
	}
	want := func(namespace string, kept map[string]string) {
		t.Helper()
		s.Graph.Commit()
		got := make(map[string]string)
		if ns, ok := s.Facts.Get(nil, namespace); ok {
			for k, keys := range ns.KeptKeys {
				got[k.Policy+" "+k.Issuer+" "+k.Source.URL] = keys
			}
		}
		if !maps.Equal(got, kept) {
			t.Errorf("kept keys of %s: %v, want %v", namespace, got, kept)
		}
	}
	set("ns", "a", rule("i", "u1", ""))
	set("other", "a", rule("i", "u2", ""))
	set("ns", "b", rule("i", "u2", ""))
	fetched(map[string]string{"u1": "one"})
	want("ns", nil)

	set("ns", "a", rule("j", "u2", ""), rule("i", "u2", ""))
	want("ns", map[string]string{"a i u2": "one"})
	want("other", nil)
	fetched(nil) // u1 is not wanted any more
	want("ns", map[string]string{"a i u2": "one"})
	set("ns", "a", rule("i", "u3", ""))
	want("ns", map[string]string{"a i u3": "one"})
	fetched(map[string]string{"u2": "two"})
	want("ns", map[string]string{"a i u3": "one"})
	fetched(map[string]string{"u2": "two", "u3": "three"})
	want("ns", nil)
	set("ns", "a", rule("i", "u2", ""))
	want("ns", nil) // fetched for others

	set("ns", "a", rule("i", "", "inline"))
	set("ns", "a", rule("i", "u4", ""))
	want("ns", map[string]string{"a i u4": "inline"})
	set("ns", "a")
	want("ns", nil)
	set("ns", "a", rule("i", "u4", ""))
	want("ns", nil) // a new object keeps nothing
}
