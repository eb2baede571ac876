package registry

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

func envoyFilter(ns, n string, extensions ...string) *snapshot.EnvoyFilter {
	f := &snapshot.EnvoyFilter{Meta: meta("c1", ns, n)}
	for _, e := range extensions {
		f.Extensions = append(f.Extensions, snapshot.Extension{Name: e})
	}
	return f
}

// TestEnvoyFilterOrder: the EnvoyFilters that select a proxy are sorted by priority, and of
// one priority the root namespace's first, then by age and name.
func TestEnvoyFilterOrder(t *testing.T) {
	t.Parallel()
	late, first, old, root, other := envoyFilter("sample", "z"), envoyFilter("sample", "y"), envoyFilter("sample", "x"),
		envoyFilter("istio-system", "root"), envoyFilter("other", "other")
	last := envoyFilter("istio-system", "last")
	last.Priority, first.Priority = 7, -1
	old.Created = epoch.Add(-time.Hour)
	some, elsewhere := envoyFilter("sample", "a"), envoyFilter("sample", "b")
	some.Selector, elsewhere.Selector = map[string]string{"app": "web"}, map[string]string{"app": "db"}
	remote := envoyFilter("sample", "remote")
	remote.Cluster = "c2"
	b := newTestState(t)
	b.apply(up(late), up(first), up(old), up(root), up(last), up(other), up(some), up(elsewhere), up(remote))
	filters := func() string {
		var names []string
		for _, f := range snapshot.EnvoyFiltersFor(b.snap.Namespaces.Get("istio-system"), b.snap.Namespaces.Get("sample"), map[string]string{"app": "web"}) {
			names = append(names, f.Name)
		}
		return strings.Join(names, " ")
	}
	if got, want := filters(), "y root x a z last"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	b.apply(down(first))
	if got, want := filters(), "root x a z last"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestEnvoyFilterTouchesNoService: an EnvoyFilter changes no facts about services.
func TestEnvoyFilterTouchesNoService(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	b.apply(up(service("c1", "web")))
	before := b.snap
	c := b.apply(up(envoyFilter("istio-system", "f", "e")))
	if c.Kinds() != 0 || c.Traits || c.Everywhere {
		t.Errorf("changes are %+v", c)
	}
	if _, ok := c.Namespaces["istio-system"]; !ok || before.Services != b.snap.Services {
		t.Errorf("changes are %+v, services the same: %t", c, before.Services == b.snap.Services)
	}
}

// TestDuplicateExtensions: an extension of two EnvoyFilters is logged once, and only if
// a proxy may get both.
func TestDuplicateExtensions(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	b := newTestState(t)
	b.s.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	logged := func() (out []string) {
		for line := range strings.Lines(log.String()) {
			_, line, _ = strings.Cut(line, "extension=")
			line, _, _ = strings.Cut(line, " first_at=")
			out = append(out, strings.ReplaceAll(line, " (cluster c1)", ""))
		}
		log.Reset()
		slices.Sort(out)
		return out
	}
	apart, web := envoyFilter("sample", "apart", "e"), envoyFilter("sample", "web", "e")
	apart.Selector, web.Selector = map[string]string{"app": "db"}, map[string]string{"app": "web"}
	b.apply(up(apart), up(web), up(envoyFilter("other", "o", "e")))
	if got := logged(); got != nil {
		t.Errorf("logged %q, want nothing", got)
	}
	root := envoyFilter("istio-system", "root", "x", "e")
	b.apply(up(root))
	want := []string{`e first="EnvoyFilter istio-system/root"`, `e first="EnvoyFilter istio-system/root"`, `e first="EnvoyFilter istio-system/root"`}
	if diff := cmp.Diff(want, logged()); diff != "" {
		t.Error(diff)
	}
	b.apply(up(envoyFilter("sample", "z", "e")))
	want = []string{`e first="EnvoyFilter istio-system/root"`, `e first="EnvoyFilter sample/apart"`, `e first="EnvoyFilter sample/web"`}
	if diff := cmp.Diff(want, logged()); diff != "" {
		t.Error(diff)
	}
	b.apply(down(root))
	if diff := cmp.Diff([]string{
		`EnvoyFilter sample/z (cluster c1): proxies that EnvoyFilter sample/apart (cluster c1) also selects get extension "e" from there`,
		`EnvoyFilter sample/z (cluster c1): proxies that EnvoyFilter sample/web (cluster c1) also selects get extension "e" from there`,
	}, b.s.report.duplicates); diff != "" {
		t.Error(diff)
	}
	b.apply(up(root))
	if got := logged(); len(got) != 4 {
		t.Errorf("after it came again: %d lines, want 4: %q", len(got), got)
	}
}
