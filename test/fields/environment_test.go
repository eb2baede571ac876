//go:build !race

package fields

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/cli/commands"
)

// variable is an environment variable with values that Istio's agent treats differently.
type variable struct {
	values []string
	// beside holds the variables with which it has an effect.
	beside []string
	// elsewhere says why nothing changes: where the effect is tested, or what is so anyway.
	elsewhere string
}

func given(values ...string) variable { return variable{values: values} }

func (v variable) with(beside ...string) variable {
	v.beside = beside
	return v
}

// agentVariables holds the variables that Istio's agent reads, in its last version or an earlier one.
// TestNoMetadataIsSilent has those that only the control plane reads, as metadata of the node.
var agentVariables = map[string]variable{
	"BLOCKED_CIDRS_IN_WASM_FETCH":             given("10.0.0.0/8", "x"),
	"BOOTSTRAP_XDS_AGENT":                     given("true"),
	"CA_ADDR":                                 given("ca.example:443"),
	"CA_HEADER_A":                             given("b"),
	"CA_PROVIDER":                             given("GoogleCA", "GkeWorkloadCertificate"),
	"CA_ROOT_CA":                              given("/etc/a.pem", "SYSTEM"),
	"CLOUD_PLATFORM":                          given("aws"),
	"COMPLIANCE_POLICY":                       given("pqc", "fips-140-2", "fips-140-3"),
	"CREDENTIAL_FETCHER_TYPE":                 given("GoogleComputeEngine", "Mock"),
	"CREDENTIAL_IDENTITY_PROVIDER":            given("a"),
	"DISABLE_ENVOY":                           given("true"),
	"DNS_FORWARD_PARALLEL":                    given("true"),
	"DNS_FORWARD_TIMEOUT":                     given("3s"),
	"DNS_PROXY_ADDR":                          given("127.0.0.9:15053"),
	"ECC_CURVE":                               given("P384"),
	"ECC_SIGNATURE_ALGORITHM":                 given("RSA"),
	"ENABLE_PROBE_KEEPALIVE_CONNECTIONS":      given("true"),
	"ENVOY_PROMETHEUS_PORT":                   given("15099"),
	"ENVOY_SECURE_MERGED_METRICS_PORT":        given("15098"),
	"ENVOY_SECURE_METRICS_PORT":               given("15097"),
	"ENVOY_SKIP_DEPRECATED_LOGS":              given("false"),
	"ENVOY_STATUS_PORT":                       given("15096"),
	"ENVOY_STATUS_PORT_ENABLE_PROXY_PROTOCOL": given("true"),
	"EXIT_ON_ZERO_ACTIVE_CONNECTIONS":         given("true"),
	"FILE_DEBOUNCE_DURATION":                  given("1s"),
	"FILE_MOUNTED_CERTS":                      given("true"),
	"GCE_METADATA_HOST":                       given("metadata.example"),
	"GCP_METADATA":                            given("a|1|b|c"),
	"GCP_QUOTA_PROJECT":                       given("a"),
	"GCP_ZONE":                                given("europe-west1-b"),
	"GRPC_KEEPALIVE_INTERVAL":                 given("20s"),
	"GRPC_KEEPALIVE_TIMEOUT":                  given("20s"),
	"GRPC_XDS_BOOTSTRAP":                      given("/etc/grpc.json"),
	"HOST_IP":                                 given("10.0.0.7"),
	"HTTP_STRIP_FRAGMENT_FROM_PATH_UNSAFE_IF_DISABLED": given("false"),
	"INSTANCE_IP": given("10.0.1.9"),
	"ISTIOD_SAN":  given("istiod.example"),
	"ISTIO_AGENT_ENABLE_WASM_REMOTE_LOAD_CONVERSION": given("false"),
	"ISTIO_BOOTSTRAP":                              given("/etc/bootstrap.json"),
	"ISTIO_BOOTSTRAP_OVERRIDE":                     {values: []string{"/etc/override.yaml"}, elsewhere: "internal/agent/config TestOverrideOfTheAdminAddress"},
	"ISTIO_CPU_LIMIT":                              given("3"),
	"ISTIO_DELTA_XDS":                              given("false"),
	"ISTIO_DUAL_STACK":                             {values: []string{"true"}, elsewhere: "the addresses of the workload decide"},
	"ISTIO_ENABLE_HTTP2_PROBING":                   given("false"),
	"ISTIO_ENVOY_ENABLE_CORE_DUMP":                 given("true"),
	"ISTIO_KUBE_APP_PROBERS":                       given(`{"/app-health/web/readyz": {"httpGet": {"path": "/", "port": 80}}}`),
	"ISTIO_META_CERT_SIGNER":                       given("a"),
	"ISTIO_META_CLUSTER_ID":                        given("c1"),
	"ISTIO_META_DISABLE_HBONE_SEND":                given("true"),
	"ISTIO_META_DNS_AUTO_ALLOCATE":                 given("false"),
	"ISTIO_META_ENABLE_HBONE":                      given("true"),
	"ISTIO_META_INBOUND_LISTENER_EXACT_BALANCE":    given("true"),
	"ISTIO_META_OUTBOUND_LISTENER_EXACT_BALANCE":   given("true"),
	"ISTIO_META_ROUTER_MODE":                       given("sni-dnat"),
	"ISTIO_META_TLS_CLIENT_CERT_CHAIN":             given("/etc/a.pem"),
	"ISTIO_META_TLS_CLIENT_KEY":                    given("/etc/a.pem"),
	"ISTIO_META_TLS_CLIENT_ROOT_CERT":              given("/etc/a.pem"),
	"ISTIO_META_TLS_SERVER_CERT_CHAIN":             given("/etc/a.pem"),
	"ISTIO_META_TLS_SERVER_KEY":                    given("/etc/a.pem"),
	"ISTIO_META_TLS_SERVER_ROOT_CERT":              given("/etc/a.pem"),
	"ISTIO_META_DNS_CAPTURE":                       given("false"),
	"ISTIO_META_ENABLE_DNS_SERVER":                 given("true").with("ISTIO_META_DNS_CAPTURE=false"),
	"ISTIO_META_ENABLE_SELF_DISCOVERY":             given("true"),
	"ISTIO_META_GLOBAL_DOWNSTREAM_MAX_CONNECTIONS": given("1000"),
	"ISTIO_METAJSON_LABELS":                        given(`{"app": "other"}`),
	"ISTIO_PROMETHEUS_ANNOTATIONS":                 given(`{"scrape": "true", "port": "9090"}`),
	"ISTIO_WASM_MAX_BINARY_SIZE_BYTES":             given("1000"),
	"JWT_POLICY":                                   given("first-party-jwt"),
	"KUBERNETES_SERVICE_HOST":                      given("10.96.0.1"),
	"METRICS_LOCALHOST_ACCESS_ONLY":                given("true"),
	"MINIMUM_DRAIN_DURATION":                       given("9s"),
	"OUTPUT_CERTS":                                 given("/etc/certs"),
	"PEER_METADATA_DISCOVERY":                      given("true"),
	"PILOT_AGENT_MERGE_ENVOY_STATS":                given("false"),
	"PILOT_CERT_PROVIDER":                          given("kubernetes", "custom", "none"),
	"PILOT_ENABLE_CA_CRL":                          given("false"),
	"PKCS8_KEY":                                    {values: []string{"true"}, elsewhere: "keys are always PKCS #8"},
	"POD_NAME":                                     given("other"),
	"POD_NAMESPACE":                                given("other"),
	"PROV_CERT":                                    given("/etc/certs"),
	"PROXY_CONFIG":                                 given("concurrency: 3"),
	"PROXY_CONFIG_XDS_AGENT":                       given("true"),
	"PROXY_XDS_DEBUG_VIA_AGENT":                    given("true"),
	"PROXY_XDS_DEBUG_VIA_AGENT_PORT":               given("15009"),
	"PROXY_XDS_VIA_AGENT":                          given("false"),
	"REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION":   given("true").with(`ISTIO_KUBE_APP_PROBERS={"/app-health/web/readyz": {"httpGet": {"path": "/", "port": 80}}}`),
	"SECRET_GRACE_PERIOD_RATIO":                    given("0.4"),
	"SECRET_GRACE_PERIOD_RATIO_JITTER":             given("0.1"),
	"SECRET_TTL":                                   given("2h"),
	"SERVICE_ACCOUNT":                              given("other"),
	"STS_PORT":                                     given("15463"),
	"TERMINATION_DRAIN_DURATION_SECONDS":           given("9"),
	"TRUST_DOMAIN":                                 given("other.example"),
	"WASM_HTTP_REQUEST_MAX_RETRIES":                given("9"),
	"WASM_HTTP_REQUEST_TIMEOUT":                    given("9s"),
	"WASM_INSECURE_REGISTRIES":                     given("registry.example:5000"),
	"WASM_MODULE_EXPIRY":                           given("9h"),
	"WASM_PURGE_INTERVAL":                          given("9h"),
	"WORKLOAD_IDENTITY_SOCKET_FILE":                given("other"),
	"WORKLOAD_RSA_KEY_SIZE":                        given("4096"),
	"XDS_AUTH_PROVIDER":                            given("gcp"),
	"XDS_HEADER_A":                                 given("b"),
	"XDS_ROOT_CA":                                  given("/etc/a.pem", "SYSTEM"),
}

// TestNoVariableOfAgentsIsSilent: each environment variable that Istio's agent reads changes the
// agent, is refused or reported.
func TestNoVariableOfAgentsIsSilent(t *testing.T) {
	t.Parallel()
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(agentVariables)) {
		v := agentVariables[name]
		for _, value := range v.values {
			result := onAgentOnly(name, value, v.beside)
			switch {
			case result == "" && v.elsewhere == "":
				t.Errorf("%s=%s is silent", name, value)
			case result == "":
				result = v.elsewhere
			case v.elsewhere != "":
				t.Errorf("%s=%s: %s; its effect is not elsewhere", name, value, result)
			}
			lines = append(lines, name+"="+value+": "+result)
		}
	}
	golden(t, filepath.Join("testdata", "environment.out.txt"), strings.Join(lines, "\n")+"\n")
	documented(t, lines)
}

// documented compares the table of variables without effect in the documentation with the results.
func documented(t *testing.T, results []string) {
	t.Helper()
	table := "| Variable | What happens |\n|---|---|\n"
	for _, r := range results {
		given, result, _ := strings.Cut(r, ": ")
		name, _, _ := strings.Cut(given, "=")
		how, what, _ := strings.Cut(result, ": ")
		what, why, _ := strings.Cut(what, " has no effect here")
		switch {
		case how == "reported":
			if what == name { // whatever its value
				given = strings.Replace(name, "HEADER_A", "HEADER_…", 1)
			}
			result = "**no effect**: " + strings.TrimLeft(why, ":, ")
		case how == "refused" && !slices.Contains([]string{"BLOCKED_CIDRS_IN_WASM_FETCH", "STS_PORT", "WORKLOAD_IDENTITY_SOCKET_FILE"}, name):
			result = "refused"
		default:
			continue
		}
		table += fmt.Sprintf("| `%s` | %s |\n", given, result)
	}
	const page = "../../docs/agent.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), "<!-- table: variables -->\n")
	_, after, ended := strings.Cut(rest, "<!-- end -->")
	if !found || !ended {
		t.Fatalf("%s has no table of variables", page)
	}
	golden(t, page, before+"<!-- table: variables -->\n"+table+"<!-- end -->"+after)
}

// onAgentOnly returns the effect of a variable on an agent.
func onAgentOnly(name, value string, beside []string) string {
	before := resolveAgent(beside...)
	after := resolveAgent(append(slices.Clone(beside), name+"="+value)...)
	for _, w := range after.warnings {
		if !slices.Contains(before.warnings, w) && strings.Contains(w, name) {
			return "reported: " + w
		}
	}
	switch {
	case after.err != nil && before.err == nil:
		return "refused: " + after.err.Error()
	case before.text != after.text:
		return "changes the agent"
	}
	return ""
}

// resolved is the configuration of an agent.
type resolved struct {
	text     string
	warnings []string
	err      error
}

// resolveAgent returns the configuration of an agent with variables beside those that every agent has.
func resolveAgent(more ...string) resolved {
	cfg, warnings, err := config.Resolve(config.Input{
		Environ: append([]string{
			"POD_NAME=reviews-1", "POD_NAMESPACE=shop", "INSTANCE_IP=10.0.1.1", "SERVICE_ACCOUNT=reviews", "CA_ADDR=istiod.istio-system.svc:15012", "ISTIO_META_DNS_CAPTURE=true",
		}, more...),
		BootstrapOverride: []byte("node: {metadata: {host: $(HOST_IP)}}"),
		Interfaces:        []netip.Addr{netip.MustParseAddr("10.0.1.1")}, Flags: config.Flags{Type: "sidecar", Domain: "shop.svc.cluster.local"}, Version: "1.0",
	})
	return resolved{textOf(&cfg), warnings, err}
}

// redirectVariables holds the variables that Istio's istio-iptables reads.
var redirectVariables = map[string]variable{
	"CAPTURE_ALL_DNS":                     given("true").with("ISTIO_META_DNS_CAPTURE=true"),
	"CLEANUP_ONLY":                        given("true"),
	"CNI_MODE":                            given("true"),
	"DROP_INVALID":                        given("true"),
	"DRY_RUN":                             {values: []string{"true"}, elsewhere: "the test prints the rules"},
	"DRY_RUN_FILE_PATH":                   given("/tmp/rules"),
	"DUAL_STACK":                          {values: []string{"true"}, elsewhere: "the rules are for both IP versions"},
	"ENVOY_PORT":                          given("25001"),
	"FORCE_APPLY":                         {values: []string{"true"}, elsewhere: "the rules are replaced as a whole"},
	"FORCE_IPTABLES_BINARY":               given("legacy"),
	"INBOUND_CAPTURE_PORT":                given("25006"),
	"INBOUND_TUNNEL_PORT":                 given("25008"),
	"INVALID_DROP":                        given("true"),
	"IPTABLES_PROBE_PORT":                 {values: []string{"9"}, elsewhere: "has an effect only with RUN_VALIDATION"},
	"IPTABLES_TRACE_LOGGING":              given("true"),
	"ISTIO_DUAL_STACK":                    {values: []string{"true"}, elsewhere: "the rules are for both IP versions"},
	"ISTIO_EXCLUDE_INTERFACES":            given("net1"),
	"ISTIO_INBOUND_INTERCEPTION_MODE":     given("TPROXY"),
	"ISTIO_INBOUND_PORTS":                 given("99"),
	"ISTIO_INBOUND_TPROXY_MARK":           given("9"),
	"ISTIO_INBOUND_TPROXY_ROUTE_TABLE":    given("9"),
	"ISTIO_LOCAL_EXCLUDE_PORTS":           given("99"),
	"ISTIO_LOCAL_OUTBOUND_PORTS_EXCLUDE":  given("99"),
	"ISTIO_META_DNS_CAPTURE":              given("true"),
	"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR":   given("127.0.0.0/8"),
	"ISTIO_OUTBOUND_OWNER_GROUPS":         given("2000"),
	"ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE": given("2000"),
	"ISTIO_OUTBOUND_PORTS":                given("99"),
	"ISTIO_SERVICE_CIDR":                  given("10.0.0.0/8"),
	"ISTIO_SERVICE_EXCLUDE_CIDR":          given("10.0.0.0/8"),
	"KUBE_VIRT_INTERFACES":                given("net1"),
	"NATIVE_NFTABLES":                     {values: []string{"true"}, elsewhere: "the rules are of nftables"},
	"NETWORK_NAMESPACE":                   given("/proc/1/ns/net"),
	"PROBE_TIMEOUT":                       {values: []string{"9s"}, elsewhere: "has an effect only with RUN_VALIDATION"},
	"PROXY_GID":                           given("99"),
	"PROXY_UID":                           given("99"),
	"RECONCILE":                           {values: []string{"true"}, elsewhere: "the rules are replaced as a whole"},
	"REDIRECT_DNS":                        given("true"),
	"RUN_VALIDATION":                      given("true"),
	"SKIP_RULE_APPLY":                     given("true"),
}

// TestNoVariableOfRedirectionIsSilent: each environment variable that istio-iptables reads changes the
// rules of "agent redirect", is refused or reported, or asks for what the command does anyway.
func TestNoVariableOfRedirectionIsSilent(t *testing.T) {
	t.Parallel()
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(redirectVariables)) {
		v := redirectVariables[name]
		for _, value := range v.values {
			before, after := redirect(t, v.beside...), redirect(t, append(slices.Clone(v.beside), name+"="+value)...)
			result := ""
			switch {
			case strings.Contains(after.warnings[0], name):
				result = "reported: " + strings.ReplaceAll(strings.TrimSpace(after.warnings[0]), "\n", " ")
			case before.text != after.text:
				result = "changes the rules"
			case v.elsewhere != "":
				result = v.elsewhere
			default:
				t.Errorf("%s=%s is silent", name, value)
			}
			lines = append(lines, name+"="+value+": "+result)
		}
	}
	golden(t, filepath.Join("testdata", "redirection.out.txt"), strings.Join(lines, "\n")+"\n")
}

// redirect returns the rules that "agent redirect" prints with variables, and its messages.
func redirect(t *testing.T, environ ...string) resolved {
	t.Helper()
	env := map[string]string{"HOME": t.TempDir()}
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	var out, messages bytes.Buffer
	code := commands.Run(t.Context(), &cli.Env{
		Stdin: strings.NewReader(""), Stdout: &out, Stderr: &messages, Now: time.Now,
		LookupEnv: func(name string) (string, bool) { v, ok := env[name]; return v, ok },
	}, []string{"agent", "redirect", "istio-iptables", "--print"})
	return resolved{text: fmt.Sprintf("%d\n%s", code, out.String()), warnings: []string{messages.String()}}
}
