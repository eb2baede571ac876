package rotate

import (
	"context"
	"fmt"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Refusal is why a step is not taken. Nothing has been changed.
type Refusal struct {
	Reason string
	// Until is from when on the step is safe; zero when time does not help.
	Until time.Time
	// Fix is what a person can do.
	Fix string
}

// Error tells all of it.
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

// Requirement is what has to be so before a step is taken.
type Requirement struct {
	From, To Phase
	Clusters []mesh.ClusterID
	// Written is when From was in force everywhere in the directories, Wait how
	// long it then takes until proxies that know nothing of it are gone.
	Written time.Time
	Wait    time.Duration
	// InForce is from when on every control plane works with From: what proxies
	// got since, they got with its trust bundle.
	InForce time.Time
	// Trusted is the SHA-256 of the root that every proxy has to trust; empty
	// when it does not matter.
	Trusted string
	// Gone is the SHA-256 of the root below which no proxy may have its
	// certificate; empty when it does not matter. GoneSigners are the SHA-256 of
	// the CAs below it that signed for the clusters.
	Gone        string
	GoneSigners []string
}

// Gate says whether what a step requires is so: nil, or the reason why not.
// Several gates are asked one after the other until one refuses; the one of time
// is Waited.
type Gate func(ctx context.Context, r Requirement) error

// Waited is the gate that knows nothing but the time.
func Waited(now func() time.Time) Gate {
	return func(_ context.Context, r Requirement) error {
		safe := r.Written.Add(r.Wait)
		if !now().Before(safe) {
			return nil
		}
		reason := "proxies may still have trust bundles without the new root"
		if r.Gone != "" {
			reason = "proxies may still have certificates of the root that is to be dropped"
		}
		return &Refusal{Reason: reason, Until: wholeSecond(safe)}
	}
}

// decide returns the phase that an action leads to. Where the answer is the
// phase that the state has, that phase is to be completed.
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
	case Finished, Aborted: // have no state that is not pending
	}
	return "", fmt.Errorf("there is no %s in phase %s", a, s.Phase)
}

// decidePending is decide for a step that was interrupted.
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

// undoTrust is where abort leads as long as the new root has signed nothing.
// Where a directory was changed by hand, it may have.
func (s *State) undoTrust() Phase {
	if s.Restored {
		return Back
	}
	return Aborted
}

// requirement is what the step from the state to a phase waits for; it is
// false when the step is safe at any time.
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

// requirement is what the step to a phase waits for, as State.requirement has it,
// with the signers.
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

// move returns the state in which the phase is being written.
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
