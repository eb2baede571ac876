// Package config resolves the configuration of an agent from flags, the environment that
// Istio's agent reads, and PROXY_CONFIG.
package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/agent/bootstrap"
	"github.com/meshctl/meshctl/internal/agent/probe"
	"github.com/meshctl/meshctl/internal/agent/wasm"
	"github.com/meshctl/meshctl/internal/agent/workloadcert"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxysettings"
)

// Config is the checked configuration of an agent.
type Config struct {
	// Config is for Envoy's bootstrap. KeyExchanges and XDSRootFile also hold for the agent
	// and for applications.
	bootstrap.Config

	// Version is the version of meshctl, empty when it is not known.
	Version  string
	Identity mesh.Identity
	Cluster  mesh.ClusterID
	CA       bootstrap.Server
	// MoreDiscovery and MoreCA are further addresses of the control plane and of the
	// certificate authority, used in turn when one is unavailable.
	MoreDiscovery, MoreCA []bootstrap.Server
	// CARootFile holds the roots of the certificate authority, PEM. It may be empty with a
	// WorkloadSocket, which has roots, too.
	CARootFile string
	// CRLFile holds revocation lists, PEM. While it does not exist, the lists come from the
	// control plane.
	CRLFile   string
	TokenFile string
	SecretTTL time.Duration
	// CertFiles, if set, hold the certificate of the workload, which is then not requested.
	// ProvisionedFiles hold a certificate that proves the identity in the first request.
	CertFiles, ProvisionedFiles *workloadcert.Files
	// Grace is the share of a certificate's lifetime that is left at renewal, plus or minus
	// Jitter.
	Grace, Jitter float64

	// StatusAddress is where the agent serves its status: Listen, or Local if others get none.
	StatusAddress netip.Addr

	ConfigPath, EnvoyPath string
	// CustomConfigFile is the user's bootstrap of Envoy; the agent then writes none.
	CustomConfigFile string
	// InPod means that the agent runs in a pod, where no other user can reach its volumes.
	InPod    bool
	LogLevel string
	// Concurrency is the number of Envoy's worker threads; 0 means one for each core.
	Concurrency int
	// DeprecatedLogs makes Envoy log warnings about deprecated fields.
	DeprecatedLogs bool
	// Drain is the time that Envoy takes to drain a changed listener. TerminationDrain is the
	// time that connections may go on after SIGTERM.
	Drain, TerminationDrain time.Duration
	// FileFlushInterval is the interval at which Envoy writes access logs, and FileFlushMinKB
	// the size from which it writes them before, in KiB; 0 means Envoy's.
	FileFlushInterval time.Duration
	FileFlushMinKB    uint32
	// ExitOnZeroConnections ends the drain when no connection is left, but not before
	// MinimumDrain, instead of after TerminationDrain.
	ExitOnZeroConnections bool
	MinimumDrain          time.Duration
	// PatchesBootstrap requests patches of the bootstrap at the control plane before Envoy starts.
	PatchesBootstrap bool
	// FollowRoots subscribes to the roots of the mesh at the control plane.
	FollowRoots bool
	// Probe checks the application, whose health is reported to the control plane; nil is
	// for none.
	Probe *probe.Config
	// DNS configures the DNS server of the agent; nil is for none.
	DNS *DNS
	// KubeletProbes are the probes of the application that the agent answers, by path.
	KubeletProbes map[string]probe.Kubelet
	// Scrapes are the URLs of the application's metrics, which the agent merges with its own
	// and Envoy's.
	Scrapes []url.URL
	// LocalMetrics answers requests for metrics only to processes of this pod or machine.
	LocalMetrics bool
	// Modules configures how the modules of WasmPlugins are fetched, but for Now; nil fetches
	// none.
	Modules *wasm.Config
	// STS configures the exchange of tokens; nil is for none.
	STS *STS
	// NoEnvoy runs no Envoy: applications are xDS clients themselves.
	NoEnvoy bool
	// GRPCBootstrap is the path of the gRPC bootstrap of applications, and CertDir the
	// directory of their certificate files. Empty writes none.
	GRPCBootstrap, CertDir string
}

// Flags are the values of the command line. A zero value or nil is a flag not given.
type Flags struct {
	Type                                            string
	PodName, PodNamespace, InstanceIP               string
	ServiceAccount, TrustDomain, ClusterID, Network string
	Domain, ServiceCluster                          string
	DiscoveryAddress, CAAddress                     string
	CAName                                          string // in the certificate of CAAddress, if not that of its host
	RootCA, CRL, Token                              string
	KeyExchange                                     string
	ConfigPath, Envoy                               string
	BindAddress                                     string
	AdminPort, StatusPort, ReadyPort, StatsPort     int
	Concurrency                                     int
	Delta                                           string // a boolean
	NoEnvoy, NoRelay                                string // booleans
	DNSForwardParallel                              string // a boolean
	GRPCBootstrap, OutputCerts                      string
	DrainDuration, TerminationDrainDuration         *time.Duration
	LogLevel, OutlierLog                            string
	STSPort                                         int
	STSEndpoint, STSRootCA, STSFile                 string
}

// Input is the input of Resolve.
type Input struct {
	Flags Flags
	// Environ holds NAME=value, as os.Environ does.
	Environ []string
	// PodLabels is the content of the file with the pod's labels, nil when there is none.
	PodLabels []byte
	// PodAnnotations is the content of the file with the pod's annotations, nil when there is
	// none.
	PodAnnotations []byte
	// MeshConfig is the content of the mesh file, and BootstrapOverride the content of the file of
	// BootstrapOverrideFile; nil when there is none.
	MeshConfig, BootstrapOverride []byte
	// Interfaces are the addresses of this machine.
	Interfaces []netip.Addr
	// Exists reports whether a file exists, and Served whether a process serves the Unix socket at
	// a path; an error means that there is something that cannot be used. Nil means that there are
	// none.
	Exists func(path string) bool
	Served func(path string) (bool, error)
	// CPULimit is the number of processors that the agent and Envoy may use, and MemoryLimit
	// their memory in bytes; 0 means no limit.
	CPULimit    int
	MemoryLimit uint64
	// NoNetAdmin means that Envoy will not have the capability NET_ADMIN.
	NoNetAdmin bool
	// Version is the version of meshctl, empty when it is not known.
	Version string
}

// Defaults of Istio's agent. Paths are relative to the working directory, which is / in a
// container.
const (
	DefaultTokenFile          = "./var/run/secrets/tokens/istio-token"
	DefaultRootFile           = "./var/run/secrets/istio/root-cert.pem"
	DefaultCRLFile            = "./var/run/secrets/istio/crl/ca-crl.pem"
	DefaultConfigPath         = "./etc/istio/proxy"
	DefaultPodLabelsFile      = "./etc/istio/pod/labels"
	DefaultPodAnnotationsFile = "./etc/istio/pod/annotations"
	DefaultMeshConfigFile     = "./etc/istio/config/mesh"
	DefaultDiscovery          = "istiod.istio-system.svc:15012"

	defaultServerName = "istiod." + mesh.DefaultSystemNamespace + ".svc"
	DefaultLogLevel   = "warning"
	defaultSecretTTL  = 24 * time.Hour
	defaultGrace      = 0.5
	defaultJitter     = 0.01
)

// Resolve returns the configuration. Flags override the environment that Istio's agent reads,
// which overrides the pod's annotations, PROXY_CONFIG and the mesh file, which override defaults. The error lists all problems, each
// with the name of its variable; warnings list settings without effect.
func Resolve(in Input) (cfg Config, warnings []string, err error) {
	r := &resolver{flags: in.Flags, version: in.Version, environ: in.Environ, env: environment(in.Environ)}
	annotations := r.podFile(DefaultPodAnnotationsFile, in.PodAnnotations)
	pc := r.proxyConfig(in.MeshConfig, annotations)
	r.metadata = pc.GetProxyMetadata()
	cfg.Version = in.Version

	r.variables()
	r.identity(&cfg)
	r.addresses(&cfg, in.Interfaces)
	r.ports(&cfg, pc)
	r.servers(&cfg, pc)
	r.secrets(&cfg)
	r.keyExchange(&cfg)
	r.envoy(&cfg, pc)
	r.statTags(&cfg, pc, annotations)
	envoyResources(&cfg, pc, &in)
	r.lifecycle(&cfg)
	r.proxyless(&cfg)
	r.identitySource(&cfg, &in)
	r.certProvider(&cfg)
	r.sts(&cfg)
	r.modules(&cfg)
	r.nodeMetadata(&cfg, pc, in.PodLabels, annotations)
	if in.NoNetAdmin && cfg.Metadata["INTERCEPTION_MODE"] == "TPROXY" {
		r.warnf("interception mode TPROXY: Envoy needs the capability NET_ADMIN to take inbound connections, and does not have it: run the proxy as root with NET_ADMIN")
	}
	r.override(&cfg, in.BootstrapOverride)
	r.bootstrapPatches(&cfg)
	r.unused()
	r.dns(&cfg)
	r.probe(&cfg, pc.GetReadinessProbe())
	r.kubeletProbes(&cfg)
	r.scrapes(&cfg, annotations)
	return cfg, r.warnings, errors.Join(r.errs...)
}

// resolver collects errors and warnings while a configuration is resolved.
type resolver struct {
	flags    Flags
	version  string
	environ  []string
	env      map[string]string // of environ
	metadata map[string]string // ProxyConfig.proxyMetadata: more environment
	warnings []string
	errs     []error
}

func (r *resolver) errorf(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

func (r *resolver) warnf(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// setting is a value and the name of its flag, variable or field.
type setting struct{ value, from string }

// pick returns the value of the flag, else of the variable, else the default.
func (r *resolver) pick(flag, value, variable, def string) setting {
	if value != "" {
		return setting{value, "--" + flag}
	}
	if v := r.lookup(variable); v != "" {
		return setting{v, variable}
	}
	return setting{def, variable + " (or --" + flag + ")"}
}

func (r *resolver) lookup(variable string) string {
	if v := r.env[variable]; v != "" {
		return v
	}
	return r.metadata[variable]
}

// variables reports the values of environment variables with which no agent starts.
func (r *resolver) variables() {
	for _, name := range proxysettings.Variables() {
		value := r.lookup(name)
		if err := proxysettings.VariableFault(name, value); err != nil {
			r.errorf("%s=%q %w", name, value, err)
		}
	}
}

// isReported reports whether variables has found the value of a setting to be wrong.
func (s setting) isReported() bool { return proxysettings.VariableFault(s.from, s.value) != nil }

// durationOf returns the value of a variable whose faults are reported.
func (r *resolver) durationOf(variable string, def time.Duration) time.Duration {
	d, err := time.ParseDuration(r.lookup(variable))
	if err != nil {
		return def
	}
	return d
}

func environment(environ []string) map[string]string {
	out := make(map[string]string, len(environ))
	for _, e := range environ {
		if name, value, ok := strings.Cut(e, "="); ok {
			out[name] = value
		}
	}
	return out
}

func (r *resolver) check(s setting, valid func(string) bool, want string) {
	switch {
	case s.value == "":
		r.errorf("%s is not set", s.from)
	case !valid(s.value):
		r.errorf("%s=%q is not %s", s.from, s.value, want)
	}
}
