package source_test

import (
	"strings"
	"testing"

	_ "github.com/cncf/xds/go/udpa/type/v1"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// TestInvalidPatches: an invalid patch is reported with the line of the faulty field. It has
// no effect, and the other patches of the object work. The heads have four lines.
func TestInvalidPatches(t *testing.T) {
	t.Parallel()
	const (
		good  = "  - {applyTo: NETWORK_FILTER, match: {listener: {filterChain: {filter: {name: a}}}}, patch: {operation: REMOVE}}\n"
		patch = filterHead + "  configPatches:\n  - applyTo: "

		bootstrap = patch + "BOOTSTRAP\n    patch: {operation: "
	)
	tests := map[string]struct {
		in   string
		line int
		want string
	}{
		"filter port":            {filterPatch + "    match:\n      listener:\n        portNumber: 70000\n" + filterAdd + "        name: a", 9, "spec.configPatches[0].match.listener.portNumber: 70000 is not a port: want 1 to 65535"},
		"filter without value":   {filterPatch + "    patch: {operation: ADD}", 7, "spec.configPatches[0].patch.value: is missing"},
		"filter without config":  {filterPatch + filterAdd + "        name: a", 9, "spec.configPatches[0].patch.value: has neither typed_config nor config_discovery"},
		"filter of another":      {filterPatch + filterAdd + "        name: a\n        typed_confg: {}", 11, `spec.configPatches[0].patch.value.typed_confg: unknown field "typed_confg"`},
		"filter without a type":  {filterPatch + filterAdd + "        name: a\n        typed_config: {a: b}", 11, `spec.configPatches[0].patch.value.typed_config: has no "@type"`},
		"filter of unknown type": {filterPatch + filterAdd + "        name: a\n        typed_config:\n          '@type': type.googleapis.com/a.B", 12, `spec.configPatches[0].patch.value.typed_config.@type: "type.googleapis.com/a.B" is no type of Envoy's API`},
		"filter field": {
			filterPatch + filterAdd + "        name: a\n        typed_config:\n          '@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua\n          stat_prefix: a\n          source: {}",
			14, `spec.configPatches[0].patch.value.typed_config.source: unknown field "source"`,
		},
		"filter value": {
			filterPatch + filterAdd + "        name: a\n        typed_config:\n          '@type': type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer\n          max_request_bytes: many",
			13, `spec.configPatches[0].patch.value.typed_config.max_request_bytes: invalid value for uint32 field value: "many"`,
		},
		"filter rules": {
			filterPatch + filterAdd + "        name: a\n        typed_config:\n          '@type': type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer\n          max_request_bytes: 0",
			13, "spec.configPatches[0].patch.value.typed_config.max_request_bytes: breaks Envoy's rules: must be greater than 0",
		},
		"filter without name": {
			filterPatch + filterAdd + "        typed_config:\n          '@type': type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors",
			9, "spec.configPatches[0].patch.value.name: breaks Envoy's rules: must not be empty",
		},
		"filter of contrib": {
			filterPatch + filterAdd + "        name: a\n        typed_config:\n          '@type': type.googleapis.com/envoy.extensions.filters.http.golang.v3alpha.Config",
			12, `spec.configPatches[0].patch.value.typed_config.@type: "type.googleapis.com/envoy.extensions.filters.http.golang.v3alpha.Config" is not in upstream Envoy: it is an extension of Envoy's contrib build or of another version`,
		},
		"structure of contrib": {
			filterPatch + filterAdd + "        name: a\n        typed_config:\n          '@type': type.googleapis.com/udpa.type.v1.TypedStruct\n          type_url: type.googleapis.com/envoy.extensions.filters.http.golang.v3alpha.Config\n          value: {a: b}",
			13, `spec.configPatches[0].patch.value.typed_config.type_url: "type.googleapis.com/envoy.extensions.filters.http.golang.v3alpha.Config" is not in upstream Envoy: `,
		},
		"structure of Istio's Envoy": {
			filterPatch + filterAdd + "        name: a\n        typed_config:\n          '@type': type.googleapis.com/udpa.type.v1.TypedStruct\n          type_url: type.googleapis.com/stats.PluginConfig\n          value: {a: b}",
			13, `spec.configPatches[0].patch.value.typed_config.type_url: "type.googleapis.com/stats.PluginConfig" is no type of Envoy's API`,
		},
		"structure with a wrong field": {
			filterPatch + filterAdd + "        name: a\n        typed_config:\n          '@type': type.googleapis.com/udpa.type.v1.TypedStruct\n          type_url: type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer\n          value:\n            max_request: 1",
			15, `spec.configPatches[0].patch.value.typed_config.value.max_request: unknown field "max_request"`,
		},
		"filter is a router": {
			filterPatch + filterAdd + "        name: a\n        typed_config:\n          '@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
			11, "spec.configPatches[0].patch.value.typed_config: is a router, which every filter chain already has at its end",
		},
		"filter default": {
			filterPatch + filterAdd + "        name: a\n        config_discovery:\n          default_config:\n            '@type': type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua\n            code: a",
			14, `spec.configPatches[0].patch.value.config_discovery.default_config.code: unknown field "code"`,
		},
		"filter discovery": {
			filterPatch + filterAdd + "        name: a\n        config_discovery: {config_source: {ads: {}}}",
			11, "spec.configPatches[0].patch.value.config_discovery.type_urls: breaks Envoy's rules: must not be empty",
		},
		"filter without near": {
			filterPatch + "    match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {}}}}}\n" + filterAdd + "        name: a",
			7, "spec.configPatches[0].match.listener.filterChain.filter.subFilter.name: is missing",
		},
		"extension twice": {
			filterHead + "  configPatches:\n" + strings.Repeat("  - applyTo: EXTENSION_CONFIG\n"+filterAdd+"        name: a\n        typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors}\n", 2),
			16, `spec.configPatches[1].patch.value.name: "a" is given twice`,
		},
		"extension without config": {
			filterHead + "  configPatches:\n  - applyTo: EXTENSION_CONFIG\n" + filterAdd + "        name: a",
			9, "spec.configPatches[0].patch.value.typed_config: breaks Envoy's rules: is missing",
		},
		"bootstrap":           {bootstrap + "ADD, value: {}}", 7, "spec.configPatches[0].patch.operation: ADD is not possible for BOOTSTRAP: use MERGE"},
		"bootstrap lists":     {bootstrap + "MERGE_AND_REPLACE_LIST, value: {}}", 7, "spec.configPatches[0].patch.operation: MERGE_AND_REPLACE_LIST is not possible for BOOTSTRAP: use MERGE"},
		"bootstrap match":     {patch + "BOOTSTRAP\n    match: {cluster: {name: a}}\n    patch: {operation: MERGE, value: {}}", 7, "spec.configPatches[0].match.cluster: cannot match a BOOTSTRAP: use proxy or context"},
		"bootstrap field":     {bootstrap + "MERGE, value: {stats_flush: 1s}}", 7, `spec.configPatches[0].patch.value.stats_flush: unknown field "stats_flush"`},
		"bootstrap node":      {bootstrap + "MERGE, value: {node: {cluster: a}}}", 7, "spec.configPatches[0].patch.value.node: belongs to the agent, "},
		"bootstrap source":    {bootstrap + "MERGE, value: {dynamic_resources: {}}}", 7, "spec.configPatches[0].patch.value.dynamic_resources: belongs to the agent, "},
		"bootstrap admin":     {bootstrap + "MERGE, value: {admin: {address: {socket_address: {address: 0.0.0.0, port_value: 1}}}}}", 7, "spec.configPatches[0].patch.value.admin.address: belongs to the agent, "},
		"bootstrap readiness": {bootstrap + "MERGE, value: {stats_config: {stats_matcher: {reject_all: true}}}}", 7, "spec.configPatches[0].patch.value.stats_config.stats_matcher.reject_all: would hide "},
		"bootstrap cluster":   {bootstrap + "MERGE, value: {static_resources: {clusters: [{name: a}, {name: xds-grpc}]}}}", 7, `spec.configPatches[0].patch.value.static_resources.clusters[1].name: "xds-grpc" is a name of generated configuration`},
		"bootstrap service":   {bootstrap + "MERGE, value: {static_resources: {clusters: [{name: outbound|80||a}]}}}", 7, `spec.configPatches[0].patch.value.static_resources.clusters[0].name: "outbound|80||a" is a name of generated configuration`},
		"bootstrap listener":  {bootstrap + "MERGE, value: {static_resources: {listeners: [{name: virtualInbound}]}}}", 7, `spec.configPatches[0].patch.value.static_resources.listeners[0].name: "virtualInbound" is a name of generated configuration`},
		"bootstrap layer":     {bootstrap + "MERGE, value: {layered_runtime: {layers: [{name: a, admin_layer: {}}]}}}", 7, `spec.configPatches[0].patch.value.layered_runtime.layers[0]: "a" is a layer that the agent has already: use a static layer of another name`},
		"no place":            {patch + "INVALID\n    patch: {operation: MERGE, value: {}}", 6, "spec.configPatches[0].applyTo: INVALID is no place for a patch"},
		"operation":           {patch + "CLUSTER\n    patch: {operation: INSERT_FIRST, value: {name: a}}", 7, "spec.configPatches[0].patch.operation: INSERT_FIRST is not possible for CLUSTER: use one of MERGE, MERGE_AND_REPLACE_LIST, ADD, REMOVE"},
		"version":             {patch + "CLUSTER\n    match: {proxy: {proxyVersion: '('}}\n    patch: {operation: REMOVE}", 7, "spec.configPatches[0].match.proxy.proxyVersion: error parsing regexp: missing closing ): `(`"},
		"long version":        {patch + "CLUSTER\n    match: {proxy: {proxyVersion: '" + strings.Repeat("a", 1025) + "'}}\n    patch: {operation: REMOVE}", 7, "spec.configPatches[0].match.proxy.proxyVersion: has 1025 bytes, at most 1024 are accepted"},
		"waypoint":            {patch + "CLUSTER\n    match: {context: WAYPOINT}\n    patch: {operation: REMOVE}", 7, "spec.configPatches[0].match.context: there are no waypoints"},
		"other match":         {patch + "CLUSTER\n    match: {listener: {name: a}}\n    patch: {operation: REMOVE}", 7, "spec.configPatches[0].match.listener: cannot match a CLUSTER: use cluster"},
		"port name":           {patch + "LISTENER\n    match: {listener: {portName: http}}\n    patch: {operation: REMOVE}", 7, "spec.configPatches[0].match.listener.portName: is not supported: use portNumber"},
		"remove which":        {patch + "NETWORK_FILTER\n    patch: {operation: REMOVE}", 6, "spec.configPatches[0].match.listener.filterChain.filter.name: is missing, which REMOVE needs"},
		"replace which":       {patch + "LISTENER_FILTER\n    patch: {operation: REPLACE, value: {name: a}}", 6, "spec.configPatches[0].match.listener.listenerFilter: is missing, which REPLACE needs"},
		"other filter":        {patch + "HTTP_FILTER\n    match: {listener: {filterChain: {filter: {name: envoy.filters.network.tcp_proxy}}}}\n    patch: {operation: ADD, value: {name: a}}", 7, `spec.configPatches[0].match.listener.filterChain.filter.name: "envoy.filters.network.tcp_proxy" has no HTTP filters: use envoy.filters.network.http_connection_manager`},
		"remove the router":   {patch + "HTTP_FILTER\n    match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}\n    patch: {operation: REMOVE}", 8, "spec.configPatches[0].patch.operation: would remove the router, without which Envoy refuses the listener"},
		"replace the router":  {patch + "HTTP_FILTER\n    match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager, subFilter: {name: envoy.filters.http.router}}}}}\n    patch: {operation: REPLACE, value: {name: a, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors}}}", 8, "spec.configPatches[0].patch.value.typed_config: is not a router, which every filter chain needs at its end"},
		"no name":             {patch + "CLUSTER\n    patch: {operation: ADD, value: {connect_timeout: 1s}}", 7, "spec.configPatches[0].patch.value.name: "},
		"merged value":        {patch + "CLUSTER\n    patch: {operation: MERGE, value: {connect_timeout: -1s}}", 7, "spec.configPatches[0].patch.value.connect_timeout: "},
		"generated name":      {patch + "CLUSTER\n    patch: {operation: ADD, value: {name: outbound|80||a}}", 7, `spec.configPatches[0].patch.value.name: "outbound|80||a" is a name of generated configuration`},
		"unknown field":       {patch + "VIRTUAL_HOST\n    patch: {operation: MERGE, value: {nme: a}}", 7, `spec.configPatches[0].patch.value.nme: unknown field "nme"`},
		"inner rules":         {patch + "NETWORK_FILTER\n    patch: {operation: ADD, value: {name: a, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: a, rds: {config_source: {ads: {}}}, http_filters: [{name: b, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer}}]}}}", 7, "spec.configPatches[0].patch.value.typed_config.http_filters[0].typed_config.max_request_bytes: breaks Envoy's rules: "},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &source.Converter{Cluster: "c"}
			r, err := c.Decode(objects(t, tc.in+"\n"+good)[0], snapshot.Place{})
			if err != nil {
				t.Fatal(err)
			}
			if len(r.Warnings) == 0 {
				t.Fatal("no warning")
			}
			w := r.Warnings[0]
			if got := w.Error(); w.Line != tc.line || !strings.HasPrefix(got, tc.want) || !strings.HasSuffix(got, ": the patch has no effect") {
				t.Errorf("got line %d: %s\nwant line %d: %s", w.Line, got, tc.line, tc.want)
			}
			f, ok := r.Object.(*snapshot.EnvoyFilter)
			if !ok || len(f.Patches) != 1 || f.Patches[0].Value != nil {
				t.Errorf("object is %+v, want the patch that removes a filter", r.Object)
			}
		})
	}
}

// TestPatchesForOtherVersions: a patch for versions of Istio that no proxy of meshctl has is reported,
// and applies to proxies of these versions.
func TestPatchesForOtherVersions(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string]string{
		`^1\.18.*`:                 "spec.configPatches[0].match.proxy.proxyVersion: has no effect: a proxy of this mesh counts as one of Istio 1.31.1, which the pattern does not match",
		`^1\.31.*`:                 "",
		`^1\.(2[0-9]|3[0-9]).*`:    "",
		`^meshctl-7`:               "",
		`.*`:                       "",
		`^1\.31\.1$|^1\.18\.[0-9]`: "",
	} {
		c := &source.Converter{Cluster: "c"}
		r, err := c.Decode(objects(t, filterHead+"  configPatches:\n  - applyTo: CLUSTER\n    match: {proxy: {proxyVersion: '"+pattern+"'}}\n    patch: {operation: REMOVE}")[0], snapshot.Place{})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, w := range r.Warnings {
			got += w.Error()
		}
		f, _ := r.Object.(*snapshot.EnvoyFilter)
		if got != want || len(f.Patches) != 1 {
			t.Errorf("%s: got %q and %d patches, want %q and a patch", pattern, got, len(f.Patches), want)
		}
	}
}
