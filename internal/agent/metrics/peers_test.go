package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestPeers: the workloads of new identities are asked for at once, all of them again after a minute, and
// metrics keep what is known while the control plane does not answer. The table is bounded.
func TestPeers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		answer, fault := map[string]mesh.WorkloadLabels{"a": {Name: "web"}}, error(nil)
		var asked [][]string
		var mu sync.Mutex // guards these
		p := NewPeers(func(_ context.Context, identities []string) (map[string]mesh.WorkloadLabels, error) {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, identities)
			return answer, fault
		}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		want := func(identity, name string) {
			t.Helper()
			if got := p.workload(identity).Name; got != name {
				t.Errorf("%q: %q, want %q", identity, got, name)
			}
		}
		last := func() []string {
			mu.Lock()
			defer mu.Unlock()
			if len(asked) == 0 {
				return nil
			}
			return asked[len(asked)-1]
		}
		time.Sleep(time.Hour)
		if got := last(); got != nil {
			t.Errorf("without callers, asked for %v", got)
		}
		want("", "")
		want("a", "")
		want("shared", "")
		time.Sleep(2 * askNew)
		want("a", "web")
		want("shared", "")
		mu.Lock()
		answer = map[string]mesh.WorkloadLabels{"a": {Name: "web-2"}}
		mu.Unlock()
		time.Sleep(askAgain + 2*askNew)
		want("a", "web-2")
		mu.Lock()
		fault = context.DeadlineExceeded
		mu.Unlock()
		time.Sleep(10 * askAgain)
		want("a", "web-2")
		if got := last(); !slices.Equal(got, []string{"a", "shared"}) {
			t.Errorf("asked for %v", got)
		}
		for i := range 2 * xdswire.MaxWorkloads {
			want(fmt.Sprint(i), "")
		}
		time.Sleep(2 * askNew)
		if got := len(last()); got != xdswire.MaxWorkloads {
			t.Errorf("asked for %d identities", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
