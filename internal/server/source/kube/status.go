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
)

// Status is how far a cluster was read and how it is followed.
type Status struct {
	// Synced is set once everything was read for the first time.
	Synced bool
	// Version is that of the API server, empty when it is not known.
	Version string `json:",omitempty"`
	// Resources are in the order of source.Watched.
	Resources []ResourceStatus
	// Problems are the objects that are not used, or not all of them, sorted.
	Problems []Problem `json:",omitempty"`
}

// Errors are what keeps resources from being followed, each once.
func (s *Status) Errors() []string {
	var out []string
	for _, r := range s.Resources {
		if r.Error != "" && !slices.Contains(out, r.Error) {
			out = append(out, r.Error)
		}
	}
	return out
}

// ResourceStatus is how one resource is followed.
type ResourceStatus struct {
	// Resource is a name such as services or gateways.networking.istio.io.
	Resource string
	// Namespace is the only one that is read, Object the only object; empty is
	// every one.
	Namespace string `json:",omitempty"`
	Object    string `json:",omitempty"`
	// Optional is set when a mesh is served also without the right to read it.
	Optional bool `json:",omitempty"`
	// Unread is set when the objects have no effect and are only reported,
	// Security when they are security policies.
	Unread   bool `json:",omitempty"`
	Security bool `json:",omitempty"`
	// Synced is set once everything was read for the first time.
	Synced bool
	// Objects are those that are known.
	Objects int64
	// Heard is when the API server last said something about the resource: a
	// list, an event or a bookmark, of which one comes each minute. It is zero
	// when it never did.
	Heard time.Time
	// Cause and Error say why the resource is not followed, since when; empty
	// when it is. A resource that is not installed has a cause and no error.
	Cause Cause     `json:",omitempty"`
	Error string    `json:",omitempty"`
	Since time.Time `json:",omitzero"`
}

// Problem is an object that is not used, or not all of it.
type Problem struct {
	// Object is kind and namespace/name.
	Object string
	// Reasons say what is wrong and what is used instead.
	Reasons []string
	// Since is when they were first seen.
	Since time.Time
	// Unenforced is set for a security policy that is not enforced, or not all of
	// it.
	Unenforced bool `json:",omitempty"`
	// Shared is set for an object that may be meant for another program.
	Shared bool `json:",omitempty"`
}

// maxProblems is how many objects of one resource are told of.
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
			r.Cause, r.Error, r.Since = CauseNotInstalled, "", time.Time{} // known only after it was asked for
		}
		st.Resources = append(st.Resources, r)
		st.Problems = append(st.Problems, problems...)
	}
	slices.SortFunc(st.Problems, func(a, b Problem) int { return cmp.Compare(a.Object, b.Object) })
	return st
}

// health is what one follower shows of itself.
type health struct {
	mu       sync.Mutex
	is       ResourceStatus
	problems map[snapshot.Key]Problem
	left     Problem // objects that are not held; the zero value for none
}

func newHealth(r *source.Resource, namespace string) *health {
	return &health{is: ResourceStatus{Resource: r.GroupResource(), Namespace: namespace, Object: r.Object, Optional: r.Optional, Unread: r.Unread, Security: r.Security}, problems: make(map[snapshot.Key]Problem)}
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

// leave notes why objects are not held, nothing when all are. It reports whether
// some were not until now.
func (h *health) leave(r *source.Resource, why string, now time.Time) (before bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before = h.left.Object != ""
	switch {
	case why == "":
		h.left = Problem{}
	case before:
		h.left.Reasons = []string{why}
	default:
		h.left = Problem{Object: r.GroupResource(), Reasons: []string{why}, Since: now, Unenforced: r.Security}
	}
	return before
}

// well notes that the resource is followed. It returns what was wrong.
func (h *health) well(objects int64, now time.Time) (before string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before = h.is.Error
	h.is.Synced, h.is.Objects, h.is.Heard = true, objects, now
	h.is.Cause, h.is.Error, h.is.Since = "", "", time.Time{}
	return before
}

// heard notes that the API server said something, count how much is known.
func (h *health) heard(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.is.Heard = now
}

func (h *health) count(objects int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.is.Objects = objects
}

// absent notes that the resource is not installed. It returns what was wrong.
func (h *health) absent(now time.Time) (before string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before = h.is.Error
	h.is.Synced, h.is.Objects, h.is.Heard = true, 0, now
	h.is.Cause, h.is.Error, h.is.Since = CauseNotInstalled, "", time.Time{}
	return before
}

// fail notes what is wrong. It returns what was wrong before.
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

// report notes what is wrong with an object, nothing when there are no reasons,
// and logs what came or went. Of a resource with many such objects, only the
// first are noted and logged.
func (h *health) report(key snapshot.Key, p Problem, log *slog.Logger) {
	switch change, all := h.note(key, p); change {
	case problemGone:
		log.Info("problem of the configuration is gone", "object", p.Object)
	case problemNew, problemOther:
		p.log(log)
		if change == problemNew && all == maxProblems {
			log.Warn("further problems of the resource are not logged until there are fewer", "resource", h.is.Resource, "problems", maxProblems)
		}
	}
}

// What note finds about a problem.
const (
	problemSame = iota // nothing to log
	problemNew
	problemOther // with other reasons than before
	problemGone
)

// note notes what is wrong with an object, and returns what is new about it and
// how many problems are noted.
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

// log writes the line of a problem.
func (p *Problem) log(log *slog.Logger) {
	switch {
	case p.Unenforced:
		log.Warn("security policy is not enforced", "object", p.Object, "reasons", p.Reasons)
	case p.Shared:
		log.Info("configuration is not used", "object", p.Object, "reasons", p.Reasons)
	default:
		log.Warn("configuration is not used", "object", p.Object, "reasons", p.Reasons)
	}
}

// roomFor reports whether one more problem can be noted, when objects have one
// each.
func (h *health) roomFor(objects int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.problems) < min(objects, maxProblems)
}

// reported reports whether a problem of the object is noted.
func (h *health) reported(key snapshot.Key) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, is := h.problems[key]
	return is
}

func objectName(k snapshot.Key) string {
	if k.Namespace == "" {
		return string(k.Kind) + " " + k.Name
	}
	return string(k.Kind) + " " + k.Namespace + "/" + k.Name
}
