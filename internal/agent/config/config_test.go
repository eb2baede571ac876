package config

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/agent/bootstrap"
	"github.com/meshctl/meshctl/internal/agent/probe"
)

// base returns the required settings of an agent.
func base() []string {
	return []string{"POD_NAME=client-1", "POD_NAMESPACE=sample", "SERVICE_ACCOUNT=client", "INSTANCE_IP=10.0.0.9"}
}

func resolve(t *testing.T, flags Flags, environ ...string) Config {
	t.Helper()
	cfg, warnings, err := Resolve(Input{Flags: flags, Environ: append(base(), environ...)})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	return cfg
}

func TestDefaults(t *testing.T) {
	cfg := resolve(t, Flags{})
	istiod := bootstrap.Server{Host: "istiod.istio-system.svc", Port: 15012, Name: "istiod.istio-system.svc"}
	got := map[string]any{
		"node": cfg.Node.String(), "identity": cfg.Identity.String(), "node cluster": cfg.NodeCluster,
		"discovery": cfg.Discovery, "ca": cfg.CA, "roots": cfg.CARootFile, "xds roots": cfg.XDSRootFile, "token": cfg.TokenFile,
		"ttl": cfg.SecretTTL, "grace": cfg.Grace, "jitter": cfg.Jitter, "delta": cfg.Delta,
		"listen": cfg.Listen.String(), "local": cfg.Local.String(),
		"ports": []uint16{cfg.AdminPort, cfg.StatusPort, cfg.ReadyPort, cfg.StatsPort},
		"path":  cfg.ConfigPath, "envoy": cfg.EnvoyPath, "level": cfg.LogLevel, "concurrency": cfg.Concurrency,
		"drain": cfg.Drain, "termination": cfg.TerminationDrain, "socket": cfg.SDSSocket,
	}
	want := map[string]any{
		"node": "sidecar~10.0.0.9~client-1.sample~sample.svc.cluster.local", "identity": "spiffe://cluster.local/ns/sample/sa/client",
		"node cluster": "istio-proxy.sample", "discovery": istiod, "ca": istiod,
		"roots": "./var/run/secrets/istio/root-cert.pem", "xds roots": "", "token": "./var/run/secrets/tokens/istio-token",
		"ttl": 24 * time.Hour, "grace": 0.5, "jitter": 0.01, "delta": true, "listen": "0.0.0.0", "local": "127.0.0.1",
		"ports": []uint16{15000, 15020, 15021, 15090},
		"path":  "./etc/istio/proxy", "envoy": "envoy", "level": "warning", "concurrency": 0,
		"drain": 45 * time.Second, "termination": 5 * time.Second, "socket": "etc/istio/proxy/sds/socket",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPrecedence gives a value in every place that can give it, then takes
// the strongest place away.
func TestPrecedence(t *testing.T) {
	second := time.Second
	for name, tc := range map[string]struct {
		flag  Flags
		env   string
		proxy string // PROXY_CONFIG
		get   func(Config) any
		want  [4]any // by flag, environment, PROXY_CONFIG, default; nil where there is no such place
	}{
		"pod name": {Flags{PodName: "f"}, "POD_NAME=e", "", func(c Config) any { return c.Node.Name }, [4]any{"f", "e", nil, "client-1"}},
		"trust domain": {
			Flags{TrustDomain: "f"},
			"TRUST_DOMAIN=a@b", "proxyMetadata: {TRUST_DOMAIN: p}",
			func(c Config) any { return c.Identity.TrustDomain },
			[4]any{"f", "a.b", "p", "cluster.local"},
		},
		"address": {Flags{InstanceIP: "10.0.0.1"}, "INSTANCE_IP=10.0.0.2", "", func(c Config) any { return c.Node.IP.String() }, [4]any{"10.0.0.1", "10.0.0.2", nil, "10.0.0.9"}},
		"cluster": {
			Flags{ClusterID: "f"},
			"ISTIO_META_CLUSTER_ID=e", "proxyMetadata: {ISTIO_META_CLUSTER_ID: p}",
			func(c Config) any { return string(c.Cluster) + "," + text(c.Metadata["CLUSTER_ID"]) },
			[4]any{"f,f", "e,e", "p,p", ","},
		},
		"network": {
			Flags{Network: "f"},
			"ISTIO_META_NETWORK=e", "proxyMetadata: {ISTIO_META_NETWORK: p}",
			func(c Config) any { return text(c.Metadata["NETWORK"]) },
			[4]any{"f", "e", "p", ""},
		},
		"discovery": {Flags{DiscoveryAddress: "f:1"}, "", "discoveryAddress: p:2", func(c Config) any { return c.Discovery }, [4]any{
			bootstrap.Server{Host: "f", Port: 1, Name: "f"}, nil, bootstrap.Server{Host: "p", Port: 2, Name: "p"}, bootstrap.Server{Host: "istiod.istio-system.svc", Port: 15012, Name: "istiod.istio-system.svc"},
		}},
		"ca": {Flags{CAAddress: "f:1"}, "CA_ADDR=127.0.0.1:2", "discoveryAddress: p:3", func(c Config) any { return c.CA }, [4]any{
			bootstrap.Server{Host: "f", Port: 1, Name: "f"}, bootstrap.Server{Host: "127.0.0.1", Port: 2, Name: "istiod.istio-system.svc"}, bootstrap.Server{Host: "p", Port: 3, Name: "p"}, bootstrap.Server{Host: "istiod.istio-system.svc", Port: 15012, Name: "istiod.istio-system.svc"},
		}},
		"roots":       {Flags{RootCA: "f"}, "CA_ROOT_CA=e", "", func(c Config) any { return c.CARootFile }, [4]any{"f", "e", nil, DefaultRootFile}},
		"xds roots":   {Flags{RootCA: "f"}, "XDS_ROOT_CA=e", "", func(c Config) any { return c.XDSRootFile }, [4]any{"", "e", nil, ""}},
		"admin":       {Flags{AdminPort: 1}, "", "proxyAdminPort: 2", func(c Config) any { return int(c.AdminPort) }, [4]any{1, nil, 2, 15000}},
		"status":      {Flags{StatusPort: 1}, "", "statusPort: 2", func(c Config) any { return int(c.StatusPort) }, [4]any{1, nil, 2, 15020}},
		"readiness":   {Flags{ReadyPort: 1}, "ENVOY_STATUS_PORT=2", "proxyMetadata: {ENVOY_STATUS_PORT: '3'}", func(c Config) any { return int(c.ReadyPort) }, [4]any{1, 2, 3, 15021}},
		"metrics":     {Flags{StatsPort: 1}, "ENVOY_PROMETHEUS_PORT=2", "", func(c Config) any { return int(c.StatsPort) }, [4]any{1, 2, nil, 15090}},
		"concurrency": {Flags{Concurrency: 1}, "", "concurrency: 2", func(c Config) any { return c.Concurrency }, [4]any{1, nil, 2, 0}},
		"cpu limit":   {Flags{Concurrency: 1}, "ISTIO_CPU_LIMIT=3", "", func(c Config) any { return c.Concurrency }, [4]any{1, 3, nil, 0}},
		"delta":       {Flags{Delta: "false"}, "ISTIO_DELTA_XDS=0", "", func(c Config) any { return c.Delta }, [4]any{false, false, nil, true}},
		"path":        {Flags{ConfigPath: "f"}, "", "configPath: p", func(c Config) any { return c.ConfigPath }, [4]any{"f", nil, "p", DefaultConfigPath}},
		"envoy":       {Flags{Envoy: "f"}, "", "binaryPath: p", func(c Config) any { return c.EnvoyPath }, [4]any{"f", nil, "p", "envoy"}},
		"drain":       {Flags{DrainDuration: &second}, "", "drainDuration: 2s", func(c Config) any { return c.Drain }, [4]any{second, nil, 2 * second, 45 * second}},
		"termination": {
			Flags{TerminationDrainDuration: new(time.Duration)},
			"", "terminationDrainDuration: 2s",
			func(c Config) any { return c.TerminationDrain },
			[4]any{time.Duration(0), nil, 2 * second, 5 * second},
		},
		"version": {Flags{}, "ISTIO_META_ISTIO_VERSION=e", "proxyMetadata: {ISTIO_META_ISTIO_VERSION: p}", func(c Config) any { return text(c.Metadata["ISTIO_VERSION"]) }, [4]any{nil, "e", "p", ""}},
		"mesh":    {Flags{}, "ISTIO_META_MESH_ID=e", "meshId: p", func(c Config) any { return text(c.Metadata["MESH_ID"]) }, [4]any{nil, "e", "p", ""}},
		"interception": {
			Flags{},
			"ISTIO_META_INTERCEPTION_MODE=NONE", "interceptionMode: TPROXY",
			func(c Config) any { return text(c.Metadata["INTERCEPTION_MODE"]) },
			[4]any{nil, "NONE", "TPROXY", ""},
		},
		"outlier log": {
			Flags{OutlierLog: "f"},
			"ISTIO_META_OUTLIER_LOG_PATH=e", "proxyMetadata: {ISTIO_META_OUTLIER_LOG_PATH: p}",
			func(c Config) any { return c.OutlierLog + text(c.Metadata["OUTLIER_LOG_PATH"]) },
			[4]any{"ff", "ee", "pp", ""},
		},
		"node cluster": {
			Flags{},
			"ISTIO_META_WORKLOAD_NAME=e", "serviceCluster: p", func(c Config) any { return c.NodeCluster },
			[4]any{nil, nil, "p", "istio-proxy.sample"},
		},
		"no envoy": {Flags{NoEnvoy: "true"}, "DISABLE_ENVOY=1", "proxyMetadata: {DISABLE_ENVOY: 'true'}", func(c Config) any {
			return fmt.Sprint(c.NoEnvoy, " ", c.GRPCBootstrap, " ", c.CertDir)
		}, [4]any{
			"true etc/istio/proxy/grpc-bootstrap.json etc/istio/proxy/certs", "true etc/istio/proxy/grpc-bootstrap.json etc/istio/proxy/certs",
			"true etc/istio/proxy/grpc-bootstrap.json etc/istio/proxy/certs", "false  ",
		}},
		"grpc bootstrap": {Flags{GRPCBootstrap: "f"}, "GRPC_XDS_BOOTSTRAP=e", "", func(c Config) any {
			return c.GRPCBootstrap + " " + c.CertDir
		}, [4]any{"f etc/istio/proxy/certs", "e etc/istio/proxy/certs", nil, " "}},
		"certificates": {Flags{OutputCerts: "f"}, "OUTPUT_CERTS=e", "", func(c Config) any { return c.CertDir }, [4]any{"f", "e", nil, ""}},
		"key exchange": {Flags{KeyExchange: "classic"}, "COMPLIANCE_POLICY=pqc", "proxyMetadata: {COMPLIANCE_POLICY: pqc}", func(c Config) any {
			return fmt.Sprint(c.KeyExchanges)
		}, [4]any{"[X25519 CurveP256 CurveP384]", "[X25519MLKEM768]", "[X25519MLKEM768]", "[]"}},
		"log level": {Flags{LogLevel: "f"}, "", "", func(c Config) any { return c.LogLevel }, [4]any{"f", nil, nil, "warning"}},
	} {
		t.Run(name, func(t *testing.T) {
			for from, want := range tc.want {
				if want == nil {
					continue
				}
				var flags Flags
				var environ []string
				if from == 0 {
					flags = tc.flag
				}
				if from <= 1 && tc.env != "" {
					environ = append(environ, tc.env)
				}
				if from <= 2 && tc.proxy != "" {
					environ = append(environ, "PROXY_CONFIG="+tc.proxy)
				}
				if diff := cmp.Diff(want, tc.get(resolve(t, flags, environ...))); diff != "" {
					t.Errorf("place %d (-want +got):\n%s", from, diff)
				}
			}
		})
	}
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func TestServerNames(t *testing.T) {
	const istiod = "istiod.istio-system.svc"
	for name, tc := range map[string]struct {
		env           []string
		discovery, ca string
	}{
		"name":             {[]string{"PROXY_CONFIG=discoveryAddress: istiod-canary.istio-system.svc:15012"}, "istiod-canary.istio-system.svc", "istiod-canary.istio-system.svc"},
		"localhost":        {[]string{"PROXY_CONFIG=discoveryAddress: localhost:15012"}, istiod, istiod},
		"address":          {[]string{"PROXY_CONFIG=discoveryAddress: '[::1]:15012'"}, istiod, istiod},
		"san":              {[]string{"PROXY_CONFIG=discoveryAddress: 127.0.0.1:15012", "ISTIOD_SAN=san.svc"}, "san.svc", "san.svc"},
		"san is for xds":   {[]string{"CA_ADDR=ca.svc:15012", "ISTIOD_SAN=san.svc"}, "san.svc", "ca.svc"},
		"same ca and san":  {[]string{"CA_ADDR=" + DefaultDiscovery, "ISTIOD_SAN=san.svc"}, "san.svc", "san.svc"},
		"ca by ip address": {[]string{"CA_ADDR=10.0.0.1:15012"}, istiod, istiod},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := resolve(t, Flags{}, tc.env...)
			if cfg.Discovery.Name != tc.discovery || cfg.CA.Name != tc.ca {
				t.Errorf("names %q and %q, want %q and %q", cfg.Discovery.Name, cfg.CA.Name, tc.discovery, tc.ca)
			}
		})
	}
}

func TestAddresses(t *testing.T) {
	addrs := func(list ...string) (out []netip.Addr) {
		for _, a := range list {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	for name, tc := range map[string]struct {
		ip, bind   string
		interfaces []netip.Addr
		want       string // INSTANCE_IPS, listen, local, whether of both IP versions
	}{
		"all":       {"10.0.0.9", "", addrs("127.0.0.1", "10.0.0.9", "fe80::1", "fd00::2"), "10.0.0.9,fd00::2 0.0.0.0 127.0.0.1 true"},
		"found":     {"", "", addrs("127.0.0.1", "10.0.0.7"), "10.0.0.7 0.0.0.0 127.0.0.1 false"},
		"redirect":  {"", "", addrs("127.0.0.1", "::1", "::6", "10.0.0.7"), "10.0.0.7 0.0.0.0 127.0.0.1 false"}, // which adds ::6
		"none":      {"", "", nil, "127.0.0.1 0.0.0.0 127.0.0.1 false"},
		"loopback":  {"", "", addrs("127.0.0.1", "::1"), "127.0.0.1,::1 0.0.0.0 127.0.0.1 true"},
		"only IPv6": {"fd00::3", "", addrs("::1", "fd00::2"), "fd00::3,fd00::2 :: ::1 false"},
		"bound":     {"10.0.0.9", "127.1.0.3", addrs("10.0.0.7"), "10.0.0.9 127.1.0.3 127.1.0.3 false"},
		"both":      {"10.0.0.9,fd00::2", "127.1.0.3", nil, "10.0.0.9,fd00::2 127.1.0.3 127.1.0.3 false"},
		"bind only": {"", "127.1.0.3", addrs("10.0.0.7"), "127.1.0.3 127.1.0.3 127.1.0.3 false"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, _, err := Resolve(Input{Flags: Flags{BindAddress: tc.bind, InstanceIP: tc.ip}, Environ: base()[:3], Interfaces: tc.interfaces})
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(text(cfg.Metadata["INSTANCE_IPS"]), " ", cfg.Listen, " ", cfg.Local, " ", cfg.DualStack); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}
}

// TestSeveralControlPlanes: addresses that commas separate are used in turn, each with the name
// of its host or with ISTIOD_SAN.
func TestSeveralControlPlanes(t *testing.T) {
	in := Input{Environ: append(base(), "PROXY_CONFIG=discoveryAddress: 'a.svc:15012, 10.0.0.1:15012'")}
	cfg, _, err := Resolve(in)
	if err != nil {
		t.Fatal(err)
	}
	first, second := bootstrap.Server{Host: "a.svc", Port: 15012, Name: "a.svc"}, bootstrap.Server{Host: "10.0.0.1", Port: 15012, Name: defaultServerName}
	if diff := cmp.Diff([]any{first, []bootstrap.Server{second}, first, []bootstrap.Server{second}}, []any{cfg.Discovery, cfg.MoreDiscovery, cfg.CA, cfg.MoreCA}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	in.Flags.NoRelay = "true"
	if _, _, err := Resolve(in); err == nil || !strings.Contains(err.Error(), "--no-relay") {
		t.Errorf("several addresses without a relay: %v", err)
	}
	in.Flags.NoRelay, in.Environ = "", append(in.Environ, "ISTIOD_SAN=x.svc", "CA_ADDR=ca.svc:1")
	if cfg, _, err = Resolve(in); err != nil || cfg.MoreDiscovery[0].Name != "x.svc" || cfg.CA.Name != "ca.svc" || cfg.MoreCA != nil {
		t.Errorf("with ISTIOD_SAN: %+v, %+v, %v", cfg.MoreDiscovery, cfg.CA, err)
	}
}

func TestMetadata(t *testing.T) {
	cfg, warnings, err := Resolve(Input{
		Environ: append(base(),
			"ISTIO_META_WORKLOAD_NAME=client", "ISTIO_META_CLUSTER_ID=cluster1", "ISTIO_META_REQUESTED_NETWORK_VIEW=n1,n2",
			`ISTIO_METAJSON_EXTRA={"A":"1","B":[true,2]}`, `ISTIO_METAJSON_LABELS={"version":"v2","pod-template-hash":"x"}`,
			"PROXY_CONFIG=\nproxyMetadata:\n  ISTIO_META_CLUSTER_ID: other\n  ISTIO_META_MORE: more\nconcurrency: 2\n",
			"ISTIO_META_EMPTY=", "UNRELATED=1"),
		PodLabels: []byte("app=\"client\"\nversion=\"v1\"\nquote=\"a \\\"b\\\"\"\n"),
		Version:   "v1.4.0",
	})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	want := map[string]any{
		"INSTANCE_IPS": "10.0.0.9", "NAME": "client-1", "NAMESPACE": "sample", "SERVICE_ACCOUNT": "client",
		"PILOT_SAN": []any{"istiod.istio-system.svc"}, "ENVOY_STATUS_PORT": 15021, "ENVOY_PROMETHEUS_PORT": 15090,
		"LABELS":        map[string]any{"app": "client", "version": "v2", "quote": `a "b"`},
		"STATIC_LABELS": map[string]any{"version": "v2", "pod-template-hash": "x"},
		"WORKLOAD_NAME": "client", "CLUSTER_ID": "cluster1", "REQUESTED_NETWORK_VIEW": "n1,n2", "MORE": "more", "MESHCTL_METRICS": "true", "MESHCTL_RELAY": "true", "MESHCTL_VIRTUAL_HOSTS": "true",
		"ENVOY_SKIP_DEPRECATED_LOGS": "true", "METADATA_DISCOVERY": "false", "WORKLOAD_IDENTITY_SOCKET_FILE": "socket",
		"A": "1", "B": []any{true, 2.0}, "ISTIO_VERSION": "meshctl-v1.4.0",
		"PROXY_CONFIG": map[string]any{
			"configPath": "./etc/istio/proxy", "serviceCluster": "istio-proxy",
			"statNameLength": 189.0, "drainDuration": "45s", "terminationDrainDuration": "5s",
			"discoveryAddress": "istiod.istio-system.svc:15012", "proxyAdminPort": 15000.0, "statusPort": 15020.0,
			"controlPlaneAuthPolicy": "MUTUAL_TLS", "concurrency": 2.0,
			"proxyMetadata": map[string]any{"ISTIO_META_CLUSTER_ID": "other", "ISTIO_META_MORE": "more"},
		},
	}
	if diff := cmp.Diff(want, cfg.Metadata); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if cfg.NodeCluster != "client.sample" {
		t.Errorf("node cluster %q", cfg.NodeCluster)
	}
	if cfg.Cluster != "cluster1" {
		t.Errorf("cluster %q", cfg.Cluster)
	}
}

func TestResolveRefuses(t *testing.T) {
	day := 48 * time.Hour
	for name, tc := range map[string]struct {
		flags Flags
		env   string
		want  string
	}{
		"type":               {Flags{Type: "waypoint"}, "", `--type="waypoint"`},
		"pod name":           {Flags{}, "POD_NAME=A_b", `POD_NAME="A_b"`},
		"namespace":          {Flags{PodNamespace: "a.b"}, "", `--pod-namespace="a.b"`},
		"account":            {Flags{}, "SERVICE_ACCOUNT=..", `SERVICE_ACCOUNT=".."`},
		"trust domain":       {Flags{}, "TRUST_DOMAIN=UP", `TRUST_DOMAIN="UP"`},
		"address":            {Flags{}, "INSTANCE_IP=pod", `INSTANCE_IP="pod"`},
		"zone":               {Flags{InstanceIP: "fe80::1%eth0"}, "", "--instance-ip"},
		"bind":               {Flags{BindAddress: "0.0.0.0"}, "", "--bind-address=0.0.0.0: want one address"},
		"port":               {Flags{}, "ENVOY_STATUS_PORT=abc", `ENVOY_STATUS_PORT="abc"`},
		"port too large":     {Flags{AdminPort: 1 << 40}, "", "--admin-port"},
		"negative port":      {Flags{StatusPort: -1}, "", "--status-port"},
		"ports clash":        {Flags{AdminPort: 15021}, "", "are both 15021"},
		"discovery":          {Flags{DiscoveryAddress: "istiod"}, "", `"istiod" is not host:port`},
		"discovery name":     {Flags{DiscoveryAddress: "a b:1"}, "", `"a b" is neither a DNS name nor`},
		"plaintext":          {Flags{}, "CA_ADDR=istiod:15010", "CA_ADDR"},
		"no tls":             {Flags{}, "PROXY_CONFIG=controlPlaneAuthPolicy: NONE", "controlPlaneAuthPolicy"},
		"san":                {Flags{}, "ISTIOD_SAN=a b", `ISTIOD_SAN="a b"`},
		"key exchange":       {Flags{KeyExchange: "rsa"}, "", `--tls-key-exchange="rsa"`},
		"delta":              {Flags{}, "ISTIO_DELTA_XDS=maybe", `ISTIO_DELTA_XDS="maybe"`},
		"no envoy":           {Flags{}, "DISABLE_ENVOY=maybe", `DISABLE_ENVOY="maybe"`},
		"gateway, no envoy":  {Flags{Type: "router", NoEnvoy: "true"}, "", "--no-envoy"},
		"roots":              {Flags{}, "PROXY_CONFIG_XDS_AGENT=maybe", `PROXY_CONFIG_XDS_AGENT="maybe"`},
		"patches":            {Flags{}, "BOOTSTRAP_XDS_AGENT=maybe", `BOOTSTRAP_XDS_AGENT="maybe"`},
		"ttl":                {Flags{}, "SECRET_TTL=1ms", `SECRET_TTL="1ms"`},
		"ratio":              {Flags{}, "SECRET_GRACE_PERIOD_RATIO=NaN", "SECRET_GRACE_PERIOD_RATIO"},
		"jitter":             {Flags{}, "SECRET_GRACE_PERIOD_RATIO_JITTER=2", "SECRET_GRACE_PERIOD_RATIO_JITTER"},
		"system roots":       {Flags{}, "XDS_ROOT_CA=SYSTEM", "XDS_ROOT_CA"},
		"proxy config":       {Flags{}, "PROXY_CONFIG={", "PROXY_CONFIG"},
		"proxy config type":  {Flags{}, "PROXY_CONFIG=statusPort: many", "PROXY_CONFIG"},
		"concurrency":        {Flags{Concurrency: -3}, "", "--concurrency"},
		"drain":              {Flags{DrainDuration: &day}, "", "--drain-duration"},
		"interception":       {Flags{}, "ISTIO_META_INTERCEPTION_MODE=ALL", `ISTIO_META_INTERCEPTION_MODE="ALL"`},
		"metadata":           {Flags{}, "ISTIO_METAJSON_X=[1]", "ISTIO_METAJSON_X"},
		"labels":             {Flags{}, `ISTIO_METAJSON_LABELS={"a":1}`, "ISTIO_METAJSON_LABELS"},
		"contradiction":      {Flags{}, "ISTIO_META_NAMESPACE=other", "ISTIO_META_NAMESPACE"},
		"deep contradiction": {Flags{}, `ISTIO_METAJSON_X={"LABELS":{"a":"b"}}`, "ISTIO_METAJSON_X"},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, err := Resolve(Input{Flags: tc.flags, Environ: append(base(), tc.env)})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	t.Run("nothing", func(t *testing.T) {
		_, _, err := Resolve(Input{})
		for _, name := range []string{"POD_NAME", "POD_NAMESPACE", "SERVICE_ACCOUNT"} {
			if err == nil || !strings.Contains(err.Error(), name+" (or --") {
				t.Errorf("got %v, want %s named", err, name)
			}
		}
	})
	t.Run("label file", func(t *testing.T) {
		_, _, err := Resolve(Input{Environ: base(), PodLabels: []byte("a=\"b\"\nbroken\n")})
		if err == nil || !strings.Contains(err.Error(), "labels:2") {
			t.Errorf("got %v, want the line named", err)
		}
	})
}

func TestProxyConfigWarnings(t *testing.T) {
	_, warnings, err := Resolve(Input{Environ: append(base(), `PROXY_CONFIG=
newField: 1
tracing: {zipkin: {address: "a:1", color: red}}
proxyMetadata: {ANY: thing}
runtimeValues: {any.key: "1"}
proxy_admin_port: 15001
image: {imageType: distroless}
`)})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"PROXY_CONFIG: field newField is not known and has no effect",
		"PROXY_CONFIG: field tracing.zipkin.color is not known and has no effect",
		"PROXY_CONFIG: field image has no effect here: the image of the proxy has one variant",
		"PROXY_CONFIG: field tracing.zipkin has no effect here: use Telemetry and extensionProviders of the mesh configuration",
	}
	if diff := cmp.Diff(want, warnings); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestProbe reads the defaults of a probe and all that may be set.
func TestProbe(t *testing.T) {
	entry := "ISTIO_META_WORKLOAD_ENTRY=vm-1"
	cfg := resolve(t, Flags{}, entry, "PROXY_CONFIG=readinessProbe: {tcpSocket: {port: 1}}")
	if cfg.Metadata["WORKLOAD_ENTRY"] != "vm-1" {
		t.Errorf("metadata %v", cfg.Metadata)
	}
	numbers := func(p *probe.Config) string {
		return fmt.Sprint(p.InitialDelay, p.Timeout, p.Period, p.SuccessThreshold, p.FailureThreshold)
	}
	if got, want := numbers(cfg.Probe), "0s 1s 10s 1 3"; got != want {
		t.Errorf("defaults %s, want %s", got, want)
	}
	cfg = resolve(t, Flags{}, "ISTIO_META_AUTO_REGISTER_GROUP=vm", "PROXY_CONFIG=readinessProbe: {exec: {command: [a]}, "+
		"initialDelaySeconds: 1, timeoutSeconds: 2, periodSeconds: 3, successThreshold: 4, failureThreshold: 5}")
	if got, want := numbers(cfg.Probe), "1s 2s 3s 4 5"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for text, want := range map[string]string{
		"httpGet: {port: 1}": "GET http://127.77.0.10:1/: ",
		"httpGet: {port: 1, path: 'ready?a=b', scheme: HTTPS, host: '127.77.0.11', httpHeaders: [{name: a, value: b}]}": "GET https://127.77.0.11:1/ready: ",
		"tcpSocket: {port: 1}":                      "connect to 127.77.0.10:1: ",
		"tcpSocket: {port: 1, host: '127.77.0.11'}": "connect to 127.77.0.11:1: ",
		"grpc: {port: 1, service: x}":               `gRPC health of "x" at 127.77.0.10:1: `,
		"exec: {command: [/no/program, a]}":         "run /no/program: ",
	} {
		cfg := resolve(t, Flags{InstanceIP: "127.77.0.10"}, entry, "PROXY_CONFIG=readinessProbe: {"+text+"}")
		if err := cfg.Probe.Check(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	cfg, warnings, err := Resolve(Input{Environ: append(base(), "PROXY_CONFIG=readinessProbe: {tcpSocket: {port: 1}}")})
	if err != nil || cfg.Probe != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "ISTIO_META_WORKLOAD_ENTRY") {
		t.Errorf("without an entry: %v, %q, %v", cfg.Probe, warnings, err)
	}
}

func TestProbeRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"{}":                                  "want httpGet, tcpSocket, grpc or exec",
		"{tcpSocket: {}}":                     "tcpSocket.port of readinessProbe of PROXY_CONFIG is 0, want 1 to 65535",
		"{grpc: {port: 65536}}":               "grpc.port of readinessProbe of PROXY_CONFIG is 65536",
		"{tcpSocket: {port: 1, host: 'a b'}}": `tcpSocket.host of readinessProbe of PROXY_CONFIG is "a b"`,
		"{exec: {}}":                          "exec.command of readinessProbe of PROXY_CONFIG names no program",
		"{httpGet: {}}":                       "httpGet.port",
		"{httpGet: {port: 1, scheme: ftp}}":   `httpGet.scheme of readinessProbe of PROXY_CONFIG is "ftp", want HTTP or HTTPS`,
		"{httpGet: {port: 1, path: '/%zz'}}":  "httpGet.path",
		"{httpGet: {port: 1, path: '//a/b'}}": "httpGet.path",
		"{httpGet: {port: 1, httpHeaders: [{name: 'a b'}]}}":            `"a b" is not the name of a header`,
		`{httpGet: {port: 1, httpHeaders: [{name: a, value: "x\ny"}]}}`: "the value of a has characters",
		"{httpGet: {port: 1}, exec: {command: [a]}}":                    "PROXY_CONFIG",
		"{tcpSocket: {port: 1}, periodSeconds: -1}":                     "periodSeconds of readinessProbe of PROXY_CONFIG is -1, want 0 (for the default, 10) to 86400",
		"{tcpSocket: {port: 1}, failureThreshold: 1001}":                "failureThreshold",
		"{tcpSocket: {port: 1}, timeoutSeconds: 86401}":                 "timeoutSeconds",
		"{tcpSocket: {port: 1}, initialDelaySeconds: -1}":               "initialDelaySeconds",
		"{tcpSocket: {port: 1}, successThreshold: -1}":                  "successThreshold",
	} {
		_, _, err := Resolve(Input{Environ: append(base(), "PROXY_CONFIG=readinessProbe: "+text)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func FuzzResolve(f *testing.F) {
	f.Add("concurrency: 2\ntracing: {zipkin: {address: a}}", `{"a":"b"}`, []byte("a=\"b\""))
	f.Add("readinessProbe: {httpGet: {port: 80, path: /x, httpHeaders: [{name: a}]}}", `{"WORKLOAD_ENTRY":"a"}`, []byte(""))
	f.Add("[]", "null", []byte("=\n"))
	f.Add("proxyMetadata: 3", `{"LABELS":{}}`, []byte(`x="\q"`))
	f.Fuzz(func(t *testing.T, proxyConfig, meta string, labels []byte) {
		cfg, _, err := Resolve(Input{
			Environ:   append(base(), "PROXY_CONFIG="+proxyConfig, "ISTIO_METAJSON_X="+meta, "ISTIO_META_Y="+meta),
			PodLabels: labels,
		})
		if err != nil {
			return
		}
		if _, err := bootstrap.Marshal(cfg.Config); err != nil {
			t.Logf("a configuration without a bootstrap: %v", err)
		}
	})
}

// TestBootstrapPatches: the variable, also in proxyMetadata, makes the agent request patches of the
// bootstrap that it writes.
func TestBootstrapPatches(t *testing.T) {
	const on = "BOOTSTRAP_XDS_AGENT=true"
	for name, tc := range map[string]struct {
		environ []string
		want    bool
		warning string
	}{
		"default":        {nil, false, ""},
		"off":            {[]string{"BOOTSTRAP_XDS_AGENT=false"}, false, ""},
		"on":             {[]string{on}, true, ""},
		"proxy metadata": {[]string{"PROXY_CONFIG={proxyMetadata: {BOOTSTRAP_XDS_AGENT: 'true'}}"}, true, ""},
		"no Envoy":       {[]string{on, "DISABLE_ENVOY=true"}, false, "BOOTSTRAP_XDS_AGENT has no effect here: the agent starts no Envoy"},
		"own file":       {[]string{on, "PROXY_CONFIG={customConfigFile: /etc/custom.yaml}"}, false, "BOOTSTRAP_XDS_AGENT has no effect here: Envoy starts with customConfigFile"},
	} {
		cfg, warnings, err := Resolve(Input{Environ: append(base(), tc.environ...)})
		if err != nil || cfg.PatchesBootstrap != tc.want || len(warnings) > 0 != (tc.warning != "") || !strings.Contains(strings.Join(warnings, ""), tc.warning) {
			t.Errorf("%s: requests patches: %v, warnings %q, error %v", name, cfg.PatchesBootstrap, warnings, err)
		}
	}
}

// TestOverrideOfTheAdminAddress: the agent keeps the address of the admin interface, and says so.
func TestOverrideOfTheAdminAddress(t *testing.T) {
	for override, want := range map[string]int{
		"admin: {address: {socket_address: {address: 127.0.0.1, port_value: 1}}}": 1,
		`{"admin": {"address": {"pipe": {"path": "/x"}}}}`:                        1,
		"admin: {ignoreGlobalConnLimit: true}":                                    0,
		"admin: {address: }":                                                      0,
		"":                                                                        0,
	} {
		_, warnings, err := Resolve(Input{Environ: append(base(), "ISTIO_BOOTSTRAP_OVERRIDE=/file"), BootstrapOverride: []byte(override)})
		if err != nil || len(warnings) != want || want > 0 && !strings.Contains(warnings[0], "admin.address of ISTIO_BOOTSTRAP_OVERRIDE has no effect") {
			t.Errorf("%s: warnings %q, %v", override, warnings, err)
		}
	}
}
