package proxysettings

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Limits of variables.
const (
	maxDNSTimeout = time.Minute
	maxModuleTime = 30 * 24 * time.Hour
)

// SystemRoots is Istio's name for the roots of the operating system.
const SystemRoots = "SYSTEM"

// variables holds what the values of environment variables of an agent must be. A check returns what
// is wrong about a value, so that NAME="value" precedes.
var variables = map[string]func(value string) error{
	"BLOCKED_CIDRS_IN_WASM_FETCH":      each(isRange),
	"BOOTSTRAP_XDS_AGENT":              isBoolean,
	"CA_ADDR":                          eachAddress,
	"CA_PROVIDER":                      only("Citadel", "the agent asks authorities that speak Istio's protocol, such as meshctl serve, istiod and istio-csr (CA_ADDR)"),
	"CA_ROOT_CA":                       isFile,
	"CREDENTIAL_FETCHER_TYPE":          only("JWT", "the agent reads its token from a file (--token)"),
	"DISABLE_ENVOY":                    isBoolean,
	"DNS_FORWARD_PARALLEL":             isBoolean,
	"DNS_FORWARD_TIMEOUT":              isDuration(time.Nanosecond, maxDNSTimeout, "of at most 1m, such as 5s"),
	"DNS_PROXY_ADDR":                   isDNSAddress,
	"ENVOY_SKIP_DEPRECATED_LOGS":       isBoolean,
	"EXIT_ON_ZERO_ACTIVE_CONNECTIONS":  isBoolean,
	"FILE_MOUNTED_CERTS":               isBoolean,
	"ISTIOD_SAN":                       is(mesh.IsDNSName, "is not a DNS name"),
	"ISTIO_DELTA_XDS":                  isBoolean,
	"ISTIO_METAJSON_LABELS":            isLabels,
	"ISTIO_META_INTERCEPTION_MODE":     isMode,
	"METRICS_LOCALHOST_ACCESS_ONLY":    isBoolean,
	"MINIMUM_DRAIN_DURATION":           isDuration(0, MaxDuration, "from 0s to 24h, such as 5s"),
	"PILOT_CERT_PROVIDER":              isProvider,
	"PROXY_CONFIG_XDS_AGENT":           isBoolean,
	mesh.VariableProbesAtLoopback:      isBoolean,
	"SECRET_GRACE_PERIOD_RATIO":        isRatio,
	"SECRET_GRACE_PERIOD_RATIO_JITTER": isRatio,
	"SECRET_TTL":                       isDuration(time.Second, 1<<63-1, "of at least 1s, such as 24h"),
	"WASM_HTTP_REQUEST_TIMEOUT":        isModuleTime,
	"WASM_INSECURE_REGISTRIES":         each(isRegistry),
	"WASM_MODULE_EXPIRY":               isModuleTime,
	"WASM_PURGE_INTERVAL":              isModuleTime,
	"WORKLOAD_IDENTITY_SOCKET_FILE":    isFilename,
	"XDS_ROOT_CA":                      isFile,
}

// Variables returns the names of the variables that VariableFault knows, sorted.
func Variables() []string { return slices.Sorted(maps.Keys(variables)) }

// VariableFault returns why an agent refuses the value of an environment variable, or nil. The text
// is for after NAME="value".
func VariableFault(name, value string) error {
	if check := variables[name]; check != nil && value != "" {
		return check(value)
	}
	return nil
}

// metadata adds the faults of proxyMetadata, whose entries are environment variables.
func (f *faults) metadata(pc *meshv1alpha1.ProxyConfig) {
	given := pc.GetProxyMetadata()
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if err := VariableFault(name, given[name]); err != nil {
			f.add("proxyMetadata."+name, "%q %w", given[name], err)
		}
	}
	if pc.GetCustomConfigFile() != "" && given["ISTIO_BOOTSTRAP_OVERRIDE"] != "" {
		f.add("customConfigFile", "and proxyMetadata.ISTIO_BOOTSTRAP_OVERRIDE are both set: the agent merges nothing into another bootstrap")
	}
	if mounted, _ := strconv.ParseBool(given["FILE_MOUNTED_CERTS"]); mounted && given["PROV_CERT"] != "" {
		f.add("proxyMetadata.PROV_CERT", "and FILE_MOUNTED_CERTS exclude each other: with mounted certificates, no other one is requested")
	}
}

func is(valid func(string) bool, fault string) func(string) error {
	return func(s string) error {
		if !valid(s) {
			return errors.New(fault)
		}
		return nil
	}
}

var isBoolean = is(func(s string) bool {
	_, err := strconv.ParseBool(s)
	return err == nil
}, "is neither true nor false")

var isRatio = is(func(s string) bool {
	ratio, err := strconv.ParseFloat(s, 64)
	return err == nil && ratio >= 0 && ratio <= 1
}, "is not a number from 0 to 1")

var isFile = is(func(s string) bool { return s != SystemRoots }, "(the roots of the operating system) is not supported: name a PEM file")

var isFilename = is(func(s string) bool { return filepath.Base(s) == s && s != "." && s != ".." },
	"is not valid: workload identity socket file override must be a filename, not a path")

var isProvider = is(func(s string) bool { return s != "none" },
	"is not supported: the agent verifies the control plane; name its roots with --root-ca")

var isMode = is(func(s string) bool { return slices.Contains([]string{"REDIRECT", "TPROXY", "NONE"}, s) }, "is not an interception mode: want REDIRECT, TPROXY or NONE")

var isModuleTime = isDuration(time.Second, maxModuleTime, "from 1s to 720h, such as 15s")

func isDuration(least, most time.Duration, want string) func(string) error {
	return is(func(s string) bool {
		d, err := time.ParseDuration(s)
		return err == nil && d >= least && d <= most
	}, "is not a duration "+want)
}

func only(value, instead string) func(string) error {
	return is(func(s string) bool { return s == value }, "is not supported, only "+value+": "+instead)
}

func each(check func(string) error) func(string) error {
	return func(s string) error {
		for part := range strings.SplitSeq(s, ",") {
			if part = strings.TrimSpace(part); part == "" {
				continue
			}
			if err := check(part); err != nil {
				return fmt.Errorf("has %q, which %w", part, err)
			}
		}
		return nil
	}
}

var isRange = is(func(s string) bool {
	_, err := netip.ParsePrefix(s)
	return err == nil
}, "is not a range of addresses, such as 10.0.0.0/8")

var isRegistry = is(func(s string) bool { return !strings.ContainsAny(s, "/ ") }, "is not host:port")

func eachAddress(s string) error {
	for address := range strings.SplitSeq(s, ",") {
		if err := addressFault(strings.TrimSpace(address)); err != nil {
			return err
		}
	}
	return nil
}

func isDNSAddress(s string) error {
	host, text, err := net.SplitHostPort(s)
	port, portErr := strconv.ParseUint(text, 10, 16)
	if err != nil || portErr != nil || port == 0 {
		return errors.New("is not an address and a port, such as localhost:15053")
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || ip.Zone() != "") {
		return fmt.Errorf("is not valid: %q is not an IP address", host)
	}
	return nil
}

func isLabels(s string) error {
	var labels map[string]string
	if err := json.Unmarshal([]byte(s), &labels); err != nil {
		return fmt.Errorf("is not a JSON object of strings: %w", err)
	}
	return nil
}
