package harness

import (
	"fmt"
	"math"
	"slices"
)

// Steady returns an error if samples of a quantity, taken at equal intervals, grow: the test of Mann
// and Kendall finds a trend that one of a thousand series without a trend has, and by the median
// slope between samples (Theil and Sen) the quantity grew by more than a share of its median, and by
// more than least.
func Steady(samples []float64, share, least float64) error {
	slope, p := trend(samples)
	grown, median := slope*float64(len(samples)), medianOf(slices.Clone(samples))
	if p < 0.001 && grown > max(share*median, least) {
		return fmt.Errorf("grows by %.4g in %d samples, of a median of %.4g (p = %.2g)", grown, len(samples), median, p)
	}
	return nil
}

// trend returns the median slope between samples, and the probability that samples without a trend
// grow as much.
func trend(samples []float64) (slope, p float64) {
	n := len(samples)
	if n < 10 {
		return 0, 1
	}
	var slopes []float64
	ties := map[float64]int{}
	score := 0.0
	for i, a := range samples {
		ties[a]++
		for j := i + 1; j < n; j++ {
			d := samples[j] - a
			slopes = append(slopes, d/float64(j-i))
			switch {
			case d > 0:
				score++
			case d < 0:
				score--
			}
		}
	}
	of := func(n int) float64 { return float64(n * (n - 1) * (2*n + 5)) }
	variance := of(n)
	for _, n := range ties {
		variance -= of(n)
	}
	if score <= 0 || variance <= 0 {
		return medianOf(slopes), 1
	}
	z := (score - 1) / math.Sqrt(variance/18)
	return medianOf(slopes), math.Erfc(z/math.Sqrt2) / 2
}

// medianOf returns the median of a list, and sorts it.
func medianOf(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}
