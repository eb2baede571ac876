package attacks

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/meshctl/meshctl/internal/keyset"
	"github.com/meshctl/meshctl/test/harness"
)

// TestSlowKeyServers: a hundred key servers of one namespace never answer. The key set of another
// namespace is fetched all the same.
func TestSlowKeyServers(t *testing.T) {
	t.Parallel()
	s := serveWebhooks(t)
	var slow, good atomic.Int64
	end := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/slow") {
			slow.Add(1)
			select {
			case <-end:
			case <-r.Context().Done():
			}
			return
		}
		good.Add(1)
		_, _ = w.Write([]byte(keyset.Nobodys))
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(end) })
	write := func(namespace string, urls ...string) {
		var rules strings.Builder
		for i, url := range urls {
			fmt.Fprintf(&rules, "  - {issuer: i%d, timeout: 30s, jwksUri: %q}\n", i, server.URL+url)
		}
		if err := os.WriteFile(filepath.Join(s.config, namespace+".yaml"), fmt.Appendf(nil,
			"apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: keys, namespace: %s}\nspec:\n  jwtRules:\n%s", namespace, rules.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var urls []string
	for i := range 100 {
		urls = append(urls, fmt.Sprint("/slow/", i))
	}
	write("attacker", urls...)
	eventually(t, "the slow servers are asked", func() error {
		if slow.Load() == 0 {
			return fmt.Errorf("%d requests", slow.Load())
		}
		return nil
	})
	write("good", "/good")
	harness.Eventually(t, deadline, "the key set of another namespace is fetched", func() error {
		if good.Load() == 0 {
			return fmt.Errorf("not asked, beside %d slow requests", slow.Load())
		}
		return nil
	})
}
