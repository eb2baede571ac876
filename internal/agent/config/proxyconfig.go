package config

import (
	"cmp"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/agent/bootstrap"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxysettings"
)

// anonymousCluster is Istio's default of serviceCluster.
const anonymousCluster = "istio-proxy"

func (r *resolver) overlayFlags(pc *meshv1alpha1.ProxyConfig) {
	f := r.flags
	pc.ProxyAdminPort = cmp.Or(int32(clampPort(f.AdminPort)), pc.GetProxyAdminPort())
	pc.StatusPort = cmp.Or(int32(clampPort(f.StatusPort)), pc.GetStatusPort())
	pc.DiscoveryAddress = cmp.Or(f.DiscoveryAddress, pc.GetDiscoveryAddress())
	pc.ConfigPath = cmp.Or(f.ConfigPath, pc.GetConfigPath())
	if f.ServiceCluster != "" && f.ServiceCluster != anonymousCluster {
		pc.ClusterName = &meshv1alpha1.ProxyConfig_ServiceCluster{ServiceCluster: f.ServiceCluster}
	}
	pc.BinaryPath = cmp.Or(f.Envoy, pc.GetBinaryPath())
	if f.Concurrency != 0 {
		pc.Concurrency = wrapperspb.Int32(int32(min(max(f.Concurrency, -1), maxConcurrency+1)))
	}
	if f.DrainDuration != nil {
		pc.DrainDuration = durationpb.New(*f.DrainDuration)
	}
	if f.TerminationDrainDuration != nil {
		pc.TerminationDrainDuration = durationpb.New(*f.TerminationDrainDuration)
	}
}

// maxConcurrency bounds the worker threads: larger numbers are mistakes.
const maxConcurrency = proxysettings.MaxConcurrency

// clampPort fits a port into 32 bits; an invalid port stays invalid.
func clampPort(port int) int { return min(max(port, -1), 1<<16) }

func (r *resolver) ports(cfg *Config, pc *meshv1alpha1.ProxyConfig) {
	f := r.flags
	number := func(flag int, variable, name string, def int) setting {
		value := ""
		if flag != 0 {
			value = strconv.Itoa(flag)
		}
		return r.pick(name, value, variable, strconv.Itoa(def))
	}
	cfg.StatusAddress = cfg.Listen
	status := int(pc.GetStatusPort())
	if status == 0 { // no status for others
		status, cfg.StatusAddress = mesh.PortAgentStatus, cfg.Local
	}
	uses := []struct {
		port *uint16
		from setting
	}{
		{&cfg.AdminPort, setting{strconv.Itoa(int(pc.GetProxyAdminPort())), "proxyAdminPort of PROXY_CONFIG (or --admin-port)"}},
		{&cfg.StatusPort, setting{strconv.Itoa(status), "statusPort of PROXY_CONFIG (or --status-port)"}},
		{&cfg.ReadyPort, number(f.ReadyPort, "ENVOY_STATUS_PORT", "readiness-port", mesh.PortEnvoyReadiness)},
		{&cfg.StatsPort, number(f.StatsPort, "ENVOY_PROMETHEUS_PORT", "prometheus-port", mesh.PortEnvoyPrometheus)},
	}
	taken := map[uint16]string{}
	for _, u := range uses {
		port, ok := parsePort(u.from.value)
		if !ok {
			r.errorf("%s=%q is not a port, 1 to 65535", u.from.from, u.from.value)
			continue
		}
		if other, clash := taken[port]; clash {
			r.errorf("%s and %s are both %d: each needs a port of its own", other, u.from.from, port)
		}
		taken[port] = u.from.from
		*u.port = port
	}
}

func parsePort(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && n > 0
}

func (r *resolver) boolean(s setting) bool {
	v, err := strconv.ParseBool(s.value)
	if err != nil && !s.isReported() {
		r.errorf("%s=%q is neither true nor false", s.from, s.value)
	}
	return v
}

// proxyless resolves the files of applications that need no Envoy.
func (r *resolver) proxyless(cfg *Config) {
	cfg.NoEnvoy = r.boolean(r.pick("no-envoy", r.flags.NoEnvoy, "DISABLE_ENVOY", "false"))
	if cfg.NoEnvoy && cfg.Node.Type == mesh.Router {
		r.errorf("--no-envoy (or DISABLE_ENVOY) is for applications; a %s is an Envoy", mesh.Router)
	}
	file := ""
	if cfg.NoEnvoy {
		file = filepath.Join(cfg.ConfigPath, "grpc-bootstrap.json")
	}
	cfg.GRPCBootstrap = r.pick("grpc-bootstrap", r.flags.GRPCBootstrap, "GRPC_XDS_BOOTSTRAP", file).value
	dir := ""
	if cfg.GRPCBootstrap != "" {
		dir = filepath.Join(cfg.ConfigPath, "certs")
	}
	cfg.CertDir = r.pick("output-certs", r.flags.OutputCerts, "OUTPUT_CERTS", dir).value
}

func (r *resolver) envoy(cfg *Config, pc *meshv1alpha1.ProxyConfig) {
	cfg.ConfigPath = pc.GetConfigPath()
	cfg.SDSSocket = filepath.Join(cfg.ConfigPath, "sds", "socket")
	cfg.XDSSocket = filepath.Join(cfg.ConfigPath, "XDS")
	cfg.InPod = r.lookup("KUBERNETES_SERVICE_HOST") != ""
	cfg.CustomConfigFile = pc.GetCustomConfigFile()
	if cfg.CustomConfigFile != "" && r.lookup(overrideVariable) != "" {
		r.errorf("customConfigFile of PROXY_CONFIG and %s are both set: the agent merges nothing into another bootstrap", overrideVariable)
	}
	cfg.EnvoyPath = cmp.Or(pc.GetBinaryPath(), "envoy")
	cfg.Concurrency = int(pc.GetConcurrency().GetValue())
	if cfg.Concurrency < 0 || cfg.Concurrency > maxConcurrency {
		r.errorf("concurrency of PROXY_CONFIG (or --concurrency) is %d, want 0 (one thread a core) to %d", cfg.Concurrency, maxConcurrency)
	}
	cfg.Drain = r.duration("drainDuration", "drain-duration", pc.GetDrainDuration())
	cfg.TerminationDrain = r.duration("terminationDrainDuration", "termination-drain-duration", pc.GetTerminationDrainDuration())
	cfg.LogLevel = cmp.Or(r.flags.LogLevel, DefaultLogLevel)
	cfg.FileFlushInterval, cfg.FileFlushMinKB = time.Second, pc.GetFileFlushMinSizeKb()
	if d := pc.GetFileFlushInterval(); d != nil {
		cfg.FileFlushInterval = r.duration("fileFlushInterval", "", d)
	}
	cfg.DeprecatedLogs = !r.boolean(setting{cmp.Or(r.lookup(skipDeprecatedLogs), "true"), skipDeprecatedLogs})
	cfg.RuntimeValues = pc.GetRuntimeValues()
	m := pc.GetProxyStatsMatcher()
	cfg.Stats = bootstrap.StatsInclusion{
		Prefixes: m.GetInclusionPrefixes(),
		Suffixes: m.GetInclusionSuffixes(),
		Regexps:  m.GetInclusionRegexps(),
	}
}

// skipDeprecatedLogs is Istio's variable that turns off warnings about deprecated fields.
const skipDeprecatedLogs = "ENVOY_SKIP_DEPRECATED_LOGS"

func (r *resolver) duration(field, flag string, d *durationpb.Duration) time.Duration {
	if err := d.CheckValid(); err != nil || d.AsDuration() < 0 || d.AsDuration() > 24*time.Hour {
		r.errorf("%s of PROXY_CONFIG (or --%s) is not a duration from 0s to 24h", field, flag)
	}
	return d.AsDuration()
}
