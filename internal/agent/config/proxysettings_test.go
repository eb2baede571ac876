package config

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/istiojson"
	"github.com/meshctl/meshctl/internal/proxysettings"
)

// FuzzProxyConfigFaults: proxysettings finds a fault exactly where the agent does not start.
func FuzzProxyConfigFaults(f *testing.F) {
	f.Add(int32(15000), int32(15020), int32(2), int64(45), int64(5), "istiod.istio-system.svc:15012", "tag", false, int32(10), uint32(80), "", "")
	f.Add(int32(65536), int32(0), int32(-3), int64(-1), int64(86401), "istiod:15010", "a b", true, int32(-1), uint32(0), "maybe", "15020")
	f.Add(int32(15021), int32(15020), int32(1024), int64(0), int64(86400), "a:1, [::1]:2", "", false, int32(86400), uint32(65535), "true", "1")
	f.Add(int32(15020), int32(0), int32(1025), int64(0), int64(0), "", "x", false, int32(0), uint32(65536), "0", "x")
	f.Fuzz(func(t *testing.T, admin, status, concurrency int32, drain, flush int64, discovery, tag string, none bool, period int32, port uint32, boolean, ready string) {
		const most = 1e6 // seconds; JSON has no longer durations
		duration := func(s int64) string { return strconv.FormatInt(s%most, 10) + "s" }
		policy := "MUTUAL_TLS"
		if none {
			policy = "NONE"
		}
		text, err := json.Marshal(map[string]any{
			"proxyAdminPort": admin, "statusPort": status, "concurrency": concurrency,
			"drainDuration": duration(drain), "terminationDrainDuration": duration(flush), "fileFlushInterval": duration(flush),
			"discoveryAddress": discovery, "extraStatTags": []string{tag}, "controlPlaneAuthPolicy": policy,
			"readinessProbe": map[string]any{"periodSeconds": period, "tcpSocket": map[string]any{"port": port}},
			"proxyMetadata":  map[string]string{"EXIT_ON_ZERO_ACTIVE_CONNECTIONS": boolean, "ENVOY_STATUS_PORT": ready},
		})
		if err != nil {
			t.Fatal(err)
		}
		pc := &meshv1alpha1.ProxyConfig{}
		if _, err := istiojson.OverlayProxyConfig(protojson.UnmarshalOptions{}, pc, string(text)); err != nil {
			t.Fatal(err)
		}
		faults := proxysettings.Faults(pc)
		_, _, err = Resolve(Input{Environ: append(base(), "PROXY_CONFIG="+string(text))})
		if (err != nil) != (len(faults) > 0) {
			t.Errorf("%s: faults %v, the agent: %v", text, faults, err)
		}
	})
}

// FuzzVariableFaults: proxysettings finds a fault in a variable of proxyMetadata exactly where the agent
// does not start.
func FuzzVariableFaults(f *testing.F) {
	names := proxysettings.Variables()
	for i := range names {
		for _, value := range []string{"true", "24", "1h", "0.5", "a.example:443", "istiod:15010", "localhost:15053", "10.0.0.0/8, x", "SYSTEM", "none", "JWT", "{}", `{"a": 1}`, "a/b", "NONE"} {
			f.Add(uint8(i), value)
		}
	}
	f.Fuzz(func(t *testing.T, i uint8, value string) {
		name := names[int(i)%len(names)]
		if strings.ContainsRune(value, 0) || !utf8.ValidString(value) {
			return // no variable and no text of protobuf
		}
		pc := &meshv1alpha1.ProxyConfig{
			DiscoveryAddress: DefaultDiscovery, ProxyAdminPort: 15000, StatusPort: 15020,
			ControlPlaneAuthPolicy: meshv1alpha1.AuthenticationPolicy_MUTUAL_TLS, ProxyMetadata: map[string]string{name: value},
		}
		faults := proxysettings.Faults(pc)
		// The injector makes variables of proxyMetadata. Only the machine knows whether there is a socket of another name.
		served := func(string) (bool, error) { return name == socketVariable, nil }
		_, _, err := Resolve(Input{Environ: append(base(), "ISTIO_META_DNS_CAPTURE=true", name+"="+value), Served: served})
		if (err != nil) != (len(faults) > 0) {
			t.Errorf("%s=%q: faults %v, the agent: %v", name, value, faults, err)
		}
	})
}
