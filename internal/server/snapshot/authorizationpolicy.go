package snapshot

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	securityv1beta1 "istio.io/api/security/v1beta1"
)

// KindAuthorizationPolicy is the kind of AuthorizationPolicy.
const KindAuthorizationPolicy Kind = "AuthorizationPolicy"

// AuthorizationPolicy decides which requests and connections workloads accept.
type AuthorizationPolicy struct {
	Meta
	Spec *securityv1beta1.AuthorizationPolicy
	// DryRun is the annotation istio.io/dry-run: the decision is only recorded.
	DryRun bool
	// Doubtful holds the indexes of rules that are not fully understood, sorted. If the
	// action is ALLOW, such a rule matches nothing. Otherwise Spec has the part of it that
	// is understood, which matches at least as much as the rule.
	Doubtful []int
}

// Key implements Object.
func (o *AuthorizationPolicy) Key() Key { return o.key(KindAuthorizationPolicy) }

// SameAs implements Policy.
func (o *AuthorizationPolicy) SameAs(other Policy) bool {
	p, ok := other.(*AuthorizationPolicy)
	return ok && o.Namespace == p.Namespace && o.Name == p.Name && o.Created.Equal(p.Created) &&
		o.Suppress == p.Suppress && o.DryRun == p.DryRun && slices.Equal(o.Doubtful, p.Doubtful) &&
		maps.Equal(o.Labels, p.Labels) && proto.Equal(o.Spec, p.Spec)
}

// Content implements Policy.
func (o *AuthorizationPolicy) Content() proto.Message { return o.Spec }

// AuthorizationPolicies iterates over the AuthorizationPolicies of a namespace, oldest first.
// ns may be nil.
func AuthorizationPolicies(ns *NamespaceFacts) iter.Seq[*AuthorizationPolicy] {
	return func(yield func(*AuthorizationPolicy) bool) {
		if ns == nil {
			return
		}
		for _, p := range ns.Policies[KindAuthorizationPolicy] {
			if a, ok := p.(*AuthorizationPolicy); ok && !yield(a) {
				return
			}
		}
	}
}

// SplitAttribute splits the key of a condition of a rule into the name of the attribute and
// its arguments: request.headers[x] is request.headers of x. An unknown attribute is an
// error.
func SplitAttribute(key string) (name string, args []string, err error) {
	name, rest, _ := strings.Cut(key, "[")
	if rest != "" || strings.Contains(key, "[") {
		inner, closed := strings.CutSuffix(rest, "]")
		if !closed {
			return "", nil, fmt.Errorf("%q lacks ] at the end", key)
		}
		args = strings.Split(inner, "][")
		if slices.ContainsFunc(args, func(a string) bool { return a == "" || strings.ContainsAny(a, "[]") }) {
			return "", nil, fmt.Errorf("%q has an empty name or nested brackets", key)
		}
	}
	want, known := attributeArgs[name]
	if !known && strings.HasPrefix(name, FilterAttribute) && len(name) > len(FilterAttribute) {
		want, known = 1, true
	}
	switch {
	case !known:
		return "", nil, fmt.Errorf("%q is not an attribute%s", key, attributeHint(name))
	case want == 0 && len(args) > 0, want == 1 && len(args) != 1, want > 1 && len(args) == 0:
		return "", nil, fmt.Errorf("%q: want %s%s", key, name, []string{"", "[name]", "[claim] or [claim][part]"}[want])
	}
	return name, args, nil
}

// FormsOfHeader returns the names that a condition which refuses requests by a header matches:
// dashes may be underscores, which servers with variables of CGI take for the same name.
func FormsOfHeader(name string) []string {
	dashes := strings.ReplaceAll(name, "_", "-")
	if strings.Count(dashes, "-") == 0 {
		return []string{name}
	}
	parts, out := strings.Split(dashes, "-"), []string{""}
	for i, part := range parts {
		var longer []string
		for _, start := range out {
			if i == 0 {
				longer = append(longer, part)
			} else {
				longer = append(longer, start+"-"+part, start+"_"+part)
			}
		}
		out = longer
	}
	return out
}

// MostDashes bounds the dashes and underscores in the name of a header by which a condition refuses
// requests: each doubles the names.
const MostDashes = 8

// FilterAttribute is the prefix of the attributes with the metadata of a filter.
const FilterAttribute = "experimental.envoy.filters."

// attributeArgs holds the attributes of conditions, and whether they have no, one or several
// arguments.
var attributeArgs = map[string]int{
	"request.headers": 1, "request.auth.principal": 0, "request.auth.audiences": 0, "request.auth.presenter": 0, "request.auth.claims": 2,
	"source.ip": 0, "remote.ip": 0, "source.namespace": 0, "source.serviceAccount": 0, "source.principal": 0, "source.trustDomain": 0,
	"destination.ip": 0, "destination.port": 0, "connection.sni": 0,
}

// attributeHint returns the attribute whose name differs only in case, for an error.
func attributeHint(name string) string {
	for known := range attributeArgs {
		if strings.EqualFold(known, name) {
			return ", did you mean " + known + "?"
		}
	}
	return ""
}

// IsPathTemplate reports whether a path of a rule has the operator {*} or {**}.
func IsPathTemplate(path string) bool {
	return strings.Contains(path, "{*}") || strings.Contains(path, "{**}")
}
