package access

import (
	"bytes"
	"strings"
	"testing"

	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/meshctl/meshctl/internal/proxyconfig"
)

// foreignDump is of an Envoy with extensions of other products; DISCOVERED is the configuration
// of one by ECDS.
const foreignDump = `{"configs": [
{"@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump", "dynamic_listeners": [{"name": "in", "active_state": {"listener": {
  "@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": "in", "traffic_direction": "INBOUND",
  "address": {"socket_address": {"address": "0.0.0.0", "port_value": 80}},
  "listener_filters": [{"name": "acme.listener", "typed_config": {"@type": "type.googleapis.com/acme.Listener", "a": [1]}}],
  "filter_chains": [{"filters": [
    {"name": "acme.network", "typed_config": {"@type": "type.googleapis.com/acme.Network", "b": {"c": true}}},
    {"name": "http", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager", "stat_prefix": "a", "http_filters": [
      {"name": "acme.http", "typed_config": {"@type": "type.googleapis.com/acme.HTTP", "d": "e"}},
      {"name": "acme.found", "config_discovery": {"config_source": {"ads": {}}, "type_urls": ["type.googleapis.com/acme.Found"]}},
      {"name": "rbac", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC", "rules": {"action": "DENY", "policies": {"no-delete": {
        "permissions": [{"header": {"name": ":method", "string_match": {"exact": "DELETE"}}}], "principals": [{"any": true}]}}}}}
    ]}}]}]}}}]},
{"@type": "type.googleapis.com/envoy.admin.v3.EcdsConfigDump", "ecds_filters": [{"ecds_filter": {"@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig", "name": "acme.found",
  "typed_config": {"@type": "type.googleapis.com/acme.Found", "f": 1}}}]},
{"@type": "type.googleapis.com/acme.SomeDump", "g": {"@type": "type.googleapis.com/acme.Other"}}
]}`

// TestForeignFilters: filters of unknown types do not prevent an answer. They are named, and
// decide nothing; a refusal by another filter counts all the same.
func TestForeignFilters(t *testing.T) {
	filters, err := proxyconfig.ReadFilters(bytes.NewReader([]byte(foreignDump)))
	if err != nil {
		t.Fatal(err)
	}
	for method, want := range map[string]Verdict{"GET": Undecided, "DELETE": Denied} {
		got, err := Check((*Config)(filters), &Request{Port: 80, Method: method, Path: "/", Host: "a"})
		if err != nil {
			t.Fatal(err)
		}
		if got.Verdict != want {
			t.Errorf("%s: %s, because %s, want %s", method, got.Verdict, got.Why, want)
		}
		named := make(map[string]bool)
		for _, s := range got.Steps {
			named[s.Name] = s.Verdict == Undecided && strings.Contains(s.Why, "not evaluated")
		}
		for _, name := range []string{"acme.network", "acme.http", "acme.found"} {
			if !named[name] {
				t.Errorf("%s: %s is not named in %+v", method, name, got.Steps)
			}
		}
	}
}
