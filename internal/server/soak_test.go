package server

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/meshctl/meshctl/test/harness"
)

var soakTime = flag.Duration("soak", 0, "how long TestSoak changes everything, up to five hours; 0 skips the test")

// Parameters of a soak.
const (
	soakProxies  = 4 * modelRoles
	soakServices = 80
	soakWarmUp   = 10 * time.Second
	// soakPause is the mean time between two acts. About one act in eight is a tick, and ticks
	// are numbered in two bytes of an address, which last for five hours.
	soakPause = 40 * time.Millisecond
)

// TestSoak changes a mesh for a long time, in the ways of TestModel. Meanwhile goroutines, file
// descriptors and heap must not grow. Then every proxy must hold the state of the model, and
// goroutines, file descriptors and heap must be as before.
func TestSoak(t *testing.T) {
	if *soakTime == 0 {
		t.Skip("make soak runs it")
	}
	m := newModel(t, rand.Uint64(), t.TempDir(), soakProxies, soakServices)
	defer m.close()
	m.soak(soakWarmUp, func() {})
	before := usageNow(t)
	var goroutines, descriptors, heap []float64
	acts := m.soak(*soakTime, func() {
		now := usageNow(t)
		goroutines, descriptors, heap = append(goroutines, float64(now.goroutines)), append(descriptors, float64(now.descriptors)), append(heap, float64(now.heap))
	})
	if t.Failed() {
		return
	}
	for _, series := range []struct {
		name    string
		samples []float64
		least   float64 // that it may grow
	}{{"goroutines", goroutines, 8}, {"file descriptors", descriptors, 8}, {"heap", heap, 1 << 20}} {
		if err := harness.Steady(series.samples, 0.05, series.least); err != nil {
			t.Errorf("%s: %v", series.name, err)
		}
	}
	var after usage
	waitFor(t, "return of goroutines and file descriptors to their number before the soak", func() bool {
		after = usageNow(t)
		return after.goroutines <= before.goroutines+8 && after.descriptors <= before.descriptors+8
	})
	t.Logf("%d acts; before: %+v; after: %+v", acts, before, after)
	if after.heap > before.heap+before.heap/4+2<<20 {
		t.Errorf("the heap grew from %d to %d bytes", before.heap, after.heap)
	}
}

// soak changes the mesh for that long, takes samples, and returns the number of acts. At the end all
// services are there, and the proxies hold them.
func (m *model) soak(length time.Duration, sample func()) (acts int) {
	const samples = 300
	next := time.Now()
	for end := time.Now().Add(length); time.Now().Before(end) && !m.t.Failed(); acts++ {
		if !time.Now().Before(next) {
			sample()
			next = next.Add(length / samples)
		}
		m.act()
		time.Sleep(rand.N(2 * soakPause))
	}
	for i := range m.churn {
		if file := fmt.Sprintf("churn-%d", i); m.services[file] == nil {
			m.comeOrGo(file, m.anyNamespace)
		}
	}
	m.rest()
	return acts
}

// usage is what this process uses: the server and the proxies.
type usage struct {
	goroutines, descriptors int
	heap                    uint64 // bytes
}

func usageNow(t *testing.T) usage {
	t.Helper()
	descriptors, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	runtime.GC() // frees what the pools of the first collection held
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return usage{runtime.NumGoroutine(), len(descriptors), memory.HeapAlloc}
}
