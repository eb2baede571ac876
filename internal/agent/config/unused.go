package config

import (
	"maps"
	"slices"
)

// unusedVariables holds the variables that Istio's agent reads and this agent does not, with
// the reason.
var unusedVariables = map[string]string{
	"CLOUD_PLATFORM":                                   "the control plane knows the locality",
	"CREDENTIAL_IDENTITY_PROVIDER":                     "the agent reads its token from a file (--token)",
	"ENVOY_SECURE_MERGED_METRICS_PORT":                 "metrics are on the ports for statistics and status",
	"ENVOY_SECURE_METRICS_PORT":                        "metrics are on the ports for statistics and status",
	"ISTIO_BOOTSTRAP":                                  "templates are not supported; merge parts of a bootstrap with ISTIO_BOOTSTRAP_OVERRIDE",
	"ISTIO_ENVOY_ENABLE_CORE_DUMP":                     "the limit of core files of the container decides",
	"JWT_POLICY":                                       "the agent sends the token of --token",
	"PEER_METADATA_DISCOVERY":                          "the control plane does not use it",
	"WASM_HTTP_REQUEST_MAX_RETRIES":                    "the agent tries again as long as a plugin needs the module",
	"XDS_AUTH_PROVIDER":                                "the agent sends the token of --token",
	"ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS":     "use runtimeValues of PROXY_CONFIG",
	"HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED": "use runtimeValues of PROXY_CONFIG",
}

// unused warns of variables without effect.
func (r *resolver) unused() {
	for _, name := range slices.Sorted(maps.Keys(unusedVariables)) {
		if r.lookup(name) != "" {
			r.warnf("%s has no effect here: %s", name, unusedVariables[name])
		}
	}
}
