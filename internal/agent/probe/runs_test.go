package probe

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestEqualProbesAreJoined: many callers of slow probes and hooks delay no other probe. The callers
// of one probe share its run, which ends when the last of them leaves.
func TestEqualProbesAreJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		started, ended := map[string]int{}, map[string]int{}
		count := func(of map[string]int, name string) int {
			mu.Lock()
			defer mu.Unlock()
			return of[name]
		}
		takes := func(name string, d time.Duration) func(context.Context) error {
			return func(ctx context.Context) error {
				mu.Lock()
				started[name]++
				mu.Unlock()
				defer func() { mu.Lock(); ended[name]++; mu.Unlock() }()
				select {
				case <-time.After(d):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		probes := map[string]Kubelet{
			"/app-lifecycle/a/prestopz": {Timeout: 10 * time.Minute, Check: takes("hook", 9*time.Minute)},
			"/app-health/a/livez":       {Timeout: time.Second, Check: takes("probe", 10*time.Millisecond)},
			"/app-health/a/readyz":      {Timeout: time.Second, Check: takes("hung", time.Hour)},
		}
		handler := Handler(probes)
		ask := func(ctx context.Context, path, agent string) int {
			w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)
			r.Header.Set("User-Agent", agent)
			handler.ServeHTTP(w, r)
			return w.Code
		}
		attackers, stop := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for i := range 100 {
			for _, path := range []string{"/app-lifecycle/a/prestopz", "/app-health/a/readyz"} {
				for _, agent := range []string{fmt.Sprint("attacker/", i), fmt.Sprint("kube-probe/", i)} {
					group.Go(func() { ask(attackers, path, agent) })
				}
			}
		}
		synctest.Wait()
		began := time.Now()
		if status := ask(t.Context(), "/app-health/a/livez", "kube-probe/1.36"); status != http.StatusOK || time.Since(began) != 10*time.Millisecond {
			t.Errorf("a probe beside many hooks: %d after %v", status, time.Since(began))
		}
		if status := ask(t.Context(), "/app-health/a/readyz", "kube-probe/1.36"); status != http.StatusInternalServerError || time.Since(began) > 2*time.Second {
			t.Errorf("a hung probe: %d after %v", status, time.Since(began))
		}
		if hooks, hung := count(started, "hook"), count(started, "hung"); hooks != 2 || hung > 4 {
			t.Errorf("400 callers ran the hook %d times and the hung probe %d times", hooks, hung)
		}
		own := make(chan int, 1)
		go func() { own <- ask(t.Context(), "/app-lifecycle/a/prestopz", "kube-probe/1.36") }()
		synctest.Wait()
		stop()
		group.Wait()
		synctest.Wait()
		if count(ended, "hook") != 1 { // the one that only attackers waited for
			t.Errorf("%d runs of the hook ended with their callers, want 1", count(ended, "hook"))
		}
		if status := <-own; status != http.StatusOK || count(started, "hook") != 2 || time.Since(began) < 8*time.Minute {
			t.Errorf("the hook of the kubelet: %d after %v, started %d times", status, time.Since(began), count(started, "hook"))
		}
		if status := ask(t.Context(), "/app-health/a/livez", ""); status != http.StatusOK || count(started, "probe") != 2 {
			t.Errorf("the next probe: %d, started %d times", status, count(started, "probe"))
		}
	})
}
