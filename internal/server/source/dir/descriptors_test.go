package dir_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/test/harness"
)

// TestNoDescriptors: files that could not be read without free file descriptors are
// read later, although they do not change again. No object is removed meanwhile.
func TestNoDescriptors(t *testing.T) {
	other := filepath.Join(t.TempDir(), "sub")
	w := start(t, map[string]string{
		"a.yaml": service("a", 1), "b.yaml": service("b", 1), "deep/c.yaml": service("c", 1),
	})
	w.must(os.WriteFile(w.path(".d"), []byte(service("d", 1)), 0o600))
	w.must(os.Mkdir(other, 0o700))
	w.must(os.WriteFile(filepath.Join(other, "e.yaml"), []byte(service("e", 1)), 0o600))
	a, err := os.OpenFile(w.path("a.yaml"), os.O_WRONLY, 0)
	w.must(err)
	defer a.Close()

	feed := harness.Starve(t)
	_, err = a.WriteString(service("a", 2))
	w.must(err)
	w.must(os.Rename(w.path("deep/c.yaml"), w.path("deep/renamed.yaml")))
	w.must(os.Rename(w.path(".d"), w.path("d.yaml")))
	w.must(os.Rename(other, w.path("sub")))
	for _, name := range []string{"a.yaml", "d.yaml", "deep", "sub"} {
		w.until("problem of "+name, func() bool {
			return slices.ContainsFunc(w.shown(), func(p string) bool {
				return strings.HasPrefix(p, name) && strings.Contains(p, "too many open files")
			})
		})
	}
	feed()

	w.wants(map[string]string{
		"Service n/a": "a.yaml:1 port 2", "Service n/b": "b.yaml:1 port 1", "Service n/c": "deep/renamed.yaml:1 port 1",
		"Service n/d": "d.yaml:1 port 1", "Service n/e": "sub/e.yaml:1 port 1",
	})
	w.problems()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, batch := range w.batches {
		if strings.Contains(batch, "-") {
			t.Errorf("objects went: %s", batch)
		}
	}
}
