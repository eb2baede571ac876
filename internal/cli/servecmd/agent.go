package servecmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/agent"
	agentconfig "github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/logs"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/process"
	"github.com/meshctl/meshctl/internal/serving"
)

type agentOptions struct {
	flags       agentconfig.Flags
	meshConfig  string // path
	dryRun      bool
	printConfig bool
	profiling   bool
	unused      []string // flags without effect
}

// NewAgent returns the command agent.
func NewAgent(env *cli.Env) *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run Envoy with its certificate and its configuration",
		Long: `Run the agent of one workload. The agent writes Envoy's bootstrap, gets the certificate
of the workload from the certificate authority of the mesh, renews this certificate and
serves it to Envoy over SDS, reports readiness on the status port, and starts and stops
Envoy.

The agent reads the environment that Istio injects into pods: POD_NAME, POD_NAMESPACE,
INSTANCE_IP, SERVICE_ACCOUNT, TRUST_DOMAIN, PROXY_CONFIG, CA_ADDR, ISTIO_META_… and
others. The order of precedence is: flag, MESHCTL_… variable, Istio's variable,
PROXY_CONFIG.

With --no-envoy the agent starts no Envoy, and serves gRPC applications that are xDS
clients themselves. These applications read the bootstrap in --grpc-bootstrap, get their
configuration through a Unix socket of the agent, and read their certificate from files.

On SIGTERM or Ctrl-C the agent drains Envoy first. When Envoy exits, the agent exits,
too. If Envoy failed, the agent prints the cause and exits with code 1.`,
		Example: `  # Run in a pod with Istio's environment
  meshctl agent --type sidecar

  # Run on a machine, with all ports on one address
  meshctl agent --pod-name client --pod-namespace sample --service-account client \
    --bind-address 127.1.0.12 --cluster-id cluster1 --network network1 \
    --discovery-address 127.1.0.2:15012 --root-ca root-cert.pem --token token \
    --config-path run/client --envoy .cache/envoy/envoy

  # Serve an application with xds:/// targets of gRPC, started with
  # GRPC_XDS_BOOTSTRAP=run/client/grpc-bootstrap.json
  meshctl agent --no-envoy --pod-name client --pod-namespace sample \
    --service-account client --bind-address 127.1.0.12 --cluster-id cluster1 \
    --discovery-address 127.1.0.2:15012 --root-ca root-cert.pem --token token \
    --config-path run/client`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), env)
		},
	}
	o.bind(cmd.Flags())
	o.bindDry(cmd.Flags())
	cmd.AddCommand(newAgentWait(env), newAgentRequest(env), newAgentRedirect(env), newAgentDoctor(env), newAgentProxy(env))
	return cmd
}

// bindDry defines the flags with which no agent runs.
func (o *agentOptions) bindDry(fs *pflag.FlagSet) {
	fs.BoolVar(&o.dryRun, "dry-run", false, "Only write Envoy's bootstrap into --config-path")
	fs.BoolVar(&o.printConfig, "print-config", false, "Only print the configuration that flags, environment, annotations and files give, as YAML")
}

// bind defines the flags.
func (o *agentOptions) bind(fs *pflag.FlagSet) {
	f := &o.flags
	fs.StringVar(&f.Type, "type", "", "`Type` of the proxy, sidecar or router (default sidecar)")
	cli.Suggest(fs, "type", "sidecar", "router")
	fs.StringVar(&f.PodName, "pod-name", "", "`Name` of the pod (POD_NAME)")
	fs.StringVar(&f.PodNamespace, "pod-namespace", "", "`Namespace` of the pod (POD_NAMESPACE)")
	fs.StringVar(&f.InstanceIP, "instance-ip", "", "IP `address` of the pod, or several separated by commas, as status.podIPs gives them (INSTANCE_IP)")
	fs.StringVar(&f.ServiceAccount, "service-account", "", "Service `account` of the pod (SERVICE_ACCOUNT)")
	fs.StringVar(&f.TrustDomain, "trust-domain", "", "Trust `domain` of the mesh (TRUST_DOMAIN, default cluster.local)")
	fs.StringVar(&f.ClusterID, "cluster-id", "", "`Name` of the cluster of the pod (ISTIO_META_CLUSTER_ID)")
	fs.StringVar(&f.Network, "network", "", "`Network` of the pod (ISTIO_META_NETWORK)")
	fs.StringVar(&f.DiscoveryAddress, "discovery-address", "",
		"`host:port` of the control plane, or several separated by commas, used in turn (discoveryAddress of PROXY_CONFIG, default "+agentconfig.DefaultDiscovery+")")
	fs.StringVar(&f.CAAddress, "ca-address", "", "`host:port` of the certificate authority (CA_ADDR, default the control plane)")
	fs.StringVar(&f.RootCA, "root-ca", "", "PEM `file` with the roots that verify control plane and certificate authority (CA_ROOT_CA, XDS_ROOT_CA, default "+agentconfig.DefaultRootFile+")")
	fs.StringVar(&f.CRL, "crl", "", "PEM `file` with revocation lists, watched; without it the lists come from the control plane (default "+agentconfig.DefaultCRLFile+")")
	fs.StringVar(&f.Token, "token", "", "`File` with the token of the pod (default "+agentconfig.DefaultTokenFile+")")
	fs.StringVar(&f.KeyExchange, "tls-key-exchange", "", "Key exchange with the control plane, a `choice`: pqc-preferred (X25519MLKEM768 if possible), pqc-required (only this, COMPLIANCE_POLICY=pqc) or classic (default pqc-preferred)")
	cli.Suggest(fs, "tls-key-exchange", "pqc-preferred", "pqc-required", "classic")
	cli.MarkWeakening(fs, "tls-key-exchange", "classic")
	cli.DirVar(fs, &f.ConfigPath, "config-path", "`Directory` for the bootstrap and the SDS socket (configPath, default "+agentconfig.DefaultConfigPath+")")
	fs.StringVar(&f.Envoy, "envoy", "", "`File` of Envoy (binaryPath, default envoy on PATH)")
	optionalBool(fs, &f.NoEnvoy, "no-envoy", "Start no Envoy, only serve applications with gRPC, a `boolean` (DISABLE_ENVOY, default false)")
	optionalBool(fs, &f.NoRelay, "no-relay", "Let Envoy connect to the control plane itself instead of through the agent, a `boolean` (default false)")
	optionalBool(fs, &f.DNSForwardParallel, "dns-forward-parallel", "Ask all name servers of the machine at once, a `boolean` (DNS_FORWARD_PARALLEL, default false)")
	fs.StringVar(&f.GRPCBootstrap, "grpc-bootstrap", "",
		"Write the gRPC bootstrap of applications to this `file` (GRPC_XDS_BOOTSTRAP, default none, or with --no-envoy the file grpc-bootstrap.json in --config-path)")
	fs.StringVar(&f.OutputCerts, "output-certs", "",
		"Write certificate, key and roots to this `directory` (OUTPUT_CERTS, default none, or with a gRPC bootstrap the directory certs in --config-path)")
	fs.StringVar(&o.meshConfig, "mesh-config", agentconfig.DefaultMeshConfigFile, "`File` with a MeshConfig; PROXY_CONFIG overrides its defaultConfig")
	fs.StringVar(&f.Domain, "domain", "", "DNS `domain` of the proxy (default <pod-namespace>.svc.cluster.local)")
	fs.StringVar(&f.BindAddress, "bind-address", "", "Listen `address` for all ports (default loopback for the admin interface, all addresses for other ports)")
	fs.IntVar(&f.AdminPort, "admin-port", 0, "`Port` of Envoy's admin interface (proxyAdminPort, default 15000)")
	fs.IntVar(&f.StatusPort, "status-port", 0, "`Port` of the agent's readiness and metrics (statusPort, default 15020)")
	fs.BoolVar(&o.profiling, "profiling", false, "Serve runtime profiles at /debug/pprof/ of --status-port to processes of the pod or machine")
	fs.IntVar(&f.ReadyPort, "readiness-port", 0, "`Port` of Envoy's readiness (ENVOY_STATUS_PORT, default 15021)")
	fs.IntVar(&f.StatsPort, "prometheus-port", 0, "`Port` of Envoy's metrics (ENVOY_PROMETHEUS_PORT, default 15090)")
	fs.IntVar(&f.Concurrency, "concurrency", 0, "`Number` of Envoy's worker threads (concurrency, ISTIO_CPU_LIMIT, default one for each core)")
	fs.StringVar(&f.Delta, "delta", "", "Use incremental xDS, a `boolean` (ISTIO_DELTA_XDS, default true)")
	optionalDuration(fs, &f.DrainDuration, "drain-duration", "Drain a changed listener for this `duration` (drainDuration, default 45s)")
	optionalDuration(fs, &f.TerminationDrainDuration, "termination-drain-duration",
		"Drain connections for this `duration` before the end (terminationDrainDuration, default 5s)")
	fs.StringVar(&f.OutlierLog, "outlier-log-path", "", "`File` to which Envoy logs the hosts that it ejects (ISTIO_META_OUTLIER_LOG_PATH, default none)")
	fs.IntVar(&f.STSPort, "sts-port", 0, "`Port`, on loopback, at which tokens are exchanged (STS_PORT, default none)")
	fs.StringVar(&f.STSEndpoint, "sts-endpoint", "", "`URL` of the OAuth token endpoint that exchanges tokens (STS_TOKEN_ENDPOINT)")
	fs.StringVar(&f.STSRootCA, "sts-root-ca", "", "PEM `file` with the roots of --sts-endpoint (STS_ROOT_CA, default the roots of the system)")
	fs.StringVar(&f.STSFile, "sts-file", "", "Exchange every token for the token in this `file` (STS_TOKEN_FILE)")
	fs.StringVar(&f.LogLevel, "proxy-log-level", "", "Log `level` of Envoy, with levels of components, such as info,misc:error (default warning)")
}

// optionalBool defines a boolean flag that the environment may set instead. Empty means not
// given.
func optionalBool(fs *pflag.FlagSet, p *string, name, usage string) {
	fs.StringVar(p, name, "", usage)
	fs.Lookup(name).NoOptDefVal = "true"
}

// optionalDuration defines a duration flag that PROXY_CONFIG may set instead. Nil means
// not given, as 0s is a value.
func optionalDuration(fs *pflag.FlagSet, p **time.Duration, name, usage string) {
	fs.Func(name, usage, func(s string) error {
		d, err := cli.ParseDuration(s)
		if err == nil {
			*p = &d
		}
		return err
	})
}

func (o *agentOptions) run(ctx context.Context, env *cli.Env) error {
	env.IgnoreSIGPIPE() // the traffic goes on without a reader of the log
	cfg, opts, err := o.resolve(env)
	switch {
	case err != nil:
		return err
	case o.printConfig:
		return output.Write(env.Stdout, output.FormatYAML, cfg.Summary())
	case o.dryRun:
		return agent.WriteBootstrap(&cfg)
	}
	return runAgent(ctx, env, cfg, opts)
}

// runAgent runs an agent in as little memory as its job needs: a node runs many.
func runAgent(ctx context.Context, env *cli.Env, cfg agentconfig.Config, opts agent.Options) error {
	if _, set := env.LookupEnv("GOGC"); !set {
		debug.SetGCPercent(50) // most allocations are messages, which do not live long
	}
	opts.Release = process.ReleaseMemory
	return agent.Run(ctx, cfg, opts)
}

// resolve returns the configuration of the agent.
func (o *agentOptions) resolve(env *cli.Env) (cfg agentconfig.Config, opts agent.Options, err error) {
	log := slog.New(logs.Limit(slog.NewTextHandler(env.Stderr, nil), env.Now))
	in := agentconfig.Input{
		Flags: o.flags, Version: cli.CurrentBuild().Version,
		CPULimit: cpuLimit(env), MemoryLimit: memoryLimit(log), NoNetAdmin: !process.KeepsNetAdmin(),
		Exists: func(path string) bool { _, err := os.Stat(path); return err == nil },
		Served: serving.IsServed,
	}
	if env.Environ != nil {
		in.Environ = env.Environ()
	}
	for name, content := range map[string]*[]byte{
		agentconfig.DefaultPodLabelsFile:      &in.PodLabels,
		agentconfig.DefaultPodAnnotationsFile: &in.PodAnnotations,
		o.meshConfig:                          &in.MeshConfig,
	} {
		if *content, err = optionalFile(name); err != nil {
			return cfg, opts, err
		}
	}
	if name := agentconfig.BootstrapOverrideFile(in.Environ); name != "" {
		if in.BootstrapOverride, err = files.Read(name, maxFile); err != nil {
			return cfg, opts, fmt.Errorf("ISTIO_BOOTSTRAP_OVERRIDE: %w", err)
		}
	}
	if in.Interfaces, err = interfaceAddrs(); err != nil {
		return cfg, opts, err
	}
	cfg, warnings, err := agentconfig.Resolve(in)
	for _, name := range o.unused {
		warnings = append(warnings, "--"+name+" has no effect here")
	}
	for _, w := range warnings {
		log.Warn("configuration", "warning", w)
	}
	if err != nil {
		return cfg, opts, cli.Usagef("%w", err)
	}
	return cfg, agent.Options{
		Log:       log,
		Stdout:    env.Stdout,
		Stderr:    env.Stderr,
		Environ:   in.Environ,
		Now:       env.Now,
		Profiling: o.profiling,
		Rand:      rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), //nolint:gosec // only spreads waits
	}, nil
}

// maxFile bounds a file of the pod's metadata or of configuration, in bytes.
const maxFile = 1 << 20

// optionalFile returns a file that Kubernetes may mount, nil without it.
func optionalFile(name string) ([]byte, error) {
	data, err := files.Read(name, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return data, err
}

// interfaceAddrs returns the addresses of this machine.
func interfaceAddrs() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of this machine: %w", err)
	}
	var out []netip.Addr
	for _, a := range list {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			out = append(out, prefix.Addr())
		}
	}
	return out, nil
}
