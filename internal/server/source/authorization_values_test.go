package source

import "testing"

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
