package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Sizes of a soak: small, so that everything happens often.
const (
	soakServices  = 80
	soakEndpoints = 5
	soakProxies   = 40
	soakWarmUp    = 10 * time.Second
	soakPause     = 20 * time.Millisecond // between two acts
)

// soak is a run under churn: objects come, change, break and go; proxies reconnect, refuse
// and read slowly. At the end the mesh is as at the start, and so must be the state of the
// proxies and the resource usage of the server.
type soak struct {
	*meshctl
	proxies []*soakProxy
	moved   map[int]int // version of a service's slice; absent is no service
	acts    map[string]int
}

func runSoak(ctx context.Context, o options, length time.Duration) (err error) {
	dir, err := os.MkdirTemp("", "meshctl-soak-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s := &soak{moved: make(map[int]int), acts: make(map[string]int)}
	config := filepath.Join(dir, "config")
	if err := writeMesh(config, soakServices, soakEndpoints); err != nil {
		return err
	}
	for i := range soakServices {
		s.moved[i] = 0
	}
	if s.meshctl, err = newMeshctl(o.binary, o.profiles, dir, config); err != nil {
		return err
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	for i := range soakProxies {
		p := newSoakProxy(s.plain, i)
		defer p.close()
		s.proxies = append(s.proxies, p)
	}
	if err := s.run(ctx, length); err != nil {
		return fmt.Errorf("%w\nthe end of the server's log:\n%s", err, tail(s.log.String(), 4000))
	}
	return nil
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

func (s *soak) run(ctx context.Context, length time.Duration) error {
	if err := s.churn(ctx, soakWarmUp); err != nil {
		return err
	}
	before, err := s.rest(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("after warming up: %v\n", before)
	if err := s.churn(ctx, length); err != nil {
		return err
	}
	after, err := s.rest(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("after %v:  %v\n", length, after)
	for _, act := range slices.Sorted(maps.Keys(s.acts)) {
		fmt.Printf("  %-24s %d\n", act, s.acts[act])
	}
	var all error
	check := func(what string, before, after, room float64) {
		if after > before+room {
			all = errors.Join(all, fmt.Errorf("%s grew from %.0f to %.0f", what, before, after))
		}
	}
	check("goroutines", before.goroutines, after.goroutines, 8)
	check("file descriptors", before.descriptors, after.descriptors, 8)
	check("the heap", before.heap, after.heap, before.heap/4+2e6)
	return all
}

// churn acts at random.
func (s *soak) churn(ctx context.Context, length time.Duration) error {
	for end := time.Now().Add(length); time.Now().Before(end); {
		if err := s.act(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(rand.N(2 * soakPause)):
		}
	}
	return nil
}

func (s *soak) act() error {
	i := rand.N(soakServices)
	version, exists := s.moved[i]
	switch n := rand.N(100); {
	case n < 50 && exists:
		s.acts["endpoint moved"]++
		s.moved[i] = version%200 + 1
		_, err := writeSlice(s.config, i, soakEndpoints, s.moved[i])
		return err
	case n < 60 && exists:
		s.acts["service removed"]++
		delete(s.moved, i)
		return removeService(s.config, i)
	case n < 75 && !exists:
		s.acts["service created"]++
		s.moved[i] = 0
		return writeService(s.config, i, soakEndpoints)
	case n < 80 && exists:
		// The last good version stays, so the model does not change.
		s.acts["file broken"]++
		_, err := replace(sliceFile(s.config, i), "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: [\n")
		return err
	case n < 95:
		s.acts["proxy came back"]++
		s.proxies[rand.N(len(s.proxies))].kick()
	default:
		s.acts["proxy refuses or dawdles"]++
		s.proxies[rand.N(len(s.proxies))].misbehave()
	}
	return nil
}

// resting is the resource usage of an idle server.
type resting struct{ goroutines, descriptors, heap float64 }

func (r resting) String() string {
	return fmt.Sprintf("%.0f goroutines, %.0f file descriptors, heap %s", r.goroutines, r.descriptors, show(r.heap, "bytes"))
}

// rest restores the mesh of the start, waits until every proxy has it and returns the usage
// of the server.
func (s *soak) rest(ctx context.Context) (resting, error) {
	for i := range soakServices {
		s.moved[i] = 0
		if err := writeService(s.config, i, soakEndpoints); err != nil {
			return resting{}, err
		}
	}
	for _, p := range s.proxies {
		p.behave()
	}
	if err := s.converge(ctx); err != nil {
		return resting{}, err
	}
	if _, err := s.settled(ctx); err != nil {
		return resting{}, err
	}
	return s.afterGC(ctx)
}

// afterGC reads the metrics, which makes garbage, until the garbage collector has run twice.
func (s *soak) afterGC(ctx context.Context) (resting, error) {
	var r resting
	first, seen := -1.0, 0.0
	for ctx.Err() == nil {
		m, err := s.counters()
		if err != nil {
			return r, err
		}
		runs := m["go_gc_duration_seconds_count"]
		if first < 0 {
			first, seen = runs, runs
		}
		if runs > seen {
			seen = runs
			r = resting{m["go_goroutines"], m["process_open_fds"], m["go_memstats_heap_alloc_bytes"]}
			if runs >= first+2 {
				return r, nil
			}
		}
	}
	return r, ctx.Err()
}

// converge waits until every proxy has the state of the model.
func (s *soak) converge(ctx context.Context) error {
	want := s.model()
	deadline := time.Now().Add(patience)
	for {
		var wrong error
		for _, p := range s.proxies {
			if err := p.compare(want); err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("proxy %d: %w", p.number, err))
			}
		}
		if wrong == nil {
			return s.sameBytes()
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %v: %w", patience, wrong)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// model returns the addresses of each cluster.
func (s *soak) model() map[string]string {
	want := make(map[string]string)
	for i, version := range s.moved {
		var all []string
		for e := range soakEndpoints {
			last := e
			if e == soakEndpoints-1 {
				last += version
			}
			all = append(all, fmt.Sprintf("10.%d.%d.%d:8080", 1+i/250, i%250, last+1))
		}
		slices.Sort(all)
		want[clusterName(i)] = strings.Join(all, " ")
	}
	return want
}

// sameBytes compares proxies of one namespace, which receive equal resources.
func (s *soak) sameBytes() error {
	for i, p := range s.proxies {
		if i < 10 {
			continue
		}
		if err := p.equal(s.proxies[i%10]); err != nil {
			return fmt.Errorf("proxies %d and %d: %w", i, i%10, err)
		}
	}
	return nil
}
