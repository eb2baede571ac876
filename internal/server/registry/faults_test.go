package registry

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestFaultsAreLogged: a fact that cannot be computed keeps its value, and the log names it
// once.
func TestFaultsAreLogged(t *testing.T) {
	b := newTestState(t)
	var log bytes.Buffer
	b.s.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	p := pod("c1", "hello-1", "10.1.0.1")
	b.apply(up(service("c1", "hello")), up(p), up(slice("c1", "hello", "hello-1", p)))
	w := &snapshot.WorkloadEntry{Pod: snapshot.Pod{Meta: meta("c1", "sample", "vm", "app", "hello")}} // no source delivers one without an address
	b.apply(up(w))
	b.apply(up(slice("c1", "hello", "hello-2", p))) // computes it again
	if eps := b.snap.Endpoints.Get(host); eps == nil || len(eps.ByPort["http"]) != 1 {
		t.Errorf("got %+v, want the endpoint from before", eps)
	}
	if faults := b.s.report.faults; len(faults) != 1 || !strings.Contains(faults[0].String(), host) {
		t.Errorf("reported %v, want one that names %s", faults, host)
	}
	if n := strings.Count(log.String(), "the last good value of a fact stays"); n != 1 || !strings.Contains(log.String(), "key="+host) {
		t.Errorf("got %d lines, want one that names %s:\n%s", n, host, &log)
	}
}
