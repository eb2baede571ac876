package admission

import (
	"math"
	"runtime/debug"
	gometrics "runtime/metrics"
)

// MemoryUse returns the share of GOMEMLIMIT that the garbage collector cannot
// free, 0 without a limit. Garbage and free memory do not count, or a busy server
// would always look full.
func MemoryUse() float64 {
	limit := debug.SetMemoryLimit(-1) // reads it
	if limit == math.MaxInt64 {
		return 0
	}
	samples := []gometrics.Sample{
		{Name: "/memory/classes/total:bytes"},
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
	}
	gometrics.Read(samples)
	var used float64
	for i, s := range samples {
		v := float64(s.Value.Uint64())
		if i > 1 {
			v = -v
		}
		used += v
	}
	return used / float64(limit)
}
