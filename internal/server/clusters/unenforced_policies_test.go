package clusters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestUnenforcedPoliciesKeepFromStarting: the own cluster is not served with a security
// policy that is not enforced.
func TestUnenforcedPoliciesKeepFromStarting(t *testing.T) {
	var report atomic.Pointer[Report]
	var policies []string
	for i := range maxNames + 3 {
		policies = append(policies, fmt.Sprintf("AuthorizationPolicy n/p%d", i))
	}
	report.Store(&Report{Unenforced: policies})
	reg := registry.New(registry.Config{Local: "c1", Publish: func(*snapshot.Snapshot, *snapshot.Changes) { t.Error("a snapshot is served") }, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	m := New(Config{
		Own: "c1", OwnAccess: Access{NewSource: func() Source { return scriptedSource{run: serves("c1", hello("c1", "10.1.0.1")), report: &report} }},
		Registry: reg, Log: slog.New(slog.DiscardHandler), Now: time.Now, Jitter: func() float64 { return 0 }, Metrics: prometheus.NewRegistry(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	running := make(chan error, 1)
	go func() { running <- reg.Run(ctx) }()
	err := m.Run(ctx)
	cancel()
	<-running
	unenforced, ok := errors.AsType[*UnenforcedError](err)
	if !ok || len(unenforced.Policies) != len(policies) || !strings.HasSuffix(err.Error(), "not enforced: "+strings.Join(policies[:maxNames], ", ")+" and 3 more") {
		t.Errorf("the manager ends with %v", err)
	}
}

// TestUnenforcedPoliciesAreLoggedAgain: unenforced policies that appear later or are
// ignored at the start are logged every ten minutes.
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
				cfg.IgnorePolicies, cfg.timing.remind = atStart, 10*time.Minute
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
				"Cluster c1 has configuration that is not used or has no effect, 2 problems: see meshctl x internal-debug clusters"
			if got := strings.Join(own.Hints(), "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			report.Store(&Report{})
			w.pass(10 * time.Minute)
			w.until("a look", func() bool { own := w.status("c1"); return len(own.Hints()) == 0 })
		})
	}
}
