package rotate

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Condition compares a directory with its expected content.
type Condition string

// The conditions. Only the first two allow the next step.
const (
	AsWritten Condition = "as written"
	NotYet    Condition = "not yet written" // the step was interrupted
	Changed   Condition = "changed"
	Missing   Condition = "missing"
	Broken    Condition = "broken" // as written, but invalid
	Unknown   Condition = "unknown"
)

// ClusterStatus is the status of a cluster's directory. Certificates are named by the
// first 8 bytes of their SHA-256.
type ClusterStatus struct {
	Cluster   mesh.ClusterID `json:"cluster"`
	Condition Condition      `json:"condition"`
	Signer    string         `json:"signer,omitzero"`
	Roots     []string       `json:"roots"`
	// WantSigner and WantRoots are the expected certificates.
	WantSigner string   `json:"wantSigner,omitzero"`
	WantRoots  []string `json:"wantRoots"`
	Problem    string   `json:"problem,omitzero"`
}

func (s *ClusterStatus) fine() bool { return s.Condition == AsWritten || s.Condition == NotYet }

func (s *ClusterStatus) explain() string {
	text := map[Condition]string{
		Changed: "it was changed by hand",
		Missing: "it is missing",
		Broken:  "it does not verify",
		Unknown: "it is no part of the rotation",
	}[s.Condition]
	if s.Problem != "" {
		text += ": " + s.Problem
	}
	return text
}

// clusterStatus compares the directory of a cluster with the state.
func (d *Dir) clusterStatus(state *State, c *cluster) ClusterStatus {
	s := ClusterStatus{Cluster: c.name, Condition: Changed}
	s.WantSigner, s.WantRoots = facts(c.set(state.Phase))
	dir := d.path(string(c.name))
	if err := d.storage().Stat(dir); errors.Is(err, fs.ErrNotExist) {
		s.Condition = Missing
		return s
	}
	have, err := readSet(d.storage(), dir, "")
	if err != nil {
		s.Problem = err.Error()
		return s
	}
	s.Signer, s.Roots = facts(have)
	switch {
	case equalSets(have, c.set(state.Phase)):
		s.Condition = AsWritten
	case state.pending() && equalSets(have, c.set(state.From)):
		s.Condition = NotYet
	default:
		s.Problem = difference(&s)
		return s
	}
	// Expired certificates do not matter: they are no longer in use.
	if err := unexpired(lint(d.storage(), dir, have, verify.Options{Now: d.Now()}, c.all()...)); err != nil {
		s.Condition, s.Problem = Broken, err.Error()
	}
	return s
}

func difference(s *ClusterStatus) string {
	switch {
	case s.Signer != s.WantSigner:
		return fmt.Sprintf("%s signs, not %s", s.Signer, s.WantSigner)
	case !slices.Equal(s.Roots, s.WantRoots):
		return fmt.Sprintf("its roots are %v, not %v", s.Roots, s.WantRoots)
	}
	return "the files have other bytes"
}

// unexpired removes findings about expired certificates.
func unexpired(err error) error {
	failure, ok := errors.AsType[*verify.Failure](err)
	if !ok {
		return err
	}
	return verify.Refuse(slices.DeleteFunc(slices.Clone(failure.Findings), func(f verify.Finding) bool { return f.Code == verify.Expired }))
}

// Status is the status of a rotation.
type Status struct {
	*State
	Pending bool `json:"pending"`
	// SafeFrom is the time from which the next step is safe, zero while the current
	// step is incomplete.
	SafeFrom time.Time `json:"safeFrom,omitzero"`
	// Command takes the next step.
	Command   Action          `json:"command"`
	Waits     string          `json:"waitsFor"`
	Directory []ClusterStatus `json:"directories"`
	// Requires is the requirement of the next step, nil if there is none.
	Requires *Requirement `json:"-"`
}

// Fine reports whether the directories allow the next step.
func (s *Status) Fine() bool {
	return !slices.ContainsFunc(s.Directory, func(x ClusterStatus) bool { return !x.fine() })
}

// Status returns the status of the running rotation, nil if there is none.
func (d *Dir) Status() (*Status, error) {
	r, err := d.open()
	if err != nil || r == nil {
		return nil, err
	}
	s := &Status{State: r.state, Pending: r.state.pending(), Command: r.state.Command(), Waits: r.state.waits(d.Now())}
	if !s.Pending {
		s.SafeFrom = r.state.SafeFrom()
	}
	if to, err := decide(r.state, s.Command); err == nil {
		s.Requires = r.requirement(to)
	}
	for _, c := range r.clusters {
		s.Directory = append(s.Directory, d.clusterStatus(r.state, c))
	}
	unknown, err := d.unknown(r.state)
	if err != nil {
		return nil, err
	}
	for _, name := range unknown {
		x := ClusterStatus{Cluster: name, Condition: Unknown}
		if have, err := readSet(d.storage(), d.path(string(name)), ""); err == nil {
			x.Signer, x.Roots = facts(have)
		}
		s.Directory = append(s.Directory, x)
	}
	return s, nil
}

// Nothing is Status.Waits if the next step may be taken.
const Nothing = "nothing"

// waits describes the event that the next step waits for.
func (s *State) waits(now time.Time) string {
	switch {
	case s.pending():
		return "the interrupted step to be completed"
	case !now.Before(s.Written.Add(s.Wait())):
		return Nothing
	case s.Phase == Trust:
		return "every proxy to renew its certificate, and with it get both roots"
	case s.Phase == Sign:
		return "the last certificate of the old root to end"
	}
	return "the last certificate of the new root to end"
}
