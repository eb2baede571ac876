package proxystatus_test

import (
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxystatus"
)

// TestRootStep: the readiness of one proxy, by all its streams.
func TestRootStep(t *testing.T) {
	written := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	now := written.Add(24 * time.Hour)
	cert := func(issued, until time.Time, roots ...string) proxystatus.Proxy {
		return proxystatus.Proxy{Name: "web.apps", Certificate: &mesh.ClientCertificate{From: issued.Add(-certs.Backdate), Until: until, Roots: roots}}
	}
	before, since, later := written.Add(-time.Second), written, now.Add(time.Hour)
	told := func(roots ...string) proxystatus.Proxy { return proxystatus.Proxy{Name: "web.apps", Roots: roots} }
	next := proxystatus.RootStep{Trusted: "new", Since: written}
	finish := proxystatus.RootStep{Trusted: "new", Gone: "old", Since: written}
	for name, tc := range map[string]struct {
		step    proxystatus.RootStep
		streams []proxystatus.Proxy
		ready   int
		unknown int
		why     string
	}{
		"next: a certificate from before":              {next, []proxystatus.Proxy{cert(before, later, "old")}, 0, 0, "are of 2026-11-22T11:59:59Z, valid until 2026-11-23T13:00:00Z"},
		"next: one from since":                         {next, []proxystatus.Proxy{cert(since, later, "old")}, 1, 0, ""},
		"next: an old stream, and a newer certificate": {next, []proxystatus.Proxy{cert(since, later, "old"), cert(before, later, "old")}, 1, 0, ""},
		"next: one from before that has ended":         {next, []proxystatus.Proxy{cert(before, now, "old")}, 0, 1, ""},
		"next: no certificate":                         {next, []proxystatus.Proxy{told()}, 0, 1, ""},
		"next: one from before, and told since":        {next, []proxystatus.Proxy{cert(before, later, "old"), told("new", "old")}, 1, 0, ""},
		"next: only the old root accepted":             {next, []proxystatus.Proxy{cert(since, later, "old"), told("old")}, 0, 0, "its agent accepted roots of the mesh without the one that it must trust"},
		"finish: a certificate of the old root":        {finish, []proxystatus.Proxy{cert(since, later, "old")}, 0, 0, "leads to the root that will be dropped, until 2026-11-23T13:00:00Z"},
		"finish: of both":                              {finish, []proxystatus.Proxy{cert(before, later, "old", "new")}, 1, 0, ""},
		"finish: of the new one":                       {finish, []proxystatus.Proxy{cert(since, later, "new")}, 1, 0, ""},
		"finish: one of the old root that has ended":   {finish, []proxystatus.Proxy{cert(since, now, "old")}, 0, 1, ""},
		"finish: only told":                            {finish, []proxystatus.Proxy{told("new")}, 0, 1, ""},
	} {
		var reports []proxystatus.Report
		for _, p := range tc.streams {
			reports = append(reports, proxystatus.Report{Proxies: []proxystatus.Proxy{p}})
		}
		got := tc.step.Judge(reports, now)
		why := ""
		if len(got.Behind) == 1 {
			why = got.Behind[0].Why
		}
		if got.Proxies != 1 || got.Ready != tc.ready || got.Unknown != tc.unknown || (why == "") != (tc.why == "") || !strings.Contains(why, tc.why) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestRootStepNames: proxies of one name in several clusters stay apart and are sorted.
func TestRootStepNames(t *testing.T) {
	at := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	old := &mesh.ClientCertificate{From: at.Add(-time.Hour), Until: at.Add(time.Hour), Roots: []string{"old"}}
	step := proxystatus.RootStep{Trusted: "new", Gone: "old"}
	got := step.Judge([]proxystatus.Report{{Proxies: []proxystatus.Proxy{
		{Name: "web.apps", Cluster: "c2", Certificate: old}, {Name: "db.apps", Cluster: "c2", Certificate: old}, {Name: "web.apps", Cluster: "c1", Certificate: old},
	}}}, at)
	var names []string
	for _, b := range got.Behind {
		names = append(names, b.Proxy+"/"+string(b.Cluster))
	}
	if text := strings.Join(names, " "); got.Proxies != 3 || text != "db.apps/c2 web.apps/c1 web.apps/c2" {
		t.Errorf("%d proxies: %s", got.Proxies, text)
	}
}
