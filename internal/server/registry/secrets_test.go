package registry

import (
	"maps"
	"slices"
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestSecrets: the Secrets of each cluster are separate facts, and their changes change
// nothing else.
func TestSecrets(t *testing.T) {
	b := newTestState(t)
	b.apply(up(service("c1", "a")))
	one, two := &snapshot.Secret{Meta: meta("c1", "gw", "s")}, &snapshot.Secret{Meta: meta("c2", "gw", "s")}
	changes := b.apply(up(one), up(two))
	if got := slices.Sorted(maps.Keys(changes.Secrets)); !slices.Equal(got, []string{"c1/gw/s", "c2/gw/s"}) {
		t.Errorf("changed: %v", got)
	}
	rest := *changes
	if rest.Secrets = nil; !rest.Empty() || changes.Empty() {
		t.Errorf("a secret changed %+v", changes)
	}
	if b.snap.Secrets.Get("c1/gw/s") != one || b.snap.Secrets.Get("c2/gw/s") != two {
		t.Error("the secrets are not in their places")
	}
	roots := &snapshot.ConfigMap{Meta: meta("c1", "gw", "s")}
	changes = b.apply(up(roots), up(&snapshot.ConfigMap{Meta: meta("c2", "gw", "other")}))
	if got := slices.Sorted(maps.Keys(changes.Secrets)); !slices.Equal(got, []string{"configmap://gw/s"}) {
		t.Errorf("changed: %v", got)
	}
	if b.snap.ConfigMaps.Get("configmap://gw/s") != roots || b.snap.ConfigMaps.Len() != 1 {
		t.Error("a ConfigMap of a remote cluster counts")
	}
	if b.apply(down(roots)); b.snap.ConfigMaps.Len() != 0 {
		t.Error("the ConfigMap that is gone is still there")
	}
	if b.apply(down(one)); b.snap.Secrets.Get("c1/gw/s") != nil || b.snap.Secrets.Len() != 1 {
		t.Error("the secret that is gone is still there")
	}
}
