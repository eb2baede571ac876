package clustercmd

import (
	"reflect"
	"testing"

	"github.com/meshctl/meshctl/internal/output"
)

// TestMergeRows: rows that only ages and replicas tell apart merge, others do
// not.
func TestMergeRows(t *testing.T) {
	table := &output.Table{Header: []string{"REPLICA", "NAME", "STATUS", "AGE"}, Rows: [][]string{
		{"a", "c1", "synced", "1s"},
		{"a", "c2", "synced", "1s"},
		{"a", "c2", "synced", "3s"},
		{"b", "c1", "synced", "5s"},
		{"b", "c2", "lost", "5s"},
	}}
	mergeRows(table, "REPLICA", "AGE")
	want := [][]string{{"a, b", "c1", "synced", "1s"}, {"a", "c2", "synced", "1s"}, {"b", "c2", "lost", "5s"}}
	if !reflect.DeepEqual(table.Rows, want) {
		t.Errorf("rows %v, want %v", table.Rows, want)
	}
	lines := mergeLines([]replicaLine{{"a", "x"}, {"a", "y"}, {"b", "x"}})
	if want := []string{"a, b: x", "a: y"}; !reflect.DeepEqual(lines, want) {
		t.Errorf("lines %v, want %v", lines, want)
	}
}
