package source

import (
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// TestEmptyValuesOfRulesAreRefused: no field and no attribute of a rule accepts an empty value, which
// would equal an absent one.
func TestEmptyValuesOfRulesAreRefused(t *testing.T) {
	t.Parallel()
	for name, check := range valueChecks {
		for _, value := range []string{"", "/"} {
			if check(value) == nil && (value == "" || name == "service_accounts" || name == "namespaces") {
				t.Errorf("%s accepts %q", name, value)
			}
		}
	}
	for _, key := range []string{
		"request.headers[a]", "request.auth.principal", "request.auth.audiences", "request.auth.presenter", "request.auth.claims[a]", "source.ip",
		"remote.ip", "source.namespace", "source.serviceAccount", "source.principal", "source.trustDomain", "destination.ip", "destination.port",
		"connection.sni", "experimental.envoy.filters.a[b]",
	} {
		check, err := conditionCheck(key)
		if err != nil || check("") == nil {
			t.Errorf("%s accepts an empty value: %v", key, err)
		}
	}
	for _, key := range []string{"", "request.headers", "request.headers[]", "request.auth.claims[]", "experimental.envoy.filters."} {
		if _, err := conditionCheck(key); err == nil {
			t.Errorf("attribute %q is accepted", key)
		}
	}
}

// TestHeadersWithManyDashes: a policy cannot refuse requests by a header of whose names there are too
// many, and can permit them.
func TestHeadersWithManyDashes(t *testing.T) {
	t.Parallel()
	most := "x" + strings.Repeat("-a", snapshot.MostDashes)
	for _, tt := range []struct {
		name, action, values string
		refused              bool
	}{
		{most, "DENY", "values", false},
		{most + "_a", "DENY", "values", true},
		{most + "-a", "DENY", "notValues", false},
		{most + "-a", "ALLOW", "values", false},
		{most + "-a", "ALLOW", "notValues", true},
	} {
		text := `{"apiVersion":"security.istio.io/v1","kind":"AuthorizationPolicy","metadata":{"name":"a","namespace":"n"},"spec":{"action":"` + tt.action +
			`","rules":[{"when":[{"key":"request.headers[` + tt.name + `]","` + tt.values + `":["v"]}]}]}}`
		r, err := (&Converter{Cluster: "c"}).DecodeJSON([]byte(text))
		if refused := err != nil && strings.Contains(err.Error(), "has more than 8 dashes"); refused != tt.refused || refused && r.Closed == nil {
			t.Errorf("%s with %s of %s: %v, want a refusal: %v", tt.action, tt.values, tt.name, err, tt.refused)
		}
	}
}
