package facts

import (
	"cmp"
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

// wantedKeys returns the key sets to fetch for each namespace, sorted.
func (t *Tables) wantedKeys(r *derive.Reads) []snapshot.WantedKeys {
	wanted := make(map[snapshot.WantedKeys]time.Duration) // the timeouts, by the rest
	perNamespace := make(map[string]int)
	for k, p := range t.allRequestAuthentications.Lookup(r, struct{}{}) {
		for source, timeout := range keySources(p) {
			w := snapshot.WantedKeys{KeySource: source, Namespace: k.Namespace}
			if _, known := wanted[w]; !known {
				if perNamespace[k.Namespace] == maxKeySets {
					continue
				}
				perNamespace[k.Namespace]++
			}
			wanted[w] = max(wanted[w], timeout)
		}
	}
	out := slices.SortedFunc(maps.Keys(wanted), func(a, b snapshot.WantedKeys) int {
		return cmp.Or(a.Compare(b.KeySource), cmp.Compare(a.Namespace, b.Namespace))
	})
	for i := range out {
		out[i].Timeout = wanted[out[i]]
	}
	return out
}

// keySources iterates over the sources of the key sets of a RequestAuthentication, with the
// timeouts of their rules.
func keySources(p snapshot.Policy) func(func(snapshot.KeySource, time.Duration) bool) {
	return func(yield func(snapshot.KeySource, time.Duration) bool) {
		for _, rule := range TokenRules(p) {
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

// TokenRules returns the rules of a RequestAuthentication, which may be nil.
func TokenRules(p snapshot.Policy) []*securityv1beta1.JWTRule {
	if p == nil {
		return nil
	}
	spec, _ := p.Content().(*securityv1beta1.RequestAuthentication)
	return spec.GetJwtRules()
}

// keySetsOf returns the fetched and the kept key sets of RequestAuthentications in a namespace.
func (t *Tables) keySetsOf(r *derive.Reads, policies []snapshot.Policy) (fetched map[snapshot.KeySource]string, kept map[snapshot.KeptKeys]string) {
	for _, p := range policies {
		meta := p.Key()
		for _, rule := range TokenRules(p) {
			source, ok := snapshot.KeySourceOf(rule)
			if !ok {
				continue
			}
			if keys, ok := t.KeySets.Get(r, source); ok {
				if fetched == nil {
					fetched = make(map[snapshot.KeySource]string)
				}
				fetched[source] = keys
				continue
			}
			k := snapshot.KeptKeys{Policy: meta.Name, Issuer: rule.GetIssuer(), Source: source}
			if keys, ok := t.KeptKeys.Get(r, KeptKeys{meta.Namespace, k}); ok {
				if kept == nil {
					kept = make(map[snapshot.KeptKeys]string)
				}
				kept[k] = keys
			}
		}
	}
	return fetched, kept
}

// KeptKeys names kept keys of a namespace.
type KeptKeys struct {
	Namespace string
	snapshot.KeptKeys
}

func (k KeptKeys) compare(other KeptKeys) int {
	return cmp.Or(
		cmp.Compare(k.Namespace, other.Namespace), cmp.Compare(k.Policy, other.Policy),
		cmp.Compare(k.Issuer, other.Issuer), k.Source.Compare(other.Source),
	)
}

// ReplaceAll makes the entries of a map all entries of an input table.
func ReplaceAll[K comparable, V any](t derive.Input[K, V], by map[K]V) {
	for k := range t.All() {
		if _, stays := by[k]; !stays {
			t.Delete(k)
		}
	}
	for k, v := range by {
		t.Set(k, v)
	}
}
