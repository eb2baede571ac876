package history

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

func at(seconds int) time.Time { return time.Unix(1_700_000_000+int64(seconds), 0) }

func service(name string) snapshot.Cause {
	return snapshot.Cause{
		Key:   snapshot.Key{Kind: snapshot.KindService, Cluster: "c1", Namespace: "ns", Name: name},
		Place: snapshot.Place{File: "a.yaml", Line: 3},
	}
}

func TestHistory(t *testing.T) {
	r := New()
	gone := service("b")
	gone.Place, gone.Gone = snapshot.Place{}, true
	round := &Round{
		Snapshot: 7, Causes: []snapshot.Cause{service("a"), gone}, Events: 5,
		Arrived: at(1), Started: at(2), Generated: at(3), Resources: 4,
	}
	r.Publish(round)
	info := Info{Stream: "p.ns-1", Proxy: "p.ns", Variant: "delta", Connected: at(0)}
	s := r.Open(info)
	first := s.Send(SentResponse{Type: "CDS", Version: 0xab, Why: Change, Round: round, Resources: 2, Removed: 1, Bytes: 100, Queued: at(3), At: at(4)})
	second := s.Send(SentResponse{Type: "EDS", Why: Request, Bytes: 7, At: at(5)})
	third := s.Send(SentResponse{Type: "LDS", Why: Repair, At: at(6)})
	s.Written(first, at(5))
	s.ACK(first, at(9))
	s.NACK(second, at(8), "no good", []string{"x"})
	s.Written(second, at(9)) // Written comes after the answer

	change := &Publication{
		Snapshot: 7, Events: 5, Arrived: at(1), Started: at(2), Generated: at(3), LastAnswer: at(9),
		Resources: 4, Pushes: 1, ACKs: 1, Bytes: 100,
		Causes: []Cause{
			{Kind: "Service", Cluster: "c1", Namespace: "ns", Name: "a", Place: "a.yaml:3"},
			{Kind: "Service", Cluster: "c1", Namespace: "ns", Name: "b", Gone: true},
		},
	}
	want := []History{{Info: info, Pushes: []Push{
		{
			Number: first, Type: "CDS", Version: "00000000000000ab", Why: "change", Change: change,
			Queued: at(3), Sent: at(4), Written: at(5), Answered: at(9), Answer: "ACK", Resources: 2, Removed: 1, Bytes: 100,
		},
		{
			Number: second, Type: "EDS", Version: "0000000000000000", Why: "request", Sent: at(5), Written: at(8), Answered: at(8),
			Answer: "NACK", Error: "no good", Refused: []string{"x"}, Bytes: 7,
		},
		{Number: third, Type: "LDS", Version: "0000000000000000", Why: "repair", Sent: at(6)},
	}}}
	if d := cmp.Diff(want, r.History("p.ns")); d != "" {
		t.Errorf("history (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]Publication{*change}, r.Timeline()); d != "" {
		t.Errorf("timeline (-want +got):\n%s", d)
	}
	nacks := []NACK{{Stream: "p.ns-1", Number: second, Type: "EDS", Version: "0000000000000000", At: at(8), Resources: []string{"x"}, Error: "no good"}}
	if d := cmp.Diff(nacks, r.NACKs()); d != "" {
		t.Errorf("nacks (-want +got):\n%s", d)
	}
	s.Close(at(20))
	if got := r.History("p.ns-1"); len(got) != 1 || !got[0].Ended.Equal(at(20)) || len(got[0].Pushes) != 3 {
		t.Errorf("history of the ended stream: %+v", got)
	}
	if got := r.History("p"); got != nil {
		t.Errorf("history of an unknown name: %+v", got)
	}
}

// TestBounds: The recorder keeps its bounds and the newest records.
func TestBounds(t *testing.T) {
	r := New()
	for i := range uint64(3 * maxRounds) {
		r.Publish(&Round{Snapshot: i})
	}
	if line := r.Timeline(); len(line) != maxRounds || line[maxRounds-1].Snapshot != 3*maxRounds-1 {
		t.Errorf("%d rounds, the last %d", len(line), line[len(line)-1].Snapshot)
	}
	s := r.Open(Info{Stream: "p-0", Proxy: "p"})
	first := s.Send(SentResponse{})
	for range 3 * maxPushes {
		n := s.Send(SentResponse{})
		s.ACK(n, at(1))
	}
	s.ACK(first, at(2)) // no longer in the history: changes nothing
	s.NACK(first, at(2), "no", nil)
	s.ACK(1<<40, at(2)) // never sent
	h := r.History("p")[0]
	if len(h.Pushes) != maxPushes || h.Forgotten != 2*maxPushes+1 || h.Pushes[0].Number != h.Forgotten || h.Pushes[maxPushes-1].Number != 3*maxPushes {
		t.Errorf("%d pushes kept, %d forgotten", len(h.Pushes), h.Forgotten)
	}
	for _, p := range h.Pushes {
		if p.Answer != "ACK" || !p.Answered.Equal(at(1)) {
			t.Errorf("push %d: %+v", p.Number, p)
		}
	}
	for i := range 3 * maxEnded {
		r.Open(Info{Stream: fmt.Sprint("q-", i), Proxy: fmt.Sprint("q-", i)}).Close(at(1))
	}
	if n := len(r.Streams()); n != maxEnded+1 {
		t.Errorf("%d streams are remembered, want %d", n, maxEnded+1)
	}
}

// TestFlappingProxy: A proxy reconnects again and again. The records of other proxies
// stay, and so do its newest ones.
func TestFlappingProxy(t *testing.T) {
	r := New()
	quiet := r.Open(Info{Stream: "quiet-0", Proxy: "quiet"})
	quiet.NACK(quiet.Send(SentResponse{}), at(1), "no", nil)
	quiet.Close(at(1))
	for i := range 3 * maxEnded {
		s := r.Open(Info{Stream: fmt.Sprintf("flapping-%03d", i), Proxy: "flapping"})
		s.NACK(s.Send(SentResponse{}), at(2), "no", nil)
		s.Close(at(2))
	}
	if h := r.History("quiet"); len(h) != 1 {
		t.Errorf("%d streams of the quiet proxy are remembered, want 1", len(h))
	}
	if n := len(r.NACKs()); n != maxEndedProxy+1 {
		t.Errorf("%d NACKs are remembered, want %d", n, maxEndedProxy+1)
	}
	h := r.History("flapping")
	if newest := fmt.Sprintf("flapping-%03d", 3*maxEnded-1); len(h) != maxEndedProxy || h[maxEndedProxy-1].Stream != newest {
		t.Errorf("%d streams of the flapping proxy are remembered, want %d up to %s", len(h), maxEndedProxy, newest)
	}
}

// TestConcurrentUse gives the race detector something to watch.
func TestConcurrentUse(t *testing.T) {
	r := New()
	round := &Round{}
	r.Publish(round)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			s := r.Open(Info{Stream: fmt.Sprint(i), Proxy: "p"})
			for j := range 100 {
				n := s.Send(SentResponse{Round: round})
				s.Written(n, at(j))
				s.ACK(n, at(j))
			}
			s.Close(at(1))
		})
		wg.Go(func() {
			for range 20 {
				r.History("p")
				r.Timeline()
				r.NACKs()
				r.Streams()
			}
		})
	}
	wg.Wait()
	if p := r.Timeline()[0]; p.Pushes != 400 || p.ACKs != 400 || !p.LastAnswer.Equal(at(99)) {
		t.Errorf("counted %+v", p)
	}
}

// TestPushAllocatesNothing: a push allocates nothing once the ring is full.
func TestPushAllocatesNothing(t *testing.T) {
	s := New().Open(Info{})
	round := &Round{}
	push := func() {
		n := s.Send(SentResponse{Type: "CDS", Round: round, First: round, At: at(1)})
		s.Written(n, at(1))
		s.ACK(n, at(2))
	}
	for range maxPushes {
		push()
	}
	if n := testing.AllocsPerRun(100, push); n != 0 {
		t.Errorf("a push allocates %v times", n)
	}
}

func BenchmarkPush(b *testing.B) {
	s := New().Open(Info{})
	round := &Round{}
	b.ReportAllocs()
	for b.Loop() {
		n := s.Send(SentResponse{Type: "CDS", Round: round, At: at(1)})
		s.Written(n, at(1))
		s.ACK(n, at(2))
	}
}
