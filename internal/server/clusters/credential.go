package clusters

import (
	"fmt"
	"time"
)

// endsSoon is how long before its end a credential is told of, at most: of one
// whose life is known a quarter of that, when it should have been renewed.
const endsSoon = 7 * 24 * time.Hour

// CauseExpired is the cause of what follows from a credential that has ended.
const CauseExpired = "expired"

// credentialPhase is how much longer a credential counts.
type credentialPhase uint8

const (
	credentialGood credentialPhase = iota
	credentialEnding
	credentialExpired
)

// phase is how it stands with the credential by the clock, in words when it is
// not good. Watches that began before its end go on for minutes, so no request
// may tell of that in time.
func (s *Spec) phase(now time.Time) (credentialPhase, string) {
	if s.TokenEnds.IsZero() {
		return credentialGood, ""
	}
	soon := endsSoon
	if !s.TokenBegins.IsZero() {
		soon = min(soon, s.TokenEnds.Sub(s.TokenBegins)/4)
	}
	end := s.TokenEnds.UTC().Format(time.RFC3339)
	switch left := s.TokenEnds.Sub(now); {
	case left <= 0:
		return credentialExpired, "credential expired at " + end
	case left < soon:
		return credentialEnding, fmt.Sprintf("credential ends in %s, at %s", roughly(left), end)
	}
	return credentialGood, ""
}

// roughly is a duration in the largest unit of which it has two.
func roughly(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*day:
		return fmt.Sprintf("%d days", d/day)
	case d >= 2*time.Hour:
		return fmt.Sprintf("%d hours", d/time.Hour)
	case d >= 2*time.Minute:
		return fmt.Sprintf("%d minutes", d/time.Minute)
	}
	return "less than 2 minutes"
}

// withCredential adds what the clock says of the credential.
func (s *Status) withCredential(phase credentialPhase, text string) {
	s.CredentialProblem, s.CredentialExpired = text, phase == credentialExpired
	if !s.CredentialExpired {
		return
	}
	switch s.Cause {
	case "":
		s.Cause, s.Reason = CauseExpired, text
	case "401":
		s.Cause, s.Reason = CauseExpired, text+"; "+s.Reason
	}
}

// lookAtCredential logs once that the credential in use ends soon or has ended.
func (m *Manager) logCredential(c *cluster) {
	if c.reader == nil {
		return
	}
	claim := c.reader.registration
	phase, text := claim.spec.phase(m.cfg.Now())
	now := loggedCredential{claim.spec.Hash, phase}
	if now == c.loggedCredential {
		return
	}
	c.loggedCredential = now
	const fix = "meshctl remote-secret rotate"
	switch phase {
	case credentialGood:
	case credentialEnding:
		m.cfg.Log.Warn("the credential of a remote cluster ends soon", "cluster", c.id, "secret", claim.origin.Name, "reason", text, "fix", fix)
	case credentialExpired:
		m.cfg.Log.Error("the credential of a remote cluster has expired", "cluster", c.id, "secret", claim.origin.Name, "reason", text, "fix", fix)
	}
}

// toldCredential is what was last logged of a credential.
type loggedCredential struct {
	hash  string
	phase credentialPhase
}
