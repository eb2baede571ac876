// Package derive keeps tables that are computed from other tables, and recomputes only
// what a change affects.
//
// The values of an input table are set from outside. The values of a derived table come
// from a function of the key, which reads other tables. Its reads are recorded, those of
// absent keys included, and a later change of one of them computes the value again. If
// the result is equal, the change goes no further.
//
// A table reads only tables that were made before it. So a Commit computes table after
// table, each value at most once, and there are no cycles.
package derive

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
)

// Graph is a set of tables. One goroutine owns a graph and its tables.
type Graph struct {
	stages []stage
	reads  Reads  // of the current computation
	stamp  uint64 // numbers the passes over lists of reads
	period uint64 // counts the commits that have changes
	closed bool   // Commit ended the period; the next change starts another one
	faults map[source]Fault
}

// Fault is a panic of a function. The value of the key is as before the panic.
type Fault struct {
	Table, Key string
	Panic      any
	Stack      string
}

func (f Fault) String() string {
	return fmt.Sprintf("the last good value of %s %s stays: panic: %v", f.Table, f.Key, f.Panic)
}

// stage is a table whose values a Commit brings up to date.
type stage interface {
	// It reports whether it is done; otherwise proceed has returned false.
	update(proceed func() bool) bool
	// computed returns the name of a derived table and the number of calls of its function.
	computed() (name string, calls uint64)
}

// NewGraph returns a graph without tables.
func NewGraph() *Graph { return &Graph{faults: make(map[source]Fault)} }

// Commit computes all values that the changes since the last Commit affect.
func (g *Graph) Commit() { g.CommitWhile(func() bool { return true }) }

// CommitWhile is Commit, but stops as soon as proceed returns false, which it asks before each
// value. It reports whether all values are computed. If not, the values of the graph do not fit
// each other, and only another Commit makes them fit.
func (g *Graph) CommitWhile(proceed func() bool) bool {
	g.change()
	for _, s := range g.stages {
		if !s.update(proceed) {
			return false
		}
	}
	g.closed = true
	return true
}

// Faults returns the faults of the last computations, by table and key.
func (g *Graph) Faults() []Fault {
	out := make([]Fault, 0, len(g.faults))
	for _, f := range g.faults {
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b Fault) int {
		return strings.Compare(a.Table+"\x00"+a.Key, b.Table+"\x00"+b.Key)
	})
	return out
}

// Computed returns the number of calls of the function of each derived table, by name.
func (g *Graph) Computed() map[string]uint64 {
	out := make(map[string]uint64, len(g.stages))
	for _, s := range g.stages {
		if name, calls := s.computed(); calls > 0 {
			out[name] = calls
		}
	}
	return out
}

// change starts a new period if the last one is closed.
func (g *Graph) change() {
	if g.closed || g.period == 0 {
		g.closed = false
		g.period++
	}
}

// Reads records what a function reads. A nil *Reads records nothing: it is for reads
// outside of functions.
type Reads struct {
	level int // of the table being computed; it may read lower ones
	stamp uint64
	list  []source
}

func (r *Reads) record(s source, level int) {
	if r == nil {
		return
	}
	if level >= r.level {
		panic(fmt.Sprintf("derive: table %d reads table %d, which was not made before it", r.level, level))
	}
	if n := s.at(); n.stamp != r.stamp {
		n.stamp = r.stamp
		r.list = append(r.list, s)
	}
}

// source is what a function reads: a key of a table, or a key of an index.
type source interface {
	at() *node
	// drop frees the source if it has neither a value nor readers.
	drop()
}

// node is the part of a source that its readers need.
type node struct {
	stamp uint64 // of the last pass that met the node
	few   []reader
	many  map[reader]struct{} // in place of few if there are more than fewReaders
}

// fewReaders is the number of readers above which a map finds one faster than a list.
const fewReaders = 32

// reader is a key of a derived table. wake queues it to be computed again.
type reader interface{ wake() }

// derived is a key of a derived table while its value is computed.
type derived interface {
	source
	reader
	compute(*Reads)
	// fault returns a Fault with the names of the table and the key.
	fault() Fault
}

func (n *node) read() bool { return len(n.few)+len(n.many) > 0 }

func (n *node) add(r reader) {
	switch {
	case n.many != nil:
		n.many[r] = struct{}{}
	case len(n.few) < fewReaders:
		n.few = append(n.few, r)
	default:
		n.many = make(map[reader]struct{}, 2*fewReaders)
		for _, other := range n.few {
			n.many[other] = struct{}{}
		}
		n.many[r], n.few = struct{}{}, nil
	}
}

func (n *node) remove(r reader) {
	if n.many != nil {
		delete(n.many, r)
		return
	}
	if i := slices.Index(n.few, r); i >= 0 {
		last := len(n.few) - 1
		n.few[i], n.few[last] = n.few[last], nil
		n.few = n.few[:last]
	}
}

func (n *node) notify() {
	for _, r := range n.few {
		r.wake()
	}
	for r := range n.many {
		r.wake()
	}
}

// compute computes a value with the recorded reads of its cell, and replaces them. It
// reports whether the function returned; otherwise the fault is kept.
func (g *Graph) compute(c *cell, key derived, level int) (ok bool) {
	g.stamp++
	g.reads.level, g.reads.stamp, g.reads.list = level, g.stamp, g.reads.list[:0]
	defer func() {
		if p := recover(); p != nil {
			fault := key.fault()
			fault.Panic, fault.Stack = p, string(debug.Stack())
			g.faults[key] = fault
		} else {
			delete(g.faults, key)
		}
		g.replace(c, key)
	}()
	key.compute(&g.reads)
	return true
}

// replace makes the recorded reads the reads of a cell. Mostly they are the same.
func (g *Graph) replace(c *cell, r reader) {
	read := g.reads.list
	if slices.Equal(c.reads, read) {
		return
	}
	old := c.reads
	for _, s := range old {
		if n := s.at(); n.stamp != g.stamp {
			n.remove(r)
			s.drop()
		}
	}
	g.stamp++
	for _, s := range old {
		s.at().stamp = g.stamp
	}
	for _, s := range read {
		if n := s.at(); n.stamp != g.stamp {
			n.add(r)
		}
	}
	c.reads = slices.Clone(read)
}

// forget removes all reads of a cell.
func (g *Graph) forget(c *cell, key derived) {
	g.stamp++
	g.reads.list = g.reads.list[:0]
	g.replace(c, key)
	delete(g.faults, key)
}

// cell is the part of a key that only derived tables have.
type cell struct {
	reads  []source
	queued bool
}
