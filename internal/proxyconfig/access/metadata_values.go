package access

import (
	"fmt"
	"strings"

	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// Namespaces of dynamic metadata that the evaluated filters write.
const (
	rbacMetadata = "envoy.filters.http.rbac"
	jwtMetadata  = "envoy.filters.http.jwt_authn"
)

// unknownValue is a value of metadata that depends on something unknown.
type unknownValue struct{}

// setMetadata adds to the dynamic metadata of a namespace.
func (s *state) setMetadata(namespace, key string, value any) {
	if s.metadata == nil {
		s.metadata = map[string]map[string]any{}
	}
	if s.metadata[namespace] == nil {
		s.metadata[namespace] = map[string]any{}
	}
	s.metadata[namespace][key] = value
}

// matchMetadata compares a value of the dynamic metadata.
func (s *state) matchMetadata(m *matcherv3.MetadataMatcher) finding {
	keys := make([]string, len(m.GetPath()))
	for i, segment := range m.GetPath() {
		keys[i] = segment.GetKey()
	}
	var value any = s.metadata[m.GetFilter()]
	found := s.metadata[m.GetFilter()] != nil
	for _, key := range keys {
		fields, isObject := value.(map[string]any)
		if !isObject {
			found = false
			break
		}
		if value, found = fields[key]; !found {
			break
		}
	}
	subject := "metadata " + m.GetFilter() + " " + strings.Join(keys, ".")
	if m.GetFilter() == jwtMetadata {
		subject = "claim " + strings.Join(keys[min(1, len(keys)):], ".")
	}
	switch {
	case !found && m.GetFilter() == jwtMetadata && s.claimsUnknown:
		return undecidable("it depends on the " + subject)
	case !found && m.GetFilter() != jwtMetadata && m.GetFilter() != rbacMetadata && s.unsure != "":
		return undecidable(subject + " may be set: " + s.unsure)
	}
	if isUnknown(value) {
		return undecidable(subject + " is not known")
	}
	why := subject + " is missing"
	if found {
		why = fmt.Sprintf("%s is %v", subject, value)
	}
	noToken := m.GetFilter() == jwtMetadata && s.metadata[jwtMetadata] == nil
	if noToken {
		why = "the request has no valid token"
	}
	f := finding{matchValue(m.GetValue(), value, found), why}
	if f.truth != yes && !noToken {
		f.why += ", want " + describeValue(m.GetValue())
	}
	if m.GetInvert() {
		return f.negated()
	}
	return f
}

// matchValue compares a value of metadata.
func matchValue(m *matcherv3.ValueMatcher, value any, found bool) truth {
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.ValueMatcher_NullMatch_:
		return truthOf(found && value == nil)
	case *matcherv3.ValueMatcher_DoubleMatch:
		number, ok := value.(float64)
		if exact, isExact := p.DoubleMatch.GetMatchPattern().(*matcherv3.DoubleMatcher_Exact); isExact {
			return truthOf(ok && number == exact.Exact)
		}
		in := p.DoubleMatch.GetRange()
		return truthOf(ok && number >= in.GetStart() && number < in.GetEnd())
	case *matcherv3.ValueMatcher_StringMatch:
		if text, ok := value.(string); ok {
			return matchString(p.StringMatch, text)
		}
		return no
	case *matcherv3.ValueMatcher_BoolMatch:
		b, ok := value.(bool)
		return truthOf(ok && b == p.BoolMatch)
	case *matcherv3.ValueMatcher_PresentMatch:
		return truthOf(found && p.PresentMatch)
	case *matcherv3.ValueMatcher_ListMatch:
		items, _ := value.([]any)
		return anyOf(items, func(item any) finding {
			return finding{matchValue(p.ListMatch.GetOneOf(), item, true), ""}
		}).truth
	case *matcherv3.ValueMatcher_OrMatch:
		return anyOf(p.OrMatch.GetValueMatchers(), func(m *matcherv3.ValueMatcher) finding {
			return finding{matchValue(m, value, found), ""}
		}).truth
	}
	return unknown
}

func describeValue(m *matcherv3.ValueMatcher) string {
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.ValueMatcher_NullMatch_:
		return "null"
	case *matcherv3.ValueMatcher_DoubleMatch:
		if exact, ok := p.DoubleMatch.GetMatchPattern().(*matcherv3.DoubleMatcher_Exact); ok {
			return fmt.Sprint(exact.Exact)
		}
		return fmt.Sprintf("from %v to below %v", p.DoubleMatch.GetRange().GetStart(), p.DoubleMatch.GetRange().GetEnd())
	case *matcherv3.ValueMatcher_StringMatch:
		return describe(p.StringMatch)
	case *matcherv3.ValueMatcher_BoolMatch:
		return fmt.Sprint(p.BoolMatch)
	case *matcherv3.ValueMatcher_PresentMatch:
		return "any value"
	case *matcherv3.ValueMatcher_ListMatch:
		return "a list with " + describeValue(p.ListMatch.GetOneOf())
	case *matcherv3.ValueMatcher_OrMatch:
		var wants []string
		for _, m := range p.OrMatch.GetValueMatchers() {
			wants = append(wants, describeValue(m))
		}
		return strings.Join(wants, " or ")
	}
	return "what a newer Envoy accepts"
}

// matchFilterState compares an object of the filter state.
func (s *state) matchFilterState(m *matcherv3.FilterStateMatcher) finding {
	subject := "filter state " + m.GetKey()
	value, set := s.filterState[m.GetKey()]
	switch {
	case !set && s.unsure != "":
		return undecidable(subject + " may be set: " + s.unsure)
	case !set:
		return finding{no, subject + " is not set"}
	case value.truth != yes:
		return undecidable(subject + " is not known: " + value.why)
	}
	if p, ok := m.GetMatcher().(*matcherv3.FilterStateMatcher_StringMatch); ok {
		return compared(subject, value.why, matchString(p.StringMatch, value.why), describe(p.StringMatch))
	}
	return undecidable(subject + " is compared as an address")
}

func isUnknown(value any) bool {
	_, ok := value.(unknownValue)
	return ok
}
