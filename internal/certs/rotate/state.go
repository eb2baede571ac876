// Package rotate replaces the root of a mesh while the mesh works. It is a
// state machine that is kept in a directory: what may be done next depends on
// the state file, on what is in the directories of the clusters, and on the
// time that has passed.
//
// The order makes every handshake work between a proxy that is a step ahead and
// one that is a step behind: what signs changes only once everybody trusts both
// roots, and a root is dropped only once nobody shows a certificate of it. See
// docs/certs.md for the reasons.
package rotate

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Phase is how the directories of all clusters are, or are about to be.
type Phase string

// The phases.
const (
	// Trust: the old signers sign, both roots are trusted.
	Trust Phase = "trust"
	// Sign: the new signers sign, both roots are trusted.
	Sign Phase = "sign"
	// Back: as Trust, but certificates of the new root may be in use.
	Back Phase = "back"
	// Finished: the new signers sign, the new root alone is trusted.
	Finished Phase = "finished"
	// Aborted: the old signers sign, the old root alone is trusted.
	Aborted Phase = "aborted"
)

// ends reports whether nothing comes after the phase.
func (p Phase) ends() bool { return p == Finished || p == Aborted }

// Action is what a person asks for.
type Action string

// The actions on a rotation that is under way.
const (
	Next   Action = "next"
	Abort  Action = "abort"
	Finish Action = "finish"
)

// State is what the state file holds.
type State struct {
	Version int `json:"version"`
	// Phase is what is written, From what was there before. Written is when
	// all directories were as Phase has them; zero while they are not.
	Phase   Phase     `json:"phase"`
	From    Phase     `json:"from"`
	Written time.Time `json:"written,omitzero"`
	// LeafTTL is how long certificates of workloads live at most, Propagation
	// how long after a step each control plane works with it.
	LeafTTL     Duration `json:"leafTTL"`
	Propagation Duration `json:"propagation"`
	// OldRoot and NewRoot are the SHA-256 of the roots.
	OldRoot  string           `json:"oldRoot"`
	NewRoot  string           `json:"newRoot"`
	Clusters []mesh.ClusterID `json:"clusters"`
	// Restored says that a directory had been changed by hand, so nobody knows
	// what was signed meanwhile.
	Restored bool    `json:"restored,omitzero"`
	History  []Event `json:"history,omitempty"`
}

// Event is a phase that was reached.
type Event struct {
	Phase Phase     `json:"phase"`
	Time  time.Time `json:"time"`
}

// Duration is a time.Duration that is written as 24h0m0s.
type Duration time.Duration

// String is what time.ParseDuration reads.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes the duration.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a duration that is not negative.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err == nil && v < 0 {
		err = fmt.Errorf("%s is negative", v)
	}
	*d = Duration(v)
	return err
}

// Wait is how long a step must be in force before all certificates and bundles
// from before it are gone: the last one is made when the last control plane
// learns of the step, and lives as long as certificates do.
func (s *State) Wait() time.Duration { return time.Duration(s.LeafTTL) + time.Duration(s.Propagation) }

// SafeFrom is from when on the next step is safe, in whole seconds, as people
// read it.
func (s *State) SafeFrom() time.Time { return wholeSecond(s.Written.Add(s.Wait())) }

// wholeSecond is the first whole second that is not before t.
func wholeSecond(t time.Time) time.Time {
	if whole := t.Truncate(time.Second); whole.Equal(t) {
		return whole
	}
	return t.Truncate(time.Second).Add(time.Second)
}

// pending reports whether directories may still be as before.
func (s *State) pending() bool { return s.Written.IsZero() }

const stateVersion = 1

func (s *State) encode() ([]byte, error) {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the state of the rotation: %w", err)
	}
	return append(data, '\n'), nil
}

// decode reads a state file.
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
	case s.Phase.ends() && !s.pending():
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
