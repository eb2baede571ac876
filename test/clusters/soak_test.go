package clusters

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/test/harness"
)

var soakTime = flag.Duration("soak", 0, "how long TestSoak changes two clusters with traffic; 0 skips the test")

// soakSamples is the number of samples of a soak. The first third is the warm-up.
const soakSamples = 300

// TestSoak changes pods, routes, policies and credentials of two clusters again and again. No
// request fails, and memory, threads and file descriptors of each process of the mesh do not grow.
func TestSoak(t *testing.T) {
	if *soakTime == 0 {
		t.Skip("takes long: make e2e-soak")
	}
	u := newUser(t)
	for _, block := range blocks(t) {
		u.run(block)
	}
	u.allReplicas(t)
	loads := u.loads(t, 2)
	series, ended := map[string]*usage{}, make(chan struct{})
	ctx, end := context.WithTimeout(t.Context(), *soakTime)
	defer end()
	go func() {
		defer close(ended)
		tick := time.NewTicker(*soakTime / soakSamples)
		defer tick.Stop()
		for taken := 0; ; taken++ {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			if taken >= soakSamples/3 {
				u.usageOf(series)
			}
		}
	}()
	rounds := 0
	for ; ctx.Err() == nil; rounds++ {
		u.soakRound(t, rounds)
	}
	<-ended
	t.Logf("%d rounds of changes in %s", rounds, *soakTime)
	moreOfBoth(loads)
	stop(loads)
	for _, name := range slices.Sorted(maps.Keys(series)) {
		s := series[name]
		if len(s.memory) < soakSamples/3 {
			continue // a pod of a round
		}
		t.Logf("%s: %.1f MB, then %.1f MB; %.0f, then %.0f file descriptors; %.0f, then %.0f threads", name,
			s.memory[0]/1e6, s.memory[len(s.memory)-1]/1e6, s.descriptors[0], s.descriptors[len(s.descriptors)-1], s.threads[0], s.threads[len(s.threads)-1])
		for _, e := range []struct {
			of  string
			err error
		}{
			{"memory", harness.Steady(s.memory, 0.05, 2<<20)},
			{"file descriptors", harness.Steady(s.descriptors, 0, 4)},
			{"threads", harness.Steady(s.threads, 0, 2)},
		} {
			if e.err != nil {
				t.Errorf("%s of %s: %v", e.of, name, e.err)
			}
		}
	}
}

// soakRound makes some changes and waits until they have arrived.
func (u *user) soakRound(t *testing.T, n int) {
	t.Helper()
	u.scaleV1(t, 1+n%2)
	end := u.retries(t)
	u.apply(fmt.Sprintf("{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: soak, namespace: sample}, spec: {rules: [{when: [{key: source.namespace, notValues: [none-%d]}]}]}}", n))
	u.changeOfCluster2(t)
	if n%10 == 0 {
		u.run("meshctl remote-secret rotate --context cluster2 --to cluster1")
	}
	end()
}

// usage is what a process used at equal intervals.
type usage struct{ memory, descriptors, threads []float64 }

// usageOf adds a sample of each process of the mesh.
func (u *user) usageOf(series map[string]*usage) {
	for _, n := range u.clusters.Nodes {
		for _, words := range [][]string{{meshctlPath, "serve"}, {meshctlPath, "agent"}, {envoyPath}} {
			for _, pid := range u.processesOf(n, words...) {
				dir := filepath.Join("/proc", strconv.Itoa(pid))
				status, err := os.ReadFile(filepath.Join(dir, "status"))
				open, errOpen := os.ReadDir(filepath.Join(dir, "fd"))
				env, errEnv := os.ReadFile(filepath.Join(dir, "environ"))
				if err != nil || errOpen != nil || errEnv != nil {
					continue // it has ended
				}
				pod := ""
				for v := range strings.SplitSeq(string(env), "\x00") {
					if name, found := strings.CutPrefix(v, "HOSTNAME="); found {
						pod = name
					}
				}
				name := fmt.Sprintf("%s %s %s %d", n.Cluster, pod, filepath.Base(words[len(words)-1]), pid)
				s := series[name]
				if s == nil {
					s = &usage{}
					series[name] = s
				}
				s.memory = append(s.memory, 1024*field(status, "RssAnon:"))
				s.threads = append(s.threads, field(status, "Threads:"))
				s.descriptors = append(s.descriptors, float64(len(open)))
			}
		}
	}
}

// field returns a number of /proc/PID/status.
func field(status []byte, name string) float64 {
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			n, err := strconv.ParseFloat(f[1], 64)
			if err == nil {
				return n
			}
		}
	}
	return 0
}
