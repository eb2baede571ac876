package analyzecmd

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
)

// suppressions select findings that are ignored.
type suppressions []suppression

type suppression struct{ code, object string }

// parseSuppressions parses values of --suppress.
func parseSuppressions(values []string) (suppressions, error) {
	var out suppressions
	for _, v := range values {
		code, object, ok := strings.Cut(v, "=")
		_, err := path.Match(object, "")
		switch {
		case !ok || object == "" || err != nil:
			return nil, cli.Usagef("--suppress: %q is not CODE=KIND NAME.NAMESPACE, as in %q", v, "IST0101=VirtualService reviews.default")
		case code != "*" && codes.KindOf(codes.Code(code)) == (codes.Kind{}):
			return nil, cli.Usagef("--suppress: there is no code %q: docs/analyze.md lists them", code)
		}
		out = append(out, suppression{code, object})
	}
	return out, nil
}

func (s suppressions) match(f *analyze.Finding) bool {
	name := strings.TrimSuffix(fmt.Sprintf("%s %s.%s", f.Object.Kind, f.Object.Name, f.Object.Namespace), ".")
	return slices.ContainsFunc(s, func(one suppression) bool {
		matches, _ := path.Match(one.object, name) // checked by parseSuppressions
		return (one.code == "*" || strings.EqualFold(one.code, string(f.Code))) && matches
	})
}
