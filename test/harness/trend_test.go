package harness

import (
	"math/rand/v2"
	"testing"
)

// TestSteady: noise and one step are steady, a slow growth below the noise is not.
func TestSteady(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	series := func(growth float64) []float64 {
		out := make([]float64, 300)
		for i := range out {
			out[i] = 1000 + 100*r.NormFloat64() + growth*float64(i)
		}
		return out
	}
	for range 100 {
		if err := Steady(series(0), 0.05, 0); err != nil {
			t.Error(err)
		}
		if err := Steady(series(0.5), 0.05, 0); err == nil {
			t.Error("a growth by 15 % is not found")
		}
		if err := Steady(series(0.5), 0.05, 1000); err != nil {
			t.Error(err)
		}
	}
	if err := Steady(make([]float64, 300), 0, 0); err != nil {
		t.Error(err)
	}
	if err := Steady([]float64{1, 2, 3}, 0, 0); err != nil {
		t.Error("three samples have no trend")
	}
}
