package clusters

import (
	"fmt"
	"time"
)

// endsSoon is the time before its end at which a credential is reported. It is at most a
// quarter of the credential's lifetime, as renewal is due earlier.
const endsSoon = 7 * 24 * time.Hour

// CauseExpired is the Report.Cause of an expired credential.
const CauseExpired = "expired"

// credentialPhase is a phase in the life of a credential.
type credentialPhase uint8

const (
	credentialGood credentialPhase = iota
	credentialEnding
	credentialExpired
)

// phase returns the phase of the credential by the clock, and a text if it is not good.
// Watches go on for minutes after the end of the credential, so requests would report
// the end late.
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

// roughly returns a duration in the largest unit of which it has at least two.
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

// withCredential adds the phase of the credential.
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

// logCredential logs once that the credential in use ends soon or has expired.
func (m *Manager) logCredential(c *cluster) {
	if c.reader == nil {
		return
	}
	reg := c.reader.registration
	phase, text := reg.spec.phase(m.cfg.Now())
	now := loggedCredential{reg.spec.Hash, phase}
	if now == c.loggedCredential {
		return
	}
	c.loggedCredential = now
	const fix = "meshctl remote-secret rotate"
	switch phase {
	case credentialGood:
	case credentialEnding:
		m.cfg.Log.Warn("the credential of a remote cluster ends soon", "cluster", c.id, "secret", reg.origin.Name, "reason", text, "fix", fix)
	case credentialExpired:
		m.cfg.Log.Error("the credential of a remote cluster has expired", "cluster", c.id, "secret", reg.origin.Name, "reason", text, "fix", fix)
	}
}

// loggedCredential is the last logged phase of a credential.
type loggedCredential struct {
	hash  string
	phase credentialPhase
}
