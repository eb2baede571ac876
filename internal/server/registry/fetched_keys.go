package registry

import (
	"cmp"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// keepKeys keeps the keys of the rules that an event changes, for the rules of the same issuer
// whose new key sets are not fetched yet. A deleted object keeps none.
func (s *state) keepKeys(e snapshot.Event) {
	if e.Key.Cluster != s.cfg.Local {
		return
	}
	old, _ := s.RequestAuthentications.Get(nil, facts.KeyOf(e.Key))
	now, _ := e.Object.(snapshot.Policy)
	keep := make(map[facts.KeptKeys]string)
	for _, rule := range facts.TokenRules(now) {
		source, ok := snapshot.KeySourceOf(rule)
		if !ok {
			continue
		}
		if _, ok := s.KeySets.Get(nil, source); ok {
			continue
		}
		for _, before := range facts.TokenRules(old) {
			if keys := s.keysOf(e.Key, before); keys != "" && before.GetIssuer() == rule.GetIssuer() {
				keep[facts.KeptKeys{Namespace: e.Key.Namespace, KeptKeys: snapshot.KeptKeys{Policy: e.Key.Name, Issuer: rule.GetIssuer(), Source: source}}] = keys
				break
			}
		}
	}
	for k := range s.KeptKeys.All() {
		if k.Namespace == e.Key.Namespace && k.Policy == e.Key.Name {
			s.KeptKeys.Delete(k)
		}
	}
	for k, keys := range keep {
		s.KeptKeys.Set(k, keys)
	}
}

// keysOf returns the keys that a rule of an object has, or "".
func (s *state) keysOf(object snapshot.Key, rule *securityv1beta1.JWTRule) string {
	source, ok := snapshot.KeySourceOf(rule)
	if !ok {
		return rule.GetJwks()
	}
	fetched, _ := s.KeySets.Get(nil, source)
	kept, _ := s.KeptKeys.Get(nil, facts.KeptKeys{Namespace: object.Namespace, KeptKeys: snapshot.KeptKeys{Policy: object.Name, Issuer: rule.GetIssuer(), Source: source}})
	return cmp.Or(fetched, kept)
}

// setKeySets sets all fetched key sets.
func (s *state) setKeySets(of map[snapshot.KeySource]string) {
	s.fetched = true
	facts.ReplaceAll(s.KeySets, of)
	for k := range s.KeptKeys.All() {
		if _, ok := of[k.Source]; ok {
			s.KeptKeys.Delete(k)
		}
	}
}
