package clusters

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestCredentialEnds: a credential that ends soon or has expired is reported by the clock,
// without a failed request. A new credential ends the report.
func TestCredentialEnds(t *testing.T) {
	w := start(t)
	var report atomic.Pointer[Report]
	a := Access{NewSource: func() Source { return scriptedSource{serves("c2", hello("c2", "10.2.0.1")), &report} }}
	begins := w.clock()
	with := func(hash string, life time.Duration) Spec {
		s := spec("c2", hash, a)
		s.TokenBegins, s.TokenEnds = w.clock(), w.clock().Add(life)
		return s
	}
	w.Set(secret("a"), []Spec{with("1", 24*time.Hour)})
	w.until("read", w.has("10.1.0.1", "10.2.0.1"))
	w.until("synced", w.synced("c2"))
	check := func(cause, problem string, expired bool) {
		t.Helper()
		s := w.status("c2")
		if s.State != Synced || s.Cause != cause || s.CredentialProblem != problem || s.CredentialExpired != expired {
			t.Errorf("status %+v, want the problem %q", s, problem)
		}
	}
	check("", "", false)
	w.pass(18 * time.Hour)
	check("", "", false)
	w.pass(time.Minute)
	check("", "credential ends in 5 hours, at 2026-01-02T00:00:00Z", false)
	w.until("warning", func() bool { return strings.Contains(w.log.String(), "the credential of a remote cluster ends soon") })
	w.pass(begins.Add(24*time.Hour - time.Second).Sub(w.clock()))
	check("", "credential ends in less than 2 minutes, at 2026-01-02T00:00:00Z", false)
	w.pass(time.Second)
	check(CauseExpired, "credential expired at 2026-01-02T00:00:00Z", true)
	w.until("error", func() bool { return strings.Contains(w.log.String(), "the credential of a remote cluster has expired") })
	if got := w.values()["meshctl_cluster_token_expiry_timestamp cluster=c2"]; got != float64(begins.Add(24*time.Hour).Unix()) {
		t.Errorf("the metric says %v", got)
	}
	report.Store(&Report{LostSince: w.clock(), Cause: "401", Reason: "the API server refuses the credential: 401"})
	if s := w.status("c2"); s.State != Lost || s.Cause != CauseExpired || s.Reason != "credential expired at 2026-01-02T00:00:00Z; the API server refuses the credential: 401" {
		t.Errorf("status %+v", s)
	}
	report.Store(&Report{LostSince: w.clock(), Cause: "tcp", Reason: "TCP: refused"})
	if s := w.status("c2"); s.Cause != "tcp" || !s.CredentialExpired {
		t.Errorf("status %+v", s)
	}
	report.Store(&Report{})
	w.Set(secret("a"), []Spec{with("2", 365*24*time.Hour)})
	w.until("new credential", func() bool { return w.status("c2").Credential == "2" })
	check("", "", false)
	w.pass(359 * 24 * time.Hour)
	check("", "credential ends in 6 days, at 2027-01-02T00:00:00Z", false)
	if n := strings.Count(w.log.String(), "has expired"); n != 1 {
		t.Errorf("logged %d times\n%s", n, w.log)
	}
}
