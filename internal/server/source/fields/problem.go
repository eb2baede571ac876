package fields

import (
	"log/slog"
	"slices"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// ProblemKind is the kind of a problem of one object or one file.
type ProblemKind uint8

// The kinds of problems.
const (
	Unused     ProblemKind = iota // an object, or a part of it, has no effect
	Refused                       // an object is invalid
	Repeated                      // another object has the same name
	Unreadable                    // a file, or a part of a cluster, cannot be read

	// Further kinds of Unused.
	UnknownAnnotation   // an annotation of Istio's domain that Istio does not define
	MisplacedAnnotation // an annotation that Istio defines for other kinds of objects
	WrongReplace        // a patch replaces what cannot be replaced
	WrongAdd            // a patch adds to what it can only change
	WrongRemove         // a patch removes what cannot be removed
	EmptyList           // a rule that permits has an empty list, which permits everything
	PrivateKey          // a key set that everybody may read has a private key
	Deprecated          // a field or a value has a replacement
	Unneeded            // a part of a security policy has no effect, and the policy is enforced
)

// ObjectName returns the name of an object for people: kind and namespace/name, or
// the known parts of them.
func ObjectName(k snapshot.Key) string {
	switch {
	case k.Kind == "" || k.Name == "":
		return string(k.Kind)
	case k.Namespace == "":
		return string(k.Kind) + " " + k.Name
	}
	return string(k.Kind) + " " + k.Namespace + "/" + k.Name
}

// hasEffect reports whether the problem is about configuration that has an effect, but
// probably not the effect that its author wants.
func (k ProblemKind) hasEffect() bool { return k == EmptyList || k == PrivateKey || k == Deprecated }

// LogProblem logs a part of the configuration that is not used, or that has an unwanted
// effect if all kinds are such. unenforced is set for a security policy, shared for an object
// that may be meant for another program.
func LogProblem(log *slog.Logger, kinds []ProblemKind, unenforced, shared bool, attrs ...any) {
	only := func(is func(ProblemKind) bool) bool {
		return len(kinds) > 0 && !slices.ContainsFunc(kinds, func(k ProblemKind) bool { return !is(k) })
	}
	switch {
	case only(func(k ProblemKind) bool { return k == Deprecated }):
		log.Info("configuration is deprecated", attrs...)
	case only(ProblemKind.hasEffect):
		log.Warn("configuration may not do what is wanted", attrs...)
	case unenforced:
		log.Warn("security policy is not enforced", attrs...)
	case shared:
		log.Info("configuration is not used", attrs...)
	default:
		log.Warn("configuration is not used", attrs...)
	}
}
