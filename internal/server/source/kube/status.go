package kube

import (
	"cmp"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// Status is the state of reading and following a cluster.
type Status struct {
	// Synced is set once everything was read for the first time.
	Synced bool
	// Version is the version of the API server, empty if unknown.
	Version string `json:",omitempty"`
	// Resources are in the order of source.Watched.
	Resources []ResourceStatus
	// Problems lists the objects that are not fully used, sorted.
	Problems []Problem `json:",omitempty"`
}

// Errors returns the distinct errors of resources that are not followed.
func (s *Status) Errors() []string {
	var out []string
	for _, r := range s.Resources {
		if r.Error != "" && !slices.Contains(out, r.Error) {
			out = append(out, r.Error)
		}
	}
	return out
}

// ResourceStatus is the state of one resource.
type ResourceStatus struct {
	// Resource is a name such as services or gateways.networking.istio.io.
	Resource string
	// Namespace is the only namespace that is read, Object the only object; empty means
	// all.
	Namespace string `json:",omitempty"`
	Object    string `json:",omitempty"`
	// Optional is set for a resource that the control plane can do without.
	Optional bool `json:",omitempty"`
	// Unread is set for objects without effect, which are only reported.
	Unread bool `json:",omitempty"`
	// Synced is set once everything was read for the first time.
	Synced bool
	// Objects is the number of known objects.
	Objects int64
	// Heard is the time of the last list, event or bookmark of the resource; a bookmark
	// comes every minute. It is zero if there was none.
	Heard time.Time
	// Cause and Error state why the resource is not followed, Since the time; all are
	// empty while it is. A resource that is not installed has a cause and no error.
	Cause Cause     `json:",omitempty"`
	Error string    `json:",omitempty"`
	Since time.Time `json:",omitzero"`
}

// Problem is an object that is not fully used.
type Problem struct {
	// Object is kind and namespace/name.
	Object string
	Key    snapshot.Key `json:"-"`
	// Kinds holds the kind of each reason of an object.
	Kinds []fields.ProblemKind `json:"-"`
	// Suppress holds codes of findings, see snapshot.Meta.
	Suppress string `json:"-"`
	// Reasons state the faults and the version in use.
	Reasons []string
	// Since is the time when they were first seen.
	Since time.Time
	// Unenforced is set for a security policy that is not fully enforced.
	Unenforced bool `json:",omitempty"`
	// Shared is set for an object that may be meant for another program.
	Shared bool `json:",omitempty"`
}

// maxProblems bounds the problems that are shown of one resource.
const maxProblems = 100

// Status may be called from any goroutine. The result is the caller's.
func (s *Source) Status() Status {
	st := Status{Synced: s.synced.Load()}
	if version := s.version.Load(); version != nil {
		st.Version = *version
	}
	followers := s.followers.Load()
	if followers == nil {
		return st
	}
	for _, f := range *followers {
		r, problems := f.health.status()
		if f.res.Unread && r.Cause == CauseForbidden && f.definitions.lacks(r.Resource) {
			r.Cause, r.Error, r.Since = CauseNotInstalled, "", time.Time{} // known only after the request
		}
		st.Resources = append(st.Resources, r)
		st.Problems = append(st.Problems, problems...)
	}
	slices.SortFunc(st.Problems, func(a, b Problem) int { return cmp.Compare(a.Object, b.Object) })
	return st
}

// health is the state of one follower, as Status shows it.
type health struct {
	mu       sync.Mutex
	is       ResourceStatus
	problems map[snapshot.Key]Problem
	left     Problem // the problem of objects that are left out; zero for none
}

func newHealth(r *source.Resource, namespace string) *health {
	return &health{is: ResourceStatus{Resource: r.GroupResource(), Namespace: namespace, Object: r.Object, Optional: r.Optional, Unread: r.Unread}, problems: make(map[snapshot.Key]Problem)}
}

func (h *health) status() (ResourceStatus, []Problem) {
	h.mu.Lock()
	defer h.mu.Unlock()
	problems := slices.Collect(maps.Values(h.problems))
	if h.left.Object != "" {
		problems = append(problems, h.left)
	}
	return h.is, problems
}

// leave records why objects are left out, empty if none is. ignored is set if nothing stands for
// security policies that are left out. It reports whether some were
// left out before.
func (h *health) leave(r *source.Resource, why string, ignored bool, now time.Time) (before bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before = h.left.Object != ""
	switch {
	case why == "":
		h.left = Problem{}
	case before:
		h.left.Reasons = []string{why}
	default:
		h.left = Problem{Object: r.GroupResource(), Reasons: []string{why}, Since: now, Unenforced: r.Security && ignored}
	}
	return before
}

// well records that the resource is followed. It returns the previous error.
func (h *health) well(objects int64, now time.Time) (before string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before = h.is.Error
	h.is.Synced, h.is.Objects, h.is.Heard = true, objects, now
	h.is.Cause, h.is.Error, h.is.Since = "", "", time.Time{}
	return before
}

// heard records that the API server sent something.
func (h *health) heard(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.is.Heard = now
}

// count records the number of known objects.
func (h *health) count(objects int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.is.Objects = objects
}

// absent records that the resource is not installed. It returns the previous error.
func (h *health) absent(now time.Time) (before string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before = h.is.Error
	h.is.Synced, h.is.Objects, h.is.Heard = true, 0, now
	h.is.Cause, h.is.Error, h.is.Since = CauseNotInstalled, "", time.Time{}
	return before
}

// fail records an error. It returns the previous error.
func (h *health) fail(c Cause, text string, now time.Time) (before string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before = h.is.Error
	if before == "" {
		h.is.Since = now
	}
	h.is.Cause, h.is.Error = c, text
	return before
}

// report records the faults of an object, none if there are no reasons, and logs
// changes. Only the first maxProblems objects of a resource are recorded and logged.
func (h *health) report(key snapshot.Key, p Problem, log *slog.Logger) {
	switch change, all := h.note(key, p); change {
	case problemGone:
		log.Info("problem of the configuration is gone", "object", p.Object)
	case problemNew, problemOther:
		fields.LogProblem(log, p.Kinds, p.Unenforced, p.Shared, "object", p.Object, "reasons", p.Reasons)
		if change == problemNew && all == maxProblems {
			log.Warn("further problems of the resource are not logged until there are fewer", "resource", h.is.Resource, "problems", maxProblems)
		}
	}
}

// Results of note.
const (
	problemSame = iota // nothing to log
	problemNew
	problemOther // the reasons changed
	problemGone
)

// note records the faults of an object. It returns the change and the number of recorded
// problems.
func (h *health) note(key snapshot.Key, p Problem) (change, all int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old, was := h.problems[key]
	switch {
	case slices.Equal(old.Reasons, p.Reasons) && old.Unenforced == p.Unenforced:
		return problemSame, len(h.problems)
	case len(p.Reasons) == 0:
		delete(h.problems, key)
		return problemGone, len(h.problems)
	case was:
		h.problems[key] = p
		return problemOther, len(h.problems)
	case len(h.problems) < maxProblems:
		h.problems[key] = p
		return problemNew, len(h.problems)
	}
	return problemSame, len(h.problems)
}

// roomFor reports whether one more problem can be recorded, if each object has one.
func (h *health) roomFor(objects int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.problems) < min(objects, maxProblems)
}

// reported reports whether a problem of the object is recorded.
func (h *health) reported(key snapshot.Key) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, is := h.problems[key]
	return is
}
