package facts

import (
	"cmp"
	"iter"
	"slices"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// oldestFirst returns objects by precedence.
func oldestFirst[O interface{ Info() *snapshot.Meta }](all iter.Seq2[ObjectKey, O]) []O {
	out := values(all)
	slices.SortFunc(out, compareAge)
	return out
}

// compareAge orders objects by precedence: by creation time, namespace and name.
func compareAge[O interface{ Info() *snapshot.Meta }](a, b O) int {
	x, y := a.Info(), b.Info()
	return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
}
