// Package rotate replaces the root of a running mesh. It is a state machine in a
// directory or in Secrets. The possible next steps depend on the state file, the
// directories of the clusters and the time.
//
// Every handshake works between a proxy that is one step ahead and a proxy that is one
// step behind: the signers change only after every proxy trusts both roots, and a root
// is dropped only after its last certificate has ended. docs/certs.md explains why.
package rotate

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Phase is the present or next content of all clusters' directories.
type Phase string

// The phases.
const (
	Trust    Phase = "trust"
	Sign     Phase = "sign"
	Back     Phase = "back" // as Trust, but certificates of the new root may be in use
	Finished Phase = "finished"
	Aborted  Phase = "aborted"
)

// Describe returns the signers and the roots of the phase.
func (p Phase) Describe() string {
	return map[Phase]string{
		Trust:    "the old signers sign, both roots are trusted",
		Sign:     "the new signers sign, both roots are trusted",
		Back:     "the old signers sign again, both roots are trusted",
		Finished: "the new signers sign, only the new root is trusted",
		Aborted:  "the old signers sign, only the old root is trusted",
	}[p]
}

// Ends reports whether the phase is the last.
func (p Phase) Ends() bool { return p == Finished || p == Aborted }

// Action is a requested step.
type Action string

// The actions on a running rotation.
const (
	Next   Action = "next"
	Abort  Action = "abort"
	Finish Action = "finish"
)

// State is the content of the state file.
type State struct {
	Version int `json:"version"`
	// Phase is the phase being written, From the phase before. Written is the time
	// when all directories had the content of Phase, zero until then.
	Phase   Phase     `json:"phase"`
	From    Phase     `json:"from"`
	Written time.Time `json:"written,omitzero"`
	// LeafTTL is the longest life of workload certificates, Propagation the longest
	// time until each control plane uses a step.
	LeafTTL     Duration `json:"leafTTL"`
	Propagation Duration `json:"propagation"`
	// OldRoot and NewRoot are the SHA-256 of the roots.
	OldRoot  string           `json:"oldRoot"`
	NewRoot  string           `json:"newRoot"`
	Clusters []mesh.ClusterID `json:"clusters"`
	// Restored is set after Restore: a directory was changed by hand, so the signer of
	// recent certificates is unknown.
	Restored bool    `json:"restored,omitzero"`
	History  []Event `json:"history,omitempty"`
}

// Event is a phase that was reached.
type Event struct {
	Phase Phase     `json:"phase"`
	Time  time.Time `json:"time"`
}

// Duration is a time.Duration in the form 24h0m0s.
type Duration time.Duration

// String formats the duration for time.ParseDuration.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes the duration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses a non-negative duration.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err == nil && v < 0 {
		err = fmt.Errorf("%s is negative", v)
	}
	*d = Duration(v)
	return err
}

// Wait is the time after a step until all earlier certificates and bundles are gone.
// The last of them is made when the last control plane uses the step, and lives for
// LeafTTL.
func (s *State) Wait() time.Duration { return time.Duration(s.LeafTTL) + time.Duration(s.Propagation) }

// SafeFrom is the time from which the next step is safe, in whole seconds.
func (s *State) SafeFrom() time.Time { return wholeSecond(s.Written.Add(s.Wait())) }

// wholeSecond rounds t up to a whole second.
func wholeSecond(t time.Time) time.Time {
	if whole := t.Truncate(time.Second); whole.Equal(t) {
		return whole
	}
	return t.Truncate(time.Second).Add(time.Second)
}

// Command is the action that takes the next step, or completes an interrupted one.
func (s *State) Command() Action {
	switch {
	case s.Phase == Back, s.Phase == Aborted:
		return Abort
	case s.Phase == Finished, s.Phase == Sign && !s.pending():
		return Finish
	}
	return Next
}

// pending reports whether the phase is not completely written.
func (s *State) pending() bool { return s.Written.IsZero() }

const stateVersion = 1

func (s *State) encode() ([]byte, error) {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the state of the rotation: %w", err)
	}
	return append(data, '\n'), nil
}

// decode parses a state file.
func decode(data []byte) (*State, error) {
	var s State
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, err
	}
	phases := []Phase{Trust, Sign, Back, Finished, Aborted}
	switch {
	case s.Version != stateVersion:
		return nil, fmt.Errorf("it has version %d, this meshctl knows %d", s.Version, stateVersion)
	case !slices.Contains(phases, s.Phase) || !slices.Contains(phases, s.From):
		return nil, fmt.Errorf("it has an unknown phase: %q after %q", s.Phase, s.From)
	case s.Phase.Ends() && !s.pending():
		return nil, fmt.Errorf("it has the phase %q, which has no state", s.Phase)
	case len(s.Clusters) == 0:
		return nil, errors.New("it names no clusters")
	case s.LeafTTL < 0 || s.Propagation < 0:
		return nil, errors.New("it has a negative time")
	}
	for i, c := range s.Clusters {
		if !mesh.IsDNSLabel(string(c)) || slices.Contains(s.Clusters[:i], c) {
			return nil, fmt.Errorf("it has %q as a cluster", c)
		}
	}
	return &s, nil
}
