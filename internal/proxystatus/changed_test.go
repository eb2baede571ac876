package proxystatus

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestChanged: only changes of state are reported.
func TestChanged(t *testing.T) {
	t.Parallel()
	before, now := sample(), sample()
	now[0].At, now[1].At = at(6000), at(6000)
	now[1].Proxies[0].Types = nil
	now[1].Proxies[1].Types[0].Lag = Lag(time.Hour)
	if d := cmp.Diff([]Report(nil), Changed(before, now)); d != "" {
		t.Errorf("times that go on are changes: %s", d)
	}
	if got := Changed(nil, before); len(got) != 2 || len(got[0].Proxies)+len(got[1].Proxies) != 5 {
		t.Errorf("the first round is not all new: %+v", got)
	}

	now[0].Proxies = now[0].Proxies[:1] // web-1 goes
	now[0].Proxies[0].Types[0].State = Stale
	now[1] = Report{Replica: "istiod-b:8080", Error: "no answer"}
	got := Changed(before, now)
	gone := before[0].Proxies[1]
	gone.Gone, gone.Types = true, nil
	want := []Report{
		{Replica: "istiod-a", At: at(6000), Proxies: []Proxy{now[0].Proxies[0], gone}},
		{Replica: "istiod-b:8080", Error: "no answer"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if again := Changed(now, now); len(again) != 0 {
		t.Errorf("a silence is told twice: %+v", again)
	}
}
