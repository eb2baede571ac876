package access

import (
	"regexp"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	uritemplatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/path/match/uri_template/v3"
)

// The characters that the operators of a template stand for.
const templateText = `a-zA-Z0-9\-._~%!$&'()*+,;:@=`

// templateVariable is a variable: {name} or {name=pattern}.
var templateVariable = regexp.MustCompile(`\{[A-Za-z][A-Za-z0-9_]*(?:=([^}]+))?\}`)

// matchTemplate compares the path with a template, in which * stands for one segment
// and ** for any number of them.
func (s *state) matchTemplate(m *corev3.TypedExtensionConfig) finding {
	path, f := s.pathOnly()
	if f != nil {
		return *f
	}
	template := new(uritemplatev3.UriTemplateMatchConfig)
	if m.GetTypedConfig().UnmarshalTo(template) != nil {
		return undecidable("path matcher " + m.GetName() + " is not evaluated")
	}
	return compared("path", path, matchPattern(template.GetPathTemplate(), path), "like "+writtenTemplate.Replace(template.GetPathTemplate()))
}

// writtenTemplate returns a template as an AuthorizationPolicy has it.
var writtenTemplate = strings.NewReplacer("{*}", "{*}", "{**}", "{**}", "**", "{**}", "*", "{*}")

func matchPattern(template, path string) truth {
	plain := templateVariable.ReplaceAllStringFunc(template, func(variable string) string {
		if pattern := templateVariable.FindStringSubmatch(variable)[1]; pattern != "" {
			return pattern
		}
		return "*"
	})
	if strings.ContainsAny(plain, "{}") {
		return unknown // Envoy refuses it
	}
	var expression strings.Builder
	for rest := plain; rest != ""; {
		literal, after, found := strings.Cut(rest, "*")
		expression.WriteString(regexp.QuoteMeta(literal))
		if !found {
			break
		}
		if deep, ok := strings.CutPrefix(after, "*"); ok {
			expression.WriteString("[" + templateText + "/]*")
			after = deep
		} else {
			expression.WriteString("[" + templateText + "]+")
		}
		rest = after
	}
	return fullMatch(expression.String(), path)
}
