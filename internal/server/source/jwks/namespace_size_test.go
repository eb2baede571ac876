package jwks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/test/harness"
)

// TestSizeOfNamespace: large key sets for the few rules of a namespace do not fill the memory. The key
// sets of another namespace stay, also those that both need.
func TestSizeOfNamespace(t *testing.T) {
	t.Parallel()
	const large, size = 20, 1_000_000
	w := &web{documents: map[string]string{"own": set("1"), "shared": set("1")}, asked: map[string]int{}}
	want := append(wanted("own", "shared"), wantedOf("hostile", "shared")...)
	for n := range large {
		url := fmt.Sprint("large", n)
		w.set(url, set(strings.Repeat("k", size)+url))
		want = append(want, wantedOf("hostile", url)...)
	}
	f, next, _ := start(t, w.get, want)
	check := func() {
		t.Helper()
		held, got := 0, next()
		for _, keys := range got {
			held += len(keys)
		}
		if own := got[snapshot.KeySource{URL: "own"}]; held > maxNamespaceSize+len(own) {
			t.Fatalf("%d bytes of keys are held", held)
		}
	}
	check()
	harness.Eventually(t, patience, "the other key sets are refused", func() error {
		refused := 0
		for _, st := range f.Status() {
			if strings.Contains(st.Problem, "namespace hostile") && st.Keys == 0 {
				refused++
			}
		}
		if refused < large-maxNamespaceSize/size {
			return fmt.Errorf("%d are", refused)
		}
		return nil
	})
	for _, url := range []string{"shared", "own"} {
		w.set(url, set(strings.Repeat("2", 100_000)))
		check()
	}
	for _, st := range f.Status() {
		if (st.Source == "own" || st.Source == "shared") && (st.Keys != 1 || st.Problem != "") {
			t.Errorf("%s: %+v: another namespace harms it", st.Source, st)
		}
	}
}
