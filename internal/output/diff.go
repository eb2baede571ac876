package output

import (
	"fmt"
	"slices"
	"strings"
)

const (
	// diffContext is the number of unchanged lines around a change.
	diffContext = 7
	// maxEdits bounds the changed lines for which the shortest diff is searched. The search
	// takes memory and time proportional to its square. Texts that differ more are shown
	// as replaced.
	maxEdits = 1000
)

// span is a changed part: lines a to b of the old text became lines c to d of the new
// text.
type span struct{ a, b, c, d int }

// UnifiedDiff returns the difference between two texts in the hunks of diff -u, without
// a header. It is empty if the lines are equal.
func UnifiedDiff(before, after string) string {
	was, now := strings.Split(before, "\n"), strings.Split(after, "\n")
	var out strings.Builder
	changes := changed(was, now)
	for len(changes) > 0 {
		n := 1 // changes that share a hunk
		for n < len(changes) && changes[n].a-changes[n-1].b <= 2*diffContext {
			n++
		}
		hunk(&out, was, now, changes[:n])
		changes = changes[n:]
	}
	return out.String()
}

func hunk(out *strings.Builder, was, now []string, changes []span) {
	first, last := changes[0], changes[len(changes)-1]
	lead, trail := min(diffContext, first.a), min(diffContext, len(was)-last.b)
	at := first.a - lead
	fmt.Fprintf(out, "@@ -%s +%s @@\n", lineRange(at, last.b+trail), lineRange(first.c-lead, last.d+trail))
	write := func(mark string, lines []string) {
		for _, line := range lines {
			out.WriteString(mark + line + "\n")
		}
	}
	for _, c := range changes {
		write(" ", was[at:c.a])
		write("-", was[c.a:c.b])
		write("+", now[c.c:c.d])
		at = c.b
	}
	write(" ", was[at:at+trail])
}

// lineRange returns lines a to b in the notation of hunks, counted from 1.
func lineRange(a, b int) string {
	if a == b {
		return fmt.Sprintf("%d,0", a)
	}
	return fmt.Sprintf("%d,%d", a+1, b-a)
}

// changed returns the parts that differ, in order.
func changed(was, now []string) []span {
	head := 0
	for head < min(len(was), len(now)) && was[head] == now[head] {
		head++
	}
	tail := 0
	for tail < min(len(was), len(now))-head && was[len(was)-1-tail] == now[len(now)-1-tail] {
		tail++
	}
	var out []span
	a, c := head, head
	upTo := func(b, d int) {
		if a < b || c < d {
			out = append(out, span{a, b, c, d})
		}
		a, c = b+1, d+1
	}
	for _, same := range common(was[head:len(was)-tail], now[head:len(now)-tail]) {
		upTo(head+same[0], head+same[1])
	}
	upTo(len(was)-tail, len(now)-tail)
	return out
}

// common returns the lines that the shortest edit keeps, as pairs of indexes, by Myers'
// algorithm. It returns none if there are more than maxEdits edits.
func common(was, now []string) [][2]int {
	bound := min(len(was)+len(now), maxEdits)
	// far holds, for each diagonal at zero+diagonal, how many old lines are consumed. The
	// diagonal is the number of old lines less the number of new lines.
	zero := bound + 1
	far := make([]int, 2*zero+1)
	var steps [][]int // far before each step, diagonals -step-1 to step+1
	for step := 0; step <= bound; step++ {
		steps = append(steps, slices.Clone(far[zero-step-1:zero+step+2]))
		for k := -step; k <= step; k += 2 {
			x := far[zero+k-1] + 1
			if k == -step || k != step && far[zero+k-1] < far[zero+k+1] {
				x = far[zero+k+1]
			}
			y := x - k
			for x < len(was) && y < len(now) && was[x] == now[y] {
				x++
				y++
			}
			far[zero+k] = x
			if x >= len(was) && y >= len(now) {
				return kept(steps, len(was), len(now))
			}
		}
	}
	return nil
}

// kept follows the steps back from the ends of both texts.
func kept(steps [][]int, x, y int) [][2]int {
	var out [][2]int
	for step, far := range slices.Backward(steps) {
		zero := step + 1
		k := x - y
		from := k - 1
		if k == -step || k != step && far[zero+k-1] < far[zero+k+1] {
			from = k + 1
		}
		fromX := far[zero+from]
		for x > fromX && y > fromX-from {
			x--
			y--
			out = append(out, [2]int{x, y})
		}
		x, y = fromX, fromX-from
	}
	slices.Reverse(out)
	return out
}
