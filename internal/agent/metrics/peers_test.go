package metrics

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
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
		p := NewPeers(func(_ context.Context, identities []string) (map[string]mesh.WorkloadLabels, error) {
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
		time.Sleep(time.Hour)
		if len(asked) != 0 {
			t.Errorf("without callers, asked for %v", asked)
		}
		want("", "")
		want("a", "")
		want("shared", "")
		time.Sleep(2 * askNew)
		want("a", "web")
		want("shared", "")
		answer = map[string]mesh.WorkloadLabels{"a": {Name: "web-2"}}
		time.Sleep(askAgain + 2*askNew)
		want("a", "web-2")
		fault = context.DeadlineExceeded
		time.Sleep(10 * askAgain)
		want("a", "web-2")
		if !slices.Equal(asked[len(asked)-1], []string{"a", "shared"}) {
			t.Errorf("asked for %v", asked)
		}
		for i := range 2 * xdswire.MaxWorkloads {
			want(fmt.Sprint(i), "")
		}
		time.Sleep(2 * askNew)
		if got := len(asked[len(asked)-1]); got != xdswire.MaxWorkloads {
			t.Errorf("asked for %d identities", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
