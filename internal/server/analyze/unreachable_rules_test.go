package analyze

import (
	"math/rand/v2"
	"strings"
	"testing"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

type (
	requestMatch = networkingv1alpha3.HTTPMatchRequest
	textMatch    = networkingv1alpha3.StringMatch
)

func exactly(s string) *textMatch {
	return &textMatch{MatchType: &networkingv1alpha3.StringMatch_Exact{Exact: s}}
}

func prefixed(s string) *textMatch {
	return &textMatch{MatchType: &networkingv1alpha3.StringMatch_Prefix{Prefix: s}}
}

// request is a request of random content.
type request struct {
	path, method, header, namespace string
	port                            uint32
	labels                          map[string]string
	gateway                         string
}

// random returns random conditions and requests from a small vocabulary, so that they meet.
type random struct{ *rand.Rand }

func (r random) of(list ...string) string { return list[r.IntN(len(list))] }

func (r random) text(words ...string) *textMatch {
	switch r.IntN(4) {
	case 0:
		return exactly(r.of(words...))
	case 1:
		word := r.of(words...)
		return prefixed(word[:min(len(word), 1+r.IntN(2))])
	case 2:
		return &textMatch{MatchType: &networkingv1alpha3.StringMatch_Regex{Regex: r.of(words...) + ".*"}}
	}
	return nil
}

var paths = []string{"/a", "/A", "/ab", "/abc", "/b"}

func (r random) match() *requestMatch {
	m := &requestMatch{Uri: r.text(append(paths, "/")...), Method: r.text("GET", "GETS"), IgnoreUriCase: r.IntN(4) == 0}
	if r.IntN(3) == 0 {
		m.Headers = map[string]*textMatch{"x": {}}
		if header := r.text("on", "one"); header != nil {
			m.Headers["x"] = header
		}
	}
	if r.IntN(3) == 0 {
		m.WithoutHeaders = map[string]*textMatch{"x": exactly(r.of("on", "one"))}
	}
	if r.IntN(3) == 0 {
		m.Port = uint32(80 + r.IntN(2))
	}
	if r.IntN(3) == 0 {
		m.SourceLabels = map[string]string{r.of("app", "version"): "v"}
	}
	if r.IntN(3) == 0 {
		m.SourceNamespace = r.of("shop", "web")
	}
	if r.IntN(3) == 0 {
		m.Gateways = []string{r.of("mesh", "shop/public")}
	}
	return m
}

func (r random) request() request {
	q := request{
		path: r.of(paths...), method: r.of("GET", "GETS", "PUT"), header: r.of("", "on", "one"), namespace: r.of("shop", "web"),
		port: uint32(80 + r.IntN(2)), gateway: r.of("mesh", "shop/public"), labels: map[string]string{},
	}
	for _, k := range []string{"app", "version"} {
		if r.IntN(2) == 0 {
			q.labels[k] = "v"
		}
	}
	return q
}

func textMatches(m *textMatch, s string, ignoreCase bool) bool {
	if ignoreCase {
		s = strings.ToLower(s)
	}
	fold := func(of string) string {
		if ignoreCase {
			return strings.ToLower(of)
		}
		return of
	}
	switch of := m.GetMatchType().(type) {
	case *networkingv1alpha3.StringMatch_Exact:
		return s == fold(of.Exact)
	case *networkingv1alpha3.StringMatch_Prefix:
		return strings.HasPrefix(s, fold(of.Prefix))
	case *networkingv1alpha3.StringMatch_Regex:
		return strings.HasPrefix(s, fold(strings.TrimSuffix(of.Regex, ".*")))
	}
	return true
}

// takes reports whether a condition takes a request, as Envoy decides it.
func takes(m *requestMatch, q request) bool {
	if header, ok := m.Headers["x"]; ok && (q.header == "" || !textMatches(header, q.header, false)) {
		return false
	}
	if without, ok := m.WithoutHeaders["x"]; ok && q.header != "" && textMatches(without, q.header, false) {
		return false
	}
	in := len(m.Gateways) == 0
	for _, g := range m.Gateways {
		in = in || g == q.gateway
	}
	return in && textMatches(m.Uri, q.path, m.IgnoreUriCase) && textMatches(m.Method, q.method, false) && (m.Port == 0 || m.Port == q.port) &&
		(m.SourceNamespace == "" || m.SourceNamespace == q.namespace) && snapshot.Selects(m.SourceLabels, q.labels)
}

// TestCoversRequest: a match that covers another one takes all its requests.
func TestCoversRequest(t *testing.T) {
	t.Parallel()
	r := random{rand.New(rand.NewPCG(1, 2))}
	covered, compared := 0, 0
	for range 50_000 {
		a, b := r.match(), r.match()
		if !coversRequest(a, b) {
			continue
		}
		covered++
		for range 20 {
			if q := r.request(); takes(b, q) {
				compared++
				if !takes(a, q) {
					t.Fatalf("%v covers %v, but only the second takes %+v", a, b, q)
				}
			}
		}
	}
	if covered < 1000 || compared < 1000 {
		t.Errorf("only %d covered matches with %d requests", covered, compared)
	}
}

// TestCovers: matches cover narrower ones.
func TestCovers(t *testing.T) {
	t.Parallel()
	all := &requestMatch{}
	for name, c := range map[string]struct {
		a, b *requestMatch
		want bool
	}{
		"everything":          {all, &requestMatch{Uri: exactly("/a")}, true},
		"a part":              {&requestMatch{Uri: exactly("/a")}, all, false},
		"slash":               {&requestMatch{Uri: prefixed("/")}, all, true},
		"longer prefix":       {&requestMatch{Uri: prefixed("/a")}, &requestMatch{Uri: prefixed("/a/b")}, true},
		"prefix of a regex":   {&requestMatch{Uri: prefixed("/a")}, &requestMatch{Uri: &textMatch{MatchType: &networkingv1alpha3.StringMatch_Regex{Regex: "/a.*"}}}, false},
		"one more condition":  {&requestMatch{Uri: prefixed("/a")}, &requestMatch{Uri: prefixed("/a"), Port: 80}, true},
		"one less condition":  {&requestMatch{Uri: prefixed("/a"), Port: 80}, &requestMatch{Uri: prefixed("/a")}, false},
		"header is there":     {&requestMatch{Headers: map[string]*textMatch{"x": {}}}, &requestMatch{Headers: map[string]*textMatch{"x": exactly("1")}}, true},
		"other query":         {&requestMatch{QueryParams: map[string]*textMatch{"x": exactly("1")}}, &requestMatch{QueryParams: map[string]*textMatch{"y": exactly("1")}}, false},
		"header is not there": {&requestMatch{WithoutHeaders: map[string]*textMatch{"x": {}}}, all, false},
		"case":                {&requestMatch{Uri: prefixed("/A"), IgnoreUriCase: true}, &requestMatch{Uri: exactly("/ab"), IgnoreUriCase: true}, true},
	} {
		if got := coversRequest(c.a, c.b); got != c.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
