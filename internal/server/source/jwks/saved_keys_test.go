package jwks

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/test/harness"
)

// TestSavedKeys: a Fetcher uses the keys that an earlier one saved until the server answers, and
// removes those that are not wanted any more.
func TestSavedKeys(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "keysets")
	a, b := snapshot.KeySource{URL: "a"}, snapshot.KeySource{URL: "b"}
	path := func(s snapshot.KeySource) string { return (&Fetcher{cfg: Config{Dir: dir}}).savedPath(s) }
	t.Run("save", func(t *testing.T) {
		w := &web{documents: map[string]string{"a": set("1"), "b": set("1")}, asked: map[string]int{}}
		f, next, _ := startIn(t, dir, w.get, wanted("a", "b"))
		next()
		w.set("a", set("2"))
		next()
		f.Want(wanted("a"))
		next()
		harness.Eventually(t, patience, "keys that are not wanted are removed", func() error {
			if _, err := os.Stat(path(b)); err == nil {
				return fmt.Errorf("%s exists", path(b))
			}
			return nil
		})
	})
	info, err := os.Stat(path(a))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	t.Run("restore", func(t *testing.T) {
		w := &web{documents: map[string]string{}, asked: map[string]int{}}
		_, next, log := startIn(t, dir, w.get, wanted("a", "b"))
		if got := next(); len(got) != 1 || got[a] != set("2") {
			t.Fatalf("published first: %v", got)
		}
		w.set("a", set("3"))
		if got := next(); got[a] != set("3") {
			t.Fatalf("published after a fetch: %v", got)
		}
		if !strings.Contains(log.String(), "saved key set in use") {
			t.Errorf("the log:\n%s", log)
		}
	})
	saved, err := os.ReadFile(path(a))
	if err != nil {
		t.Fatal(err)
	}
	old := strings.Replace(string(saved), fmt.Sprint(time.Now().Year()), "2001", 1)
	for name, tc := range map[string]struct{ text, want string }{
		"damaged":        {"{", "it is damaged"},
		"no keys":        {strings.Replace(string(saved), `{"keys":`, `{"x":`, 1), "has 0 keys"},
		"another source": {strings.Replace(string(saved), `"a"`, `"c"`, 1), "it is of c"},
		"old":            {old, "days ago"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path(a), []byte(tc.text), 0o600); err != nil {
				t.Fatal(err)
			}
			w := &web{documents: map[string]string{}, asked: map[string]int{}}
			_, next, log := startIn(t, dir, w.get, wanted("a"))
			if got := next(); len(got) != 0 || !strings.Contains(log.String(), tc.want) {
				t.Errorf("published %v, the log:\n%s\nwant %q", got, log, tc.want)
			}
		})
	}
}
