package admission

import (
	"math"
	"runtime/debug"
	"testing"
)

// TestMemoryUse: memory counts against GOMEMLIMIT only.
func TestMemoryUse(t *testing.T) {
	if use := MemoryUse(); use != 0 {
		t.Skip("GOMEMLIMIT is set")
	}
	before := limitMemory(t, math.MaxInt64-1)
	if before <= 0 || before > 0.01 {
		t.Errorf("got %v of a huge limit, want a little", before)
	}
	if use := limitMemory(t, 1); use < 1 {
		t.Errorf("got %v of a limit of one byte, want at least 1", use)
	}
}

// limitMemory returns the use under a limit.
func limitMemory(t *testing.T, limit int64) float64 {
	t.Helper()
	old := debug.SetMemoryLimit(limit)
	defer debug.SetMemoryLimit(old)
	return MemoryUse()
}
