package clusters

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestUnenforcedPoliciesAreLoggedAgain: policies that are not enforced are logged every ten minutes,
// and keep the own cluster neither from being served at the start nor later.
func TestUnenforcedPoliciesAreLoggedAgain(t *testing.T) {
	const line = `level=WARN msg="security policies are not enforced" cluster=c1 policies="AuthorizationPolicy n/p"`
	for name, atStart := range map[string]bool{"at the start": true, "later": false} {
		t.Run(name, func(t *testing.T) {
			var report atomic.Pointer[Report]
			found := &Report{Unenforced: []string{"AuthorizationPolicy n/p"}, NotUsed: 2}
			if atStart {
				report.Store(found)
			}
			w := start(t, func(cfg *Config) {
				cfg.timing.remind = 10 * time.Minute
				cfg.OwnAccess = Access{NewSource: func() Source { return scriptedSource{run: serves("c1", hello("c1", "10.1.0.1")), report: &report} }}
			})
			w.until("own", w.has("10.1.0.1"))
			report.Store(found)
			for n := range 3 {
				if got := strings.Count(w.log.String(), line); got != n {
					t.Fatalf("%d lines, want %d:\n%s", got, n, w.log)
				}
				w.pass(10 * time.Minute)
				w.until("a line", func() bool { return strings.Count(w.log.String(), line) > n })
			}
			own := w.status("c1")
			want := "Warning: cluster c1 has security policies that are not enforced: AuthorizationPolicy n/p\n" +
				"Cluster c1 has configuration that is not used or has no effect, 2 problems; to show it: meshctl x internal-debug clusters --all"
			if got := strings.Join(own.Hints(), "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			report.Store(&Report{})
			w.pass(10 * time.Minute)
			w.until("a look", func() bool { own := w.status("c1"); return len(own.Hints()) == 0 })
		})
	}
}
