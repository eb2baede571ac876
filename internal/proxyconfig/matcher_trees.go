package proxyconfig

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	matcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// matched is an action of a matcher, and what leads to it.
type matched struct {
	// match describes the conditions, separated by semicolons.
	match string
	// action is nil for a custom matcher that this package cannot read.
	action *xdscorev3.TypedExtensionConfig
}

// maxMatchDepth bounds the conditions that lead to an action, because dumps may be hostile.
const maxMatchDepth = 32

// otherwise stands for the case that no condition beside it is met.
const otherwise = "otherwise"

// actionsOf returns the actions of a matcher, in its order. Keys of maps are sorted.
func actionsOf(m *matcherv3.Matcher) []matched {
	var w matchWalk
	w.matcher(m, nil)
	return w.found
}

type matchWalk struct{ found []matched }

func (w *matchWalk) matcher(m *matcherv3.Matcher, above []string) {
	if m == nil {
		return
	}
	for _, f := range m.GetMatcherList().GetMatchers() {
		w.onMatch(f.GetOnMatch(), above, predicateText(f.GetPredicate(), 0))
	}
	if tree := m.GetMatcherTree(); tree != nil {
		w.tree(tree, above)
	}
	if m.GetOnNoMatch() != nil {
		w.onMatch(m.GetOnNoMatch(), above, otherwise)
	}
}

func (w *matchWalk) tree(t *matcherv3.Matcher_MatcherTree, above []string) {
	input := extensionText(t.GetInput())
	of := func(entries map[string]*matcherv3.Matcher_OnMatch, after string) {
		for _, key := range slices.Sorted(maps.Keys(entries)) {
			w.onMatch(entries[key], above, input+"="+key+after)
		}
	}
	of(t.GetExactMatchMap().GetMap(), "")
	of(t.GetPrefixMatchMap().GetMap(), "*")
	custom := t.GetCustomMatch()
	if custom == nil {
		return
	}
	ips, names := new(matcherv3.IPMatcher), new(matcherv3.ServerNameMatcher)
	switch {
	case custom.GetTypedConfig().MessageIs(ips) && custom.GetTypedConfig().UnmarshalTo(ips) == nil:
		for _, r := range ips.GetRangeMatchers() {
			var ranges []string
			for _, c := range r.GetRanges() {
				ranges = append(ranges, fmt.Sprintf("%s/%d", c.GetAddressPrefix(), c.GetPrefixLen().GetValue()))
			}
			w.onMatch(r.GetOnMatch(), above, input+"="+strings.Join(ranges, ","))
		}
	case custom.GetTypedConfig().MessageIs(names) && custom.GetTypedConfig().UnmarshalTo(names) == nil:
		for _, d := range names.GetDomainMatchers() {
			w.onMatch(d.GetOnMatch(), above, input+"="+strings.Join(d.GetDomains(), ","))
		}
	default:
		w.add(above, input+" matches "+extensionText(custom), nil)
	}
}

func (w *matchWalk) onMatch(m *matcherv3.Matcher_OnMatch, above []string, condition string) {
	switch next := m.GetOnMatch().(type) {
	case *matcherv3.Matcher_OnMatch_Action:
		w.add(above, condition, next.Action)
	case *matcherv3.Matcher_OnMatch_Matcher:
		if len(above) == maxMatchDepth {
			w.add(above, "...", nil)
			return
		}
		if n := len(above); condition == otherwise && n > 0 && above[n-1] == otherwise {
			above = above[:n-1] // once is enough
		}
		w.matcher(next.Matcher, append(slices.Clip(above), condition))
	default:
		w.add(above, condition, nil)
	}
}

func (w *matchWalk) add(above []string, condition string, action *xdscorev3.TypedExtensionConfig) {
	w.found = append(w.found, matched{strings.Join(append(slices.Clip(above), condition), "; "), action})
}

// predicateText describes a condition of a list.
func predicateText(p *matcherv3.Matcher_MatcherList_Predicate, depth int) string {
	if depth == maxMatchDepth {
		return "..."
	}
	each := func(list []*matcherv3.Matcher_MatcherList_Predicate, between string) string {
		texts := make([]string, len(list))
		for i, p := range list {
			texts[i] = predicateText(p, depth+1)
		}
		return "(" + strings.Join(texts, between) + ")"
	}
	switch p := p.GetMatchType().(type) {
	case *matcherv3.Matcher_MatcherList_Predicate_SinglePredicate_:
		input := extensionText(p.SinglePredicate.GetInput())
		if custom := p.SinglePredicate.GetCustomMatch(); custom != nil {
			return input + " matches " + extensionText(custom)
		}
		return input + stringText(p.SinglePredicate.GetValueMatch())
	case *matcherv3.Matcher_MatcherList_Predicate_OrMatcher:
		return each(p.OrMatcher.GetPredicate(), " or ")
	case *matcherv3.Matcher_MatcherList_Predicate_AndMatcher:
		return each(p.AndMatcher.GetPredicate(), " and ")
	case *matcherv3.Matcher_MatcherList_Predicate_NotMatcher:
		return "not " + predicateText(p.NotMatcher, depth+1)
	}
	return "unknown condition"
}

// stringText describes what a text is compared with.
func stringText(m *matcherv3.StringMatcher) string {
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return "=" + p.Exact
	case *matcherv3.StringMatcher_Prefix:
		return "=" + p.Prefix + "*"
	case *matcherv3.StringMatcher_Suffix:
		return "=*" + p.Suffix
	case *matcherv3.StringMatcher_Contains:
		return "=*" + p.Contains + "*"
	case *matcherv3.StringMatcher_SafeRegex:
		return " regex " + p.SafeRegex.GetRegex()
	case *matcherv3.StringMatcher_Custom:
		return " matches " + extensionText(p.Custom)
	}
	return "=unknown"
}

// extension is an extension of Envoy, which two packages of messages define.
type extension interface {
	GetName() string
	GetTypedConfig() *anypb.Any
}

// extensionText names an extension, with the texts of its configuration, such as the name of a
// header.
func extensionText(e extension) string {
	url := e.GetTypedConfig().GetTypeUrl()
	name := e.GetName()
	if name == "" {
		name = url[strings.LastIndexAny(url, "./")+1:]
	}
	return strings.Join(append([]string{name}, textsOf(e.GetTypedConfig())...), " ")
}

// textsOf returns the strings of a message that are set, without those of messages in it.
func textsOf(config *anypb.Any) []string {
	message, err := config.UnmarshalNew()
	if err != nil {
		return nil
	}
	var out []string
	m := message.ProtoReflect()
	for i := range m.Descriptor().Fields().Len() {
		if fd := m.Descriptor().Fields().Get(i); fd.Kind() == protoreflect.StringKind && fd.Cardinality() != protoreflect.Repeated && m.Has(fd) {
			out = append(out, m.Get(fd).String())
		}
	}
	return out
}
