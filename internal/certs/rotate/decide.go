package rotate

import (
	"context"
	"fmt"
	"time"

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
	if s.pending() {
		return decidePending(s, a)
	}
	switch s.Phase {
	case Trust:
		switch a {
		case Next:
			return Sign, nil
		case Abort:
			return s.undoTrust(), nil
		case Finish:
			return "", refuse("take the step with next first", "the new root does not sign yet, so the old one cannot be dropped")
		}
	case Sign:
		switch a {
		case Next:
			return "", refuse("it is taken with finish and cannot be undone", "the only step left drops the old root")
		case Abort:
			return Back, nil
		case Finish:
			return Finished, nil
		}
	case Back:
		switch a {
		case Next, Abort:
			return Aborted, nil
		case Finish:
			return "", refuse("go on with abort", "the rotation is being aborted")
		}
	case Finished, Aborted: // always pending, see decode
	}
	return "", fmt.Errorf("there is no %s in phase %s", a, s.Phase)
}

// decidePending is decide after an interrupted step.
func decidePending(s *State, a Action) (Phase, error) {
	switch {
	case a == Abort && s.Phase == Trust:
		return s.undoTrust(), nil
	case a == Abort && s.Phase == Sign:
		return Back, nil
	case a == Abort && s.Phase == Finished:
		return "", refuse("complete it with finish", "the old root is being dropped, which cannot be undone")
	case a == Finish && s.Phase != Finished:
		fix := "complete it with next"
		if s.Phase == Back || s.Phase == Aborted {
			fix = "complete it with abort"
		}
		return "", refuse(fix, "the step %q was interrupted", s.Phase)
	}
	return s.Phase, nil
}

// undoTrust returns the phase that abort leads to from Trust. The new root has signed
// nothing yet, unless a directory was changed by hand.
func (s *State) undoTrust() Phase {
	if s.Restored {
		return Back
	}
	return Aborted
}

// requirement returns the requirement of the step to a phase. It returns false if the
// step is safe at any time.
func (s *State) requirement(to Phase) (Requirement, bool) {
	r := Requirement{From: s.Phase, To: to, Clusters: s.Clusters, Written: s.Written, Wait: s.Wait(), InForce: s.Written.Add(time.Duration(s.Propagation))}
	switch {
	case s.pending():
		return r, false // it waited before it began
	case s.Phase == Trust && to == Sign:
		r.Trusted = s.NewRoot
	case s.Phase == Sign && to == Finished:
		r.Trusted, r.Gone = s.NewRoot, s.OldRoot
	case s.Phase == Back && to == Aborted:
		r.Trusted, r.Gone = s.OldRoot, s.NewRoot
	default:
		return r, false
	}
	return r, true
}

// requirement is State.requirement with GoneSigners.
func (r *rotation) requirement(to Phase) (Requirement, bool) {
	out, needed := r.state.requirement(to)
	for _, c := range r.clusters {
		set := c.old
		if out.Gone == r.state.NewRoot {
			set = c.fresh
		}
		if out.Gone != "" {
			out.GoneSigners = append(out.GoneSigners, signerOf(set)...)
		}
	}
	return out, needed
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
