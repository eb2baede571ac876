package xdsgen_test

import (
	"fmt"
	"strings"
	"testing"
)

// TestConditionsAreNotMultiplied: the conditions of a rule cost the same beside one source or
// operation and beside many, and values with many forms are limited.
func TestConditionsAreNotMultiplied(t *testing.T) {
	base := decodeObjects(t, "c1", "mesh", []byte(fuzzedMesh))
	list := func(n int, format string) string {
		items := make([]string, n)
		for i := range items {
			items[i] = fmt.Sprintf(format, i)
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	policy := func(rule string) []byte {
		return []byte(`{"apiVersion":"security.istio.io/v1","kind":"AuthorizationPolicy","metadata":{"name":"p","namespace":"ns0"},"spec":{"action":"DENY","rules":[{` + rule + `}]}}`)
	}
	from := `"from":` + list(1000, `{"source":{"namespaces":["a%d"]}}`)
	to := `"to":` + list(1000, `{"operation":{"hosts":["h%d.example"]}}`)
	when := func(key string, n int, format string) string {
		return `"when":[{"key":"` + key + `","values":` + list(n, format) + `}]`
	}
	const mostCost = 256 << 20
	for name, tt := range map[string]struct {
		rule    string
		refused bool
	}{
		"sources and forms of a header":    {from + "," + when("request.headers[a-b-c-d-e]", 200, `"v%d"`), false},
		"sources and principals":           {from + "," + when("source.principal", 2000, `"cluster.local/ns/n%d/sa/s"`), false},
		"operations and server names":      {to + "," + when("connection.sni", 2000, `"v%d.example"`), false},
		"sources, operations and ports":    {from + "," + to + "," + when("destination.ip", 250, `"10.0.1.%d"`), false},
		"forms of a header":                {when("request.headers[a-b-c-d-e]", 10_000, `"v%d"`), true},
		"slashes of principals of a token": {`"from":[{"source":{"requestPrincipals":` + list(1000, `"`+strings.Repeat("a/", 500)+`%d"`) + `}}]`, true},
		"slashes in a condition":           {when("request.auth.principal", 1000, `"`+strings.Repeat("a/", 500)+`%d"`), true},
		"a long value":                     {`"to":[{"operation":{"paths":["/` + strings.Repeat("a", 1<<20) + `"]}}]`, true},
	} {
		got := cost(t, base, policy(tt.rule))
		t.Logf("%s: %d bytes cost %d MB and make %d KB of resources: %v", name, got.bytes, got.cost>>20, got.out>>10, got.err)
		if got.refusedByLimits() != tt.refused || !tt.refused && got.err != nil {
			t.Errorf("%s: refused by limits %v, want %v: %v", name, got.refusedByLimits(), tt.refused, got.err)
		}
		if got.cost > mostCost {
			t.Errorf("%s: %d bytes cost %d MB, want at most %d", name, got.bytes, got.cost>>20, mostCost>>20)
		}
	}
}
