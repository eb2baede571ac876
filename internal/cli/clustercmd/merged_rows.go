package clustercmd

import (
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/output"
)

// mergeRows merges the rows of replicas that differ only in the cells of the replica and
// of ages. The first row stays and names all replicas.
func mergeRows(table *output.Table, replica string, ages ...string) {
	at := slices.Index(table.Header, replica)
	if at < 0 {
		return
	}
	var rows [][]string
	for _, row := range table.Rows {
		same := slices.IndexFunc(rows, func(other []string) bool {
			for i, cell := range row {
				if i != at && !slices.Contains(ages, table.Header[i]) && cell != other[i] {
					return false
				}
			}
			return true
		})
		switch {
		case same < 0:
			rows = append(rows, slices.Clone(row))
		case !slices.Contains(strings.Split(rows[same][at], ", "), row[at]):
			rows[same][at] += ", " + row[at]
		}
	}
	table.Rows = rows
}

// replicaLine is a line of the answer of a replica.
type replicaLine struct{ replica, text string }

// mergeLines returns each text once, with the replicas that have it.
func mergeLines(lines []replicaLine) []string {
	var texts []string
	replicas := make(map[string][]string)
	for _, l := range lines {
		if !slices.Contains(texts, l.text) {
			texts = append(texts, l.text)
		}
		if !slices.Contains(replicas[l.text], l.replica) {
			replicas[l.text] = append(replicas[l.text], l.replica)
		}
	}
	out := make([]string, len(texts))
	for i, text := range texts {
		out[i] = strings.Join(replicas[text], ", ") + ": " + text
	}
	return out
}

// distinct returns the lines without repetitions, in their order.
func distinct(lines []string) []string {
	var out []string
	for _, l := range lines {
		if !slices.Contains(out, l) {
			out = append(out, l)
		}
	}
	return out
}
