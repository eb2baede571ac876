package config

import (
	"maps"
	"slices"
	"strings"
)

// unusedVariables holds the variables that Istio's agent reads and this agent does not, with
// the reason.
var unusedVariables = map[string]string{
	"CLOUD_PLATFORM":                                   noPlatform,
	"GCE_METADATA_HOST":                                noPlatform,
	"GCP_METADATA":                                     noPlatform,
	"GCP_QUOTA_PROJECT":                                "the agent calls no API of Google",
	"GCP_ZONE":                                         noPlatform,
	"GRPC_KEEPALIVE_INTERVAL":                          noKeepalive,
	"GRPC_KEEPALIVE_TIMEOUT":                           noKeepalive,
	"CREDENTIAL_IDENTITY_PROVIDER":                     "the agent reads its token from a file (--token)",
	"ENABLE_PROBE_KEEPALIVE_CONNECTIONS":               "each probe opens a connection",
	"ENVOY_SECURE_MERGED_METRICS_PORT":                 "metrics are on the ports for statistics and status",
	"ENVOY_SECURE_METRICS_PORT":                        "metrics are on the ports for statistics and status",
	"ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL":          "the readiness port expects no PROXY protocol",
	"FILE_DEBOUNCE_DURATION":                           "the agent uses a changed file within 2 s",
	"ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION":   "the agent fetches the modules of plugins; only with --no-relay it fetches none",
	"ISTIO_BOOTSTRAP":                                  "templates are not supported; merge parts of a bootstrap with ISTIO_BOOTSTRAP_OVERRIDE",
	"ISTIO_ENVOY_ENABLE_CORE_DUMP":                     "the limit of core files of the container decides",
	"ISTIO_ENABLE_HTTP2_PROBING":                       "HTTPS probes use HTTP/2 if the application supports it",
	"ISTIO_WASM_MAX_BINARY_SIZE_BYTES":                 "a download and a module may have 64 MiB each",
	"JWT_POLICY":                                       "the agent sends the token of --token",
	"ISTIO_META_ENABLE_SELF_DISCOVERY":                 "the bootstrap has no cluster of the proxy itself",
	"ISTIO_META_DISABLE_HBONE_SEND":                    noHBONE,
	"ISTIO_META_DNS_AUTO_ALLOCATE":                     "the control plane allocates addresses; a ServiceEntry with the label networking.istio.io/enable-autoallocate-ip=false gets none",
	"ISTIO_META_ENABLE_HBONE":                          noHBONE,
	"ISTIO_META_INBOUND_LISTENER_EXACT_BALANCE":        noBalance,
	"ISTIO_META_OUTBOUND_LISTENER_EXACT_BALANCE":       noBalance,
	"ISTIO_META_ROUTER_MODE":                           "servers of Gateways with mode AUTO_PASSTHROUGH pass mTLS on",
	"ISTIO_META_TLS_CLIENT_CERT_CHAIN":                 mountedFiles,
	"ISTIO_META_TLS_CLIENT_KEY":                        mountedFiles,
	"ISTIO_META_TLS_CLIENT_ROOT_CERT":                  mountedFiles,
	"ISTIO_META_TLS_SERVER_CERT_CHAIN":                 mountedFiles,
	"ISTIO_META_TLS_SERVER_KEY":                        mountedFiles,
	"ISTIO_META_TLS_SERVER_ROOT_CERT":                  mountedFiles,
	"PEER_METADATA_DISCOVERY":                          "the control plane does not use it",
	"PILOT_AGENT_MERGE_ENVOY_STATS":                    "metrics of the status port include Envoy's",
	"PILOT_ENABLE_CA_CRL":                              "revocation lists apply if there are any",
	"PROXY_XDS_DEBUG_VIA_AGENT":                        noDebug,
	"PROXY_XDS_DEBUG_VIA_AGENT_PORT":                   noDebug,
	"PROXY_XDS_VIA_AGENT":                              "use --no-relay to let Envoy connect to the control plane itself",
	"TERMINATION_DRAIN_DURATION_SECONDS":               "use terminationDrainDuration of PROXY_CONFIG",
	"WASM_HTTP_REQUEST_MAX_RETRIES":                    "the agent tries again as long as a plugin needs the module",
	"XDS_AUTH_PROVIDER":                                "the agent sends the token of --token",
	"ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS":     "use runtimeValues of PROXY_CONFIG",
	"HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED": "use runtimeValues of PROXY_CONFIG",
}

const (
	noPlatform   = "the control plane knows the locality"
	noKeepalive  = "the agent has its own intervals for connections to the control plane"
	noDebug      = "use meshctl experimental internal-debug"
	noHBONE      = "there is no HBONE"
	noBalance    = "set connection_balance_config of the listeners with an EnvoyFilter"
	mountedFiles = "give the certificate of the workload in ./etc/certs, with FILE_MOUNTED_CERTS=true"
)

// satisfied reports whether a variable without effect asks for what there is.
func satisfied(name, value string) bool {
	switch name {
	case "JWT_POLICY":
		return value == "third-party-jwt"
	case "ISTIO_META_DNS_AUTO_ALLOCATE", "ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION", "PILOT_AGENT_MERGE_ENVOY_STATS",
		"PILOT_ENABLE_CA_CRL", "PROXY_XDS_VIA_AGENT":
		return value == "true"
	case "ISTIO_META_ENABLE_HBONE", "ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL", "PROXY_XDS_DEBUG_VIA_AGENT":
		return value == "false"
	}
	return false
}

// unused warns of variables without effect.
func (r *resolver) unused() {
	for _, name := range slices.Sorted(maps.Keys(unusedVariables)) {
		if value := r.lookup(name); value != "" && !satisfied(name, value) {
			r.warnf("%s has no effect here: %s", name, unusedVariables[name])
		}
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(r.env)), maps.Keys(r.metadata))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if strings.HasPrefix(name, "CA_HEADER_") || strings.HasPrefix(name, "XDS_HEADER_") {
			r.warnf("%s has no effect here: the agent sends no further headers", name)
		}
	}
}

// unsupportedIdentity warns of the kinds of keys that only Istio's agent knows.
func (r *resolver) unsupportedIdentity() {
	for _, s := range [][2]string{
		{"ECC_CURVE", "P256"},
		{"ECC_SIGNATURE_ALGORITHM", "ECDSA"},
		{"PKCS8_KEY", "true"},
		{"WORKLOAD_RSA_KEY_SIZE", ""},
		{"ISTIO_META_CERT_SIGNER", ""},
	} {
		if v := r.lookup(s[0]); v != "" && !strings.EqualFold(v, s[1]) && !slices.Contains([]string{"false", "0"}, v) {
			r.warnf("%s has no effect here: keys are ECDSA P-256 in PKCS #8, and the control plane chooses the signer", s[0])
		}
	}
}

// certProvider compares where Istio's agent finds the roots of the control plane with where this agent
// does.
func (r *resolver) certProvider(cfg *Config) {
	v := r.lookup("PILOT_CERT_PROVIDER")
	known := v == "" || v == "istiod" || strings.HasPrefix(v, "k8s.io/") || (setting{v, "PILOT_CERT_PROVIDER"}).isReported()
	if !known && cfg.CARootFile == DefaultRootFile {
		r.warnf("PILOT_CERT_PROVIDER=%q has no effect here: the roots of the control plane are in %s; name another file with --root-ca (CA_ROOT_CA)", v, DefaultRootFile)
	}
}
