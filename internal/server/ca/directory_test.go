package ca

import (
	"os"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/test/harness"
)

// TestDirectoryWithoutDescriptors: a new CA that could not be read for lack of file
// descriptors comes into use when there are some, without another change of a file.
func TestDirectoryWithoutDescriptors(t *testing.T) {
	root := certstest.NewRoot(t)
	first, second := certstest.NewIntermediate(t, root), certstest.NewIntermediate(t, root)
	dir, other := newDir(t), newDir(t)
	save(t, dir, first)
	save(t, other, second)
	c := run(t, dir)
	waitFor(t, "first CA", func() bool { return c.signs(first) })
	feed := harness.Starve(t)
	for _, move := range [][2]string{{dir, dir + ".old"}, {other, dir}} {
		if err := os.Rename(move[0], move[1]); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, "problem", func() bool { return strings.Contains(strings.Join(c.Problems(), " "), "too many open files") })
	feed()
	waitFor(t, "second CA", func() bool { return c.signs(second) && len(c.Problems()) == 0 })
}
