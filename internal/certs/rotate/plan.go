package rotate

import (
	"fmt"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
)

// Plan lists the steps of a rotation.
type Plan struct {
	// Phase is the phase of the running rotation. If it is empty, the plan is for a
	// rotation that starts now.
	Phase       Phase    `json:"phase,omitzero"`
	Clusters    []string `json:"clusters"`
	OldRoot     string   `json:"oldRoot"`
	NewRoot     string   `json:"newRoot,omitzero"`
	LeafTTL     Duration `json:"leafTTL"`
	Propagation Duration `json:"propagation"`
	Steps       []Step   `json:"steps"`
	Notes       []string `json:"notes"`
}

// Step is one step of a plan.
type Step struct {
	Command string `json:"command"`
	Phase   Phase  `json:"phase"`
	// Taken is the time of a past step, NotBefore the earliest time of a later one.
	Taken     time.Time `json:"taken,omitzero"`
	NotBefore time.Time `json:"notBefore,omitzero"`
	Does      string    `json:"does"`
	Writes    []string  `json:"writes"`
	Why       string    `json:"why"`
	Undo      string    `json:"undo"`
}

// Plan returns the plan of the running rotation, or of the rotation that Start would
// begin with these options. It changes nothing.
func (d *Dir) Plan(o StartOptions) (*Plan, error) {
	r, err := d.open()
	if err != nil {
		return nil, err
	}
	if r == nil {
		return d.planStart(o)
	}
	return d.plan(r.state), nil
}

func (d *Dir) plan(s *State) *Plan {
	p := &Plan{
		Phase: s.Phase, OldRoot: s.OldRoot, NewRoot: s.NewRoot,
		LeafTTL: s.LeafTTL, Propagation: s.Propagation, Steps: d.steps(s),
	}
	for _, c := range s.Clusters {
		p.Clusters = append(p.Clusters, string(c))
	}
	return p
}

func (d *Dir) planStart(o StartOptions) (*Plan, error) {
	root, clusters, err := d.survey(o)
	if err != nil {
		return nil, err
	}
	if _, err := complete(o.Root, root); err != nil {
		return nil, err
	}
	s := &State{OldRoot: certs.Fingerprint(root), LeafTTL: Duration(o.LeafTTL), Propagation: Duration(o.Propagation)}
	for _, c := range clusters {
		s.Clusters = append(s.Clusters, c.name)
	}
	p := d.plan(s)
	end := p.Steps[len(p.Steps)-1].NotBefore
	if root.NotAfter.Before(end) {
		p.Notes = append(p.Notes, fmt.Sprintf("the old root ends at %s, before the rotation can: workloads lose each other then", stamp(root.NotAfter)))
	}
	signs := p.Steps[1].NotBefore
	for _, c := range clusters {
		if until := c.authority.Cert.NotAfter; until.Before(signs) {
			p.Notes = append(p.Notes, fmt.Sprintf("what signs for %s ends at %s, before the new signer can sign", c.name, stamp(until)))
		}
		if crl := d.path(string(c.name), store.CRLFile); d.storage().Stat(crl) == nil {
			p.Notes = append(p.Notes, fmt.Sprintf("%s has to hold lists of the new CAs, too, before next: after start, certs crl makes them, and after finish certs crl --drop-unknown takes out those of the old CAs", d.storage().Place(crl)))
		}
	}
	return p, nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// steps returns the steps of the rotation, the past ones included.
func (d *Dir) steps(s *State) []Step {
	var dirs []string
	for _, c := range s.Clusters {
		dirs = append(dirs, d.place(string(c)))
	}
	later := "abort, then abort again after " + s.Wait().String()
	steps := map[Phase]Step{
		Trust: {
			Command: "start", Writes: append([]string{d.place(keepDir)}, dirs...),
			Does: "makes the new root and signers; " + Trust.Describe(),
			Why:  "safe at any time: no proxy has a certificate of the new root yet",
			Undo: "abort, at once",
		},
		Sign: {
			Command: "next", Writes: dirs, Does: Sign.Describe(), Undo: later,
			Why: "every proxy has renewed its certificate since, and so got both roots",
		},
		Finished: {
			Command: "finish", Writes: append(dirs, d.place(store.RootCertFile), d.place(store.RootKeyFile)),
			Does: "drops the old root: the new one alone is trusted",
			Why:  "no certificate of the old root is still valid",
			Undo: "no",
		},
		Back: {
			Command: "abort", Writes: dirs, Does: Back.Describe(),
			Why:  "safe at any time: everybody trusts the old root",
			Undo: "no: start again after it has ended",
		},
		Aborted: {
			Command: "abort", Writes: dirs,
			Does: "drops the new root: the old one alone is trusted",
			Why:  "no certificate of the new root is still valid",
			Undo: "no",
		},
	}
	way := []Phase{Trust, Sign, Finished}
	switch {
	case s.Phase == Aborted && s.From != Back:
		way = []Phase{Trust, Aborted}
	case s.Phase == Back && s.From != Sign && s.when(Sign).IsZero():
		way = []Phase{Trust, Back, Aborted}
	case s.Phase == Back, s.Phase == Aborted:
		way = []Phase{Trust, Sign, Back, Aborted}
	}
	var out []Step
	at := d.Now().UTC()
	for i, p := range way {
		step := steps[p]
		step.Phase = p
		if p == Trust && s.Restored {
			step.Undo = later
		}
		begun := s.pending() && s.Phase == p
		signedNothing := p == Aborted && way[i-1] == Trust
		if t := s.when(p); !t.IsZero() && !begun {
			step.Taken, at = t, t
		} else {
			if i > 0 && p != Back && !begun && !signedNothing {
				at = at.Add(s.Wait())
			}
			step.NotBefore = wholeSecond(at)
		}
		out = append(out, step)
	}
	return out
}

// when returns the time when a phase was last reached, or zero.
func (s *State) when(p Phase) (t time.Time) {
	for _, e := range s.History {
		if e.Phase == p {
			t = e.Time
		}
	}
	return t
}
