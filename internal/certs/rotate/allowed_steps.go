package rotate

import (
	"context"
	"fmt"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Refusal is the error for a step that is not taken. Nothing has changed.
type Refusal struct {
	Reason string
	// Until is the time from which the step is safe, or zero if time does not help.
	Until time.Time
	Fix   string
}

// Error returns the reason, the time and the fix.
func (r *Refusal) Error() string {
	text := r.Reason
	if !r.Until.IsZero() {
		text += "; it is safe from " + r.Until.UTC().Format(time.RFC3339)
	}
	if r.Fix != "" {
		text += "; " + r.Fix
	}
	return text
}

func refuse(fix, format string, args ...any) error {
	return &Refusal{Reason: fmt.Sprintf(format, args...), Fix: fix}
}

// Requirement is the condition of a step.
type Requirement struct {
	From, To Phase
	Clusters []mesh.ClusterID
	// Written is the time when all directories had phase From, Wait the time until
	// all certificates and bundles of earlier phases are gone.
	Written time.Time
	Wait    time.Duration
	// InForce is the time from which every control plane uses From: proxies that
	// renewed later have its trust bundle.
	InForce time.Time
	// Trusted is the SHA-256 of the root that every proxy must trust, if any.
	Trusted string
	// Gone is the SHA-256 of the root that no proxy may have a certificate of, if any.
	// GoneSigners are the SHA-256 of the clusters' CAs below it.
	Gone        string
	GoneSigners []string
}

// Gate returns an error if a requirement is not met. All gates must pass.
type Gate func(ctx context.Context, r Requirement) error

// Waited returns a gate that waits for the time alone.
func Waited(now func() time.Time) Gate {
	return func(_ context.Context, r Requirement) error {
		safe := r.Written.Add(r.Wait)
		if !now().Before(safe) {
			return nil
		}
		reason := "proxies may still have trust bundles without the new root"
		if r.Gone != "" {
			reason = "proxies may still have certificates of the root to be dropped"
		}
		return &Refusal{Reason: reason, Until: wholeSecond(safe)}
	}
}

// decide returns the phase that an action leads to. If it is the current phase, that
// phase must be completed.
func decide(s *State, a Action) (Phase, error) {
	switch {
	case a == Abort && s.Phase == Trust && !s.Restored:
		return Aborted, nil // the new root has signed nothing yet
	case a == Abort && (s.Phase == Trust || s.Phase == Sign):
		return Back, nil
	case a == Abort && s.Phase == Finished:
		return "", refuse("complete it with finish", "the old root is being dropped, which cannot be undone")
	case a == Finish && s.Phase != Finished && s.pending():
		return "", refuse("complete it with "+string(s.Command()), "the step %q was interrupted", s.Phase)
	case s.pending():
		return s.Phase, nil
	case a == Finish && s.Phase == Trust:
		return "", refuse("take the step with next first", "the new root does not sign yet, so the old one cannot be dropped")
	case a == Finish && s.Phase == Back:
		return "", refuse("go on with abort", "the rotation is being aborted")
	case a == Next && s.Phase == Sign:
		return "", refuse("it is taken with finish and cannot be undone", "the only step left drops the old root")
	case a == Next && s.Phase == Trust:
		return Sign, nil
	case a == Finish && s.Phase == Sign:
		return Finished, nil
	case s.Phase == Back && (a == Next || a == Abort):
		return Aborted, nil
	}
	return "", fmt.Errorf("there is no %s in phase %s", a, s.Phase)
}

// requirement returns the requirement of the step to a phase, or nil if the step is safe
// at any time.
func (r *rotation) requirement(to Phase) *Requirement {
	s := r.state
	out := &Requirement{From: s.Phase, To: to, Clusters: s.Clusters, Written: s.Written, Wait: s.Wait(), InForce: s.Written.Add(time.Duration(s.Propagation))}
	switch {
	case s.pending():
		return nil // it waited before it began
	case s.Phase == Trust && to == Sign:
		out.Trusted = s.NewRoot
	case s.Phase == Sign && to == Finished:
		out.Trusted, out.Gone = s.NewRoot, s.OldRoot
	case s.Phase == Back && to == Aborted:
		out.Trusted, out.Gone = s.OldRoot, s.NewRoot
	default:
		return nil
	}
	for _, c := range r.clusters {
		set := map[string][]files.File{s.OldRoot: c.old, s.NewRoot: c.fresh}[out.Gone]
		if signer, _, _ := store.FromFiles("", set).Certificates(); signer != nil {
			out.GoneSigners = append(out.GoneSigners, certs.Fingerprint(signer))
		}
	}
	return out
}

// move returns the state while the phase is being written.
func (s *State) move(to Phase) *State {
	next := *s
	if to != s.Phase {
		next.From, next.Phase = s.Phase, to
	}
	next.Written = time.Time{}
	return &next
}

// settle returns the state after the phase was written everywhere.
func (s *State) settle(now time.Time) *State {
	next := *s
	next.Written = now.UTC()
	next.History = append(append([]Event(nil), s.History...), Event{s.Phase, next.Written})
	return &next
}
