package derive

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func same[V comparable](a, b V) bool { return a == b }

// library is a graph as a test needs it: books by title, the number of books by author,
// and a summary.
type library struct {
	*Graph
	books   Input[string, book]
	authors *Index[string, string, book]
	notes   Input[string, string]
	counts  *Table[string, int]
	shelves *Table[string, string]
	report  *Value[string]
}

type book struct {
	author string
	pages  int
	next   string // the title of another book
}

func newLibrary() *library {
	l := &library{Graph: NewGraph()}
	l.books = NewInput(l.Graph, "books", cmp.Compare[string], same[book])
	l.notes = NewInput(l.Graph, "notes", cmp.Compare[string], same[string])
	l.authors = NewIndex(l.books.Table, func(into []string, _ string, b book) []string { return append(into, b.author) })
	l.counts = New(l.Graph, "counts", cmp.Compare[string], same[int], l.count, l.authors)
	l.shelves = New(l.Graph, "shelves", cmp.Compare[string], same[string], l.shelf, l.books, l.notes)
	all := NewIndex(l.counts, func(into []bool, _ string, n int) []bool { return append(into, n > 1) })
	l.report = Single(l.Graph, "report", same[string], func(r *Reads) string {
		var out strings.Builder
		for author, n := range all.Lookup(r, true) {
			fmt.Fprintf(&out, "%s %d;", author, n)
		}
		return out.String()
	})
	return l
}

// count returns the number of books of an author, and none for an author with a secret.
func (l *library) count(r *Reads, author string) (int, bool) {
	if note, ok := l.notes.Get(r, author); ok && note == "secret" {
		return 0, false
	}
	return l.authors.Len(r, author), true
}

// shelf follows the books from one to the next.
func (l *library) shelf(r *Reads, title string) (string, bool) {
	var out []string
	for at := title; len(out) < 4; {
		b, ok := l.books.Get(r, at)
		if !ok {
			note, _ := l.notes.Get(r, at)
			out = append(out, "no "+at+note)
			break
		}
		n, _ := l.counts.Get(r, b.author)
		out = append(out, fmt.Sprint(at, b.pages/10, b.author, n))
		at = b.next
	}
	return strings.Join(out, " "), len(out) > 1
}

// TestIncrementalEqualsNew compares a graph after each of many random commits with a new
// graph of the same inputs.
func TestIncrementalEqualsNew(t *testing.T) {
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		l := newLibrary()
		pick := func(of string) string { return of + fmt.Sprint(rnd.IntN(6)) }
		for step := range 200 {
			for range 1 + rnd.IntN(4) {
				switch rnd.IntN(4) {
				case 0:
					l.books.Delete(pick("b"))
				case 1:
					l.notes.Set(pick([]string{"a", "b"}[rnd.IntN(2)]), []string{"secret", "x"}[rnd.IntN(2)])
				case 2:
					l.notes.Delete(pick([]string{"a", "b"}[rnd.IntN(2)]))
				default:
					l.books.Set(pick("b"), book{pick("a"), rnd.IntN(30), pick("b")})
				}
			}
			before := values(l)
			l.Commit()
			want := newLibrary()
			for k, b := range l.books.All() {
				want.books.Set(k, b)
			}
			for k, n := range l.notes.All() {
				want.notes.Set(k, n)
			}
			want.Commit()
			if got, want := values(l), values(want); !maps.Equal(got, want) {
				t.Fatalf("seed %d, step %d: got %v, want %v", seed, step, got, want)
			}
			after := values(l)
			for name, changed := range map[string][]string{"counts ": changedKeys(l.counts), "shelves ": changedKeys(l.shelves)} {
				for k, v := range after {
					if key, ok := strings.CutPrefix(k, name); ok && before[k] != v && !slices.Contains(changed, key) {
						t.Errorf("seed %d, step %d: the change of %s is not listed", seed, step, k)
					}
				}
				for _, k := range changed {
					if before[name+k] == after[name+k] {
						t.Errorf("seed %d, step %d: %s did not change, and is listed", seed, step, name+k)
					}
				}
			}
			checkReaders(t, l)
		}
	}
}

func changedKeys[V any](t *Table[string, V]) (out []string) {
	for k := range t.Changed() {
		out = append(out, k)
	}
	return out
}

func values(l *library) map[string]string {
	out := map[string]string{"report": l.report.Get(nil)}
	for k, n := range l.counts.All() {
		out["counts "+k] = fmt.Sprint(n)
	}
	for k, s := range l.shelves.All() {
		out["shelves "+k] = s
	}
	return out
}

// checkReaders checks that sources and readers name each other, and that nothing stays
// that has neither a value nor readers.
func checkReaders(t *testing.T, l *library) {
	t.Helper()
	for k, e := range l.books.rows.entries {
		if e.value == nil && !e.node.read() {
			t.Errorf("book %s is kept for nothing", k)
		}
	}
	for k, g := range l.authors.index.groups {
		if len(g.entries) == 0 && !g.node.read() {
			t.Errorf("author %s is kept for nothing", k)
		}
	}
	for k, e := range l.shelves.rows.entries {
		if e.value == nil && !l.shelves.rows.wanted(k) && !e.node.read() {
			t.Errorf("shelf %s is kept for nothing", k)
		}
		for _, s := range e.cell.reads {
			n := s.at()
			if _, many := n.many[e]; !many && !slices.Contains(n.few, reader(e)) {
				t.Errorf("shelf %s reads a source that does not know it", k)
			}
		}
	}
}

// computed returns the number of calls of all functions.
func (l *library) computed() uint64 {
	return l.counts.Computed() + l.shelves.Computed() + l.report.table.Computed()
}

// TestEqualResultsStop: a change whose result is equal computes nothing further.
func TestEqualResultsStop(t *testing.T) {
	l := newLibrary()
	l.books.Set("b1", book{author: "a1", pages: 11})
	l.books.Set("b2", book{author: "a2", pages: 11, next: "b1"})
	l.Commit()
	before := l.computed()
	l.books.Set("b1", book{author: "a1", pages: 12})
	l.Commit()
	// The count of a1, and the shelves of b1 and b2; all are equal, so not the report.
	if got := l.computed() - before; got != 3 {
		t.Errorf("computed %d values, want 3", got)
	}
	if got := changedKeys(l.shelves); len(got) != 0 {
		t.Errorf("changed: %v", got)
	}
	before = l.computed()
	l.books.Set("b1", book{author: "a1", pages: 12})
	l.Commit()
	if got := l.computed() - before; got != 0 {
		t.Errorf("computed %d values after an equal input, want 0", got)
	}
}

// TestComputed: a graph counts the calls of functions by the names of tables. The report reads
// counts, which stay equal.
func TestComputed(t *testing.T) {
	l := newLibrary()
	l.books.Set("b1", book{author: "a1"})
	l.Commit()
	l.books.Set("b1", book{author: "a1", pages: 20})
	l.Commit()
	if got, want := l.Computed(), map[string]uint64{"counts": 2, "shelves": 2, "report": 1}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestRemovedAndAdded: a key that is removed and added before a Commit changed once, to its
// new value.
func TestRemovedAndAdded(t *testing.T) {
	g := NewGraph()
	in := NewInput(g, "in", cmp.Compare[string], same[int])
	in.Set("a", 1)
	g.Commit()
	in.Delete("a")
	in.Set("a", 1)
	g.Commit()
	var got []Change[int]
	for _, c := range in.Changed() {
		got = append(got, c)
	}
	if want := []Change[int]{{1, true}}; !slices.Equal(got, want) {
		t.Errorf("got changes %v, want %v", got, want)
	}
}

// TestKeysAppendedTwice: an index may find an entry twice under a key that nothing reads, such as a pod
// that names an address twice.
func TestKeysAppendedTwice(t *testing.T) {
	g := NewGraph()
	in := NewInput(g, "in", cmp.Compare[string], same[int])
	twice := NewIndex(in.Table, func(into []int, _ string, n int) []int { return append(into, n, n) })
	for _, n := range []int{1, 2} {
		in.Set("a", n)
		g.Commit()
		if got := twice.Len(nil, n); got != 1 {
			t.Errorf("%d entries for key %d, want 1", got, n)
		}
	}
	in.Delete("a")
	g.Commit()
	if got := twice.Len(nil, 2); got != 0 {
		t.Errorf("%d entries after the last one was removed", got)
	}
}

// TestPanicKeepsTheValue: after a panic the last value stays, the fault is reported with
// its key, and a later change computes the value again.
func TestPanicKeepsTheValue(t *testing.T) {
	g := NewGraph()
	in := NewInput(g, "in", cmp.Compare[int], same[int])
	out := New(g, "out", cmp.Compare[int], same[int], func(r *Reads, k int) (int, bool) {
		v, _ := in.Get(r, k)
		return 100 / v, true
	}, in.Table)
	in.Set(7, 5)
	in.Set(8, 4)
	g.Commit()
	in.Set(7, 0)
	in.Set(8, 2)
	g.Commit()
	if v, ok := out.Get(nil, 7); v != 20 || !ok {
		t.Errorf("got %d, %v, want the last value 20", v, ok)
	}
	if v, _ := out.Get(nil, 8); v != 50 {
		t.Errorf("got %d for another key, want 50", v)
	}
	faults := g.Faults()
	if len(faults) != 1 || faults[0].Table != "out" || faults[0].Key != "7" || !strings.Contains(faults[0].Stack, "derive_test.go") {
		t.Errorf("faults: %+v", faults)
	}
	in.Set(7, 10)
	g.Commit()
	if v, _ := out.Get(nil, 7); v != 10 || len(g.Faults()) != 0 {
		t.Errorf("got %d and %d faults, want 10 and none", v, len(g.Faults()))
	}
	in.Set(7, 0)
	g.Commit()
	in.Delete(7)
	g.Commit()
	if _, ok := out.Get(nil, 7); ok || len(g.Faults()) != 0 {
		t.Errorf("a removed key has a value (%v) or a fault (%v)", ok, g.Faults())
	}
}

// TestReadsOfLaterTables: a function that reads its own table or a later one is a fault.
func TestReadsOfLaterTables(t *testing.T) {
	g := NewGraph()
	in := NewInput(g, "in", cmp.Compare[int], same[int])
	var out *Table[int, int]
	out = New(g, "out", cmp.Compare[int], same[int], func(r *Reads, k int) (int, bool) { return out.Get(r, k) }, in.Table)
	in.Set(1, 1)
	g.Commit()
	if len(g.Faults()) != 1 {
		t.Errorf("faults: %v", g.Faults())
	}
}

// TestManyReaders: a source with many readers wakes all of them, and forgets them.
func TestManyReaders(t *testing.T) {
	const n = 5 * fewReaders
	g := NewGraph()
	in := NewInput(g, "in", cmp.Compare[int], same[int])
	common := NewInput(g, "common", cmp.Compare[int], same[int])
	sum := New(g, "sum", cmp.Compare[int], same[int], func(r *Reads, k int) (int, bool) {
		a, _ := in.Get(r, k)
		b, _ := common.Get(r, 0)
		return a + b, true
	}, in.Table)
	for i := range n {
		in.Set(i, i)
	}
	common.Set(0, 1)
	g.Commit()
	common.Set(0, 2)
	g.Commit()
	if len(changedKeys2(sum)) != n {
		t.Errorf("%d values changed, want %d", len(changedKeys2(sum)), n)
	}
	for i := range n {
		in.Delete(i)
	}
	common.Delete(0)
	g.Commit()
	if sum.Len() != 0 || len(sum.rows.entries) != 0 || len(common.rows.entries) != 0 {
		t.Errorf("left: %d values, %d and %d entries", sum.Len(), len(sum.rows.entries), len(common.rows.entries))
	}
}

func changedKeys2(t *Table[int, int]) (out []int) {
	for k := range t.Changed() {
		out = append(out, k)
	}
	return out
}

// BenchmarkChange changes one of 100,000 inputs on which one of 1,000 values depends. The
// values are pointers, as in most tables: other values cost an allocation each.
func BenchmarkChange(b *testing.B) {
	g := NewGraph()
	in := NewInput(g, "in", cmp.Compare[int], same[*int])
	of := NewIndex(in.Table, func(into []int, k int, _ *int) []int { return append(into, k%1000) })
	sum := New(g, "sum", cmp.Compare[int], same[*int], func(r *Reads, k int) (*int, bool) {
		total := 0
		for key := range of.Lookup(r, k) {
			v, _ := in.Get(r, key)
			total += *v
		}
		return &total, true
	}, of)
	for i := range 100_000 {
		in.Set(i, &i)
	}
	g.Commit()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		value := -i
		in.Set(i%100_000, &value)
		g.Commit()
	}
	if sum.Len() != 1000 {
		b.Fatal(sum.Len())
	}
}

// TestCommitWhile: a Commit that is ended computes no further value, and another one completes it.
func TestCommitWhile(t *testing.T) {
	const keys, most = 100, 10
	g := NewGraph()
	in := NewInput(g, "in", cmp.Compare[int], same[int])
	double := New(g, "double", cmp.Compare[int], same[int], func(r *Reads, k int) (int, bool) {
		v, _ := in.Get(r, k)
		return 2 * v, true
	}, in.Table)
	sum := Single(g, "sum", same[int], func(r *Reads) int {
		total := 0
		for k := range keys {
			v, _ := double.Get(r, k)
			total += v
		}
		return total
	})
	for k := range keys {
		in.Set(k, k+1)
	}
	asked := 0
	if g.CommitWhile(func() bool { asked++; return asked <= most }) {
		t.Error("an ended Commit reports that it is complete")
	}
	if got := double.Computed() + sum.table.Computed(); got != most {
		t.Errorf("computed %d values, want %d", got, most)
	}
	g.Commit()
	if got, want := sum.Get(nil), keys*(keys+1); got != want {
		t.Errorf("after another Commit the sum is %d, want %d", got, want)
	}
}
