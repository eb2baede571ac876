package clusters

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/meshctl/meshctl/test/harness"
)

// totals are the results of the program load of test/clusters/app.
type totals struct {
	Requests int              `json:"requests"`
	Failed   int              `json:"failed"`
	Answers  map[string]int   `json:"answers"`
	Last     map[string]int64 `json:"last"`
	Failures []string         `json:"failures"`
	Slowest  int64            `json:"slowest"`
}

// load is a running program that requests a URL.
type load struct {
	t     *testing.T
	name  string
	stdin io.Closer
	ended chan error

	mu   sync.Mutex
	last totals
}

// load starts to request a URL in the container of a client, with a number of clients. It
// needs no API server.
func (u *user) load(t *testing.T, cluster, deployment, url string, clients int) *load {
	t.Helper()
	cmd := u.inContainer(t, cluster, deployment, "/bin/load", "-c", strconv.Itoa(clients), "http://"+url)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l := &load{t: t, name: cluster + " " + url, stdin: stdin, ended: make(chan error, 1)}
	go func() {
		var err error
		for lines := json.NewDecoder(stdout); err == nil; {
			var next totals
			if err = lines.Decode(&next); err == nil {
				l.mu.Lock()
				l.last = next
				l.mu.Unlock()
			}
		}
		if err = cmd.Wait(); err != nil {
			err = fmt.Errorf("load %s: %w: %s", l.name, err, stderr.Bytes())
		}
		l.ended <- err
	}()
	t.Cleanup(func() { _ = stdin.Close() })
	l.more(1)
	return l
}

// totals returns the results until now.
func (l *load) totals() totals {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// more waits for a number of further requests, and returns the results of these.
func (l *load) more(requests int) totals {
	l.t.Helper()
	return l.until(fmt.Sprintf("%d requests", requests), func(t totals) bool { return t.Requests >= requests })
}

// until waits until the results from now on satisfy a condition, and returns them.
func (l *load) until(what string, enough func(totals) bool) totals {
	l.t.Helper()
	before := l.totals()
	var since totals
	harness.Eventually(l.t, loadTimeout, what+" of "+l.name, func() error {
		select {
		case err := <-l.ended:
			l.t.Fatalf("load %s has ended: %v", l.name, err)
		default:
		}
		since = l.totals().minus(before)
		if !enough(since) {
			return fmt.Errorf("%+v", since)
		}
		return nil
	})
	return since
}

func (t totals) minus(o totals) totals {
	t.Requests, t.Failed, t.Answers = t.Requests-o.Requests, t.Failed-o.Failed, maps.Clone(t.Answers)
	for version, n := range o.Answers {
		t.Answers[version] -= n
	}
	return t
}

// both reports whether both versions have answered some requests.
func both(t totals) bool { return t.Answers["v1"] >= 50 && t.Answers["v2"] >= 50 }

// stop ends the load, and fails the test if a request has failed.
func (l *load) stop() totals {
	l.t.Helper()
	_ = l.stdin.Close()
	if err := <-l.ended; err != nil {
		l.t.Error(err)
	}
	r := l.totals()
	l.t.Logf("%s: %d of %d requests failed, answers %v, slowest %d ms", l.name, r.Failed, r.Requests, r.Answers, r.Slowest)
	if r.Failed > 0 {
		l.t.Errorf("%s: %d of %d requests failed:\n%s", l.name, r.Failed, r.Requests, strings.Join(r.Failures, "\n"))
	}
	return r
}

// inContainer returns a command that runs in the client's container of a Deployment of the
// namespace sample, without the help of an API server.
func (u *user) inContainer(t *testing.T, cluster, deployment string, args ...string) *exec.Cmd {
	t.Helper()
	pod := strings.TrimSpace(u.run("kubectl --context " + cluster + " get pods -n sample -l app=" + deployment +
		" --field-selector=status.phase=Running --sort-by=.metadata.creationTimestamp -o name | tail -n 1"))
	pod = strings.TrimPrefix(pod, "pod/")
	for _, pid := range u.processes("sleep") {
		env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
		if err == nil && bytes.Contains(append([]byte{0}, env...), []byte("\x00HOSTNAME="+pod+"\x00")) {
			cmd := exec.Command("nsenter", append([]string{"--target", strconv.Itoa(pid), "--net", "--mount", "--"}, args...)...)
			cmd.WaitDelay = time.Second
			return cmd
		}
	}
	t.Fatalf("%s: no process of pod %q", cluster, pod)
	return nil
}

// stats returns the statistics of the proxy of a client about helloworld that have a name.
func (u *user) stats(t *testing.T, cluster, name string) map[string]int {
	t.Helper()
	out, err := u.inContainer(t, cluster, "client", "/bin/curl", "-s", "127.0.0.1:15000/stats").Output()
	if err != nil {
		t.Fatal(err)
	}
	stats := map[string]int{}
	for line := range strings.Lines(string(out)) {
		full, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if n, err := strconv.Atoi(value); err == nil && strings.HasPrefix(full, "cluster.outbound|5000||helloworld.") && strings.HasSuffix(full, "."+name) {
			stats[full] = n
		}
	}
	if len(stats) == 0 {
		t.Fatalf("%s: no statistic %s", cluster, name)
	}
	return stats
}
