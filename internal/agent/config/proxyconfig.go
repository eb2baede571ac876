package config

import (
	"cmp"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/agent/bootstrap"
	"github.com/meshctl/meshctl/internal/mesh"
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
const maxConcurrency = 1024

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
	uses := []struct {
		port *uint16
		from setting
	}{
		{&cfg.AdminPort, setting{strconv.Itoa(int(pc.GetProxyAdminPort())), "proxyAdminPort of PROXY_CONFIG (or --admin-port)"}},
		{&cfg.StatusPort, setting{strconv.Itoa(int(pc.GetStatusPort())), "statusPort of PROXY_CONFIG (or --status-port)"}},
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

// servers resolves the addresses of control plane and certificate authority, and the names
// that their certificates must hold.
func (r *resolver) servers(cfg *Config, pc *meshv1alpha1.ProxyConfig) {
	if pc.GetControlPlaneAuthPolicy() == meshv1alpha1.AuthenticationPolicy_NONE {
		r.errorf("PROXY_CONFIG: controlPlaneAuthPolicy NONE is not supported: the agent talks to the control plane over TLS only")
	}
	discovery := setting{pc.GetDiscoveryAddress(), "discoveryAddress of PROXY_CONFIG (or --discovery-address)"}
	ca := r.pick("ca-address", r.flags.CAAddress, "CA_ADDR", discovery.value)
	san := r.lookup("ISTIOD_SAN")
	if san != "" && !mesh.IsDNSName(san) {
		r.errorf("ISTIOD_SAN=%q is not a DNS name", san)
	}
	cfg.Discovery, cfg.MoreDiscovery = r.serverList(discovery, san)
	cfg.CA, cfg.MoreCA = cfg.Discovery, cfg.MoreDiscovery
	if ca.value != discovery.value {
		cfg.CA, cfg.MoreCA = r.serverList(ca, "")
	}
	cfg.Direct = r.boolean(setting{cmp.Or(r.flags.NoRelay, "false"), "--no-relay"})
	if cfg.Direct && len(cfg.MoreDiscovery) > 0 {
		r.errorf("%s=%q has several addresses: Envoy itself (--no-relay) connects to one", discovery.from, discovery.value)
	}
	cfg.FollowRoots = r.boolean(setting{cmp.Or(r.lookup(followRoots), "false"), followRoots})
	cfg.Delta = r.boolean(r.pick("delta", r.flags.Delta, "ISTIO_DELTA_XDS", "true"))
}

// followRoots is Istio's variable that enables PCDS; no flag exists.
const followRoots = "PROXY_CONFIG_XDS_AGENT"

func (r *resolver) boolean(s setting) bool {
	v, err := strconv.ParseBool(s.value)
	if err != nil {
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

// serverList resolves a list of addresses that commas separate. Their certificates must hold
// name or, if it is empty, the names of their hosts.
func (r *resolver) serverList(s setting, name string) (first bootstrap.Server, more []bootstrap.Server) {
	for i, addr := range strings.Split(s.value, ",") {
		server := r.server(setting{strings.TrimSpace(addr), s.from})
		server.Name = cmp.Or(name, server.Name)
		if i == 0 {
			first = server
		} else {
			more = append(more, server)
		}
	}
	return first, more
}

func (r *resolver) server(s setting) bootstrap.Server {
	host, portText, err := net.SplitHostPort(s.value)
	if err != nil {
		r.errorf("%s=%q is not host:port", s.from, s.value)
		return bootstrap.Server{}
	}
	port, ok := parsePort(portText)
	if !ok {
		r.errorf("%s=%q: %q is not a port, 1 to 65535", s.from, s.value, portText)
	}
	if port == mesh.PortPlaintextXDS {
		r.errorf("%s=%q is the port without TLS, which would expose the token: use port %d",
			s.from, s.value, mesh.PortSecureXDS)
	}
	_, notIP := netip.ParseAddr(host)
	switch {
	case notIP != nil && !mesh.IsDNSName(host):
		r.errorf("%s=%q: %q is neither a DNS name nor an IP address", s.from, s.value, host)
	case notIP != nil && !strings.Contains(host, "localhost"):
		return bootstrap.Server{Host: host, Port: port, Name: host}
	}
	// Certificates of control planes hold names of services, not addresses.
	return bootstrap.Server{Host: host, Port: port, Name: defaultServerName}
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
	cfg.RuntimeValues = pc.GetRuntimeValues()
	m := pc.GetProxyStatsMatcher()
	cfg.Stats = bootstrap.StatsInclusion{
		Prefixes: m.GetInclusionPrefixes(),
		Suffixes: m.GetInclusionSuffixes(),
		Regexps:  m.GetInclusionRegexps(),
	}
}

// maxStatTags bounds extraStatTags: Envoy compares each new statistic with each tag.
const maxStatTags = 100

// statTags resolves the labels of Envoy's statistics, which PROXY_CONFIG and an annotation of the pod
// set.
func (r *resolver) statTags(cfg *Config, pc *meshv1alpha1.ProxyConfig, annotations map[string]string) {
	add := func(from string, names []string) {
		for _, name := range names {
			name = strings.TrimSpace(name)
			switch {
			case name == "" || slices.Contains(cfg.ExtraStatTags, name):
			case !mesh.IsStatTag(name):
				r.errorf("%s: %q is not the name of a tag: want letters, digits, '_', '-' and '.'", from, name)
			default:
				cfg.ExtraStatTags = append(cfg.ExtraStatTags, name)
			}
		}
	}
	add("extraStatTags of PROXY_CONFIG", pc.GetExtraStatTags())
	add("annotation "+annotationStatTags, strings.Split(annotations[annotationStatTags], ","))
	if n := len(cfg.ExtraStatTags); n > maxStatTags {
		r.errorf("extraStatTags of PROXY_CONFIG and annotation %s have %d tags, want at most %d", annotationStatTags, n, maxStatTags)
	}
}

func (r *resolver) duration(field, flag string, d *durationpb.Duration) time.Duration {
	if err := d.CheckValid(); err != nil || d.AsDuration() < 0 || d.AsDuration() > 24*time.Hour {
		r.errorf("%s of PROXY_CONFIG (or --%s) is not a duration from 0s to 24h", field, flag)
	}
	return d.AsDuration()
}
