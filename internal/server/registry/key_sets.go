package registry

import (
	"maps"
	"slices"
	"time"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

const (
	// maxKeySets is the number of key sets that are fetched for the RequestAuthentications
	// of a namespace.
	maxKeySets = 100
	// keyTimeout bounds a fetch for a rule without a timeout.
	keyTimeout = 5 * time.Second
)

// wantedKeys returns the key sets to fetch, sorted.
func (t *tables) wantedKeys(r *derive.Reads) []snapshot.WantedKeys {
	timeouts := make(map[snapshot.KeySource]time.Duration)
	perNamespace := make(map[string]int)
	for k, p := range t.allRequestAuthentications.Lookup(r, struct{}{}) {
		for source, timeout := range keySources(p) {
			if _, known := timeouts[source]; !known {
				if perNamespace[k.namespace] == maxKeySets {
					continue
				}
				perNamespace[k.namespace]++
			}
			timeouts[source] = max(timeouts[source], timeout)
		}
	}
	var out []snapshot.WantedKeys
	for _, source := range slices.SortedFunc(maps.Keys(timeouts), snapshot.KeySource.Compare) {
		out = append(out, snapshot.WantedKeys{KeySource: source, Timeout: timeouts[source]})
	}
	return out
}

// keySources iterates over the sources of the key sets of a RequestAuthentication, with the
// timeouts of their rules.
func keySources(p snapshot.Policy) func(func(snapshot.KeySource, time.Duration) bool) {
	spec, _ := p.Content().(*securityv1beta1.RequestAuthentication)
	return func(yield func(snapshot.KeySource, time.Duration) bool) {
		for _, rule := range spec.GetJwtRules() {
			timeout := keyTimeout
			if d := rule.GetTimeout(); d != nil {
				timeout = d.AsDuration()
			}
			if source, ok := snapshot.KeySourceOf(rule); ok && !yield(source, timeout) {
				return
			}
		}
	}
}

// keySetsOf returns the fetched key sets of RequestAuthentications.
func (t *tables) keySetsOf(r *derive.Reads, policies []snapshot.Policy) map[snapshot.KeySource]string {
	var out map[snapshot.KeySource]string
	for _, p := range policies {
		for source := range keySources(p) {
			keys, ok := t.keySets.Get(r, source)
			if !ok {
				continue
			}
			if out == nil {
				out = make(map[snapshot.KeySource]string)
			}
			out[source] = keys
		}
	}
	return out
}

// setKeySets sets all fetched key sets.
func (s *state) setKeySets(of map[snapshot.KeySource]string) {
	s.fetched = true
	replaceAll(s.keySets, of)
}

// replaceAll makes the entries of a map all entries of an input table.
func replaceAll[K comparable, V any](t derive.Input[K, V], by map[K]V) {
	for k := range t.All() {
		if _, stays := by[k]; !stays {
			t.Delete(k)
		}
	}
	for k, v := range by {
		t.Set(k, v)
	}
}
