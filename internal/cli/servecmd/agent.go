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
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/agent"
	agentconfig "github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/logs"
)

type agentOptions struct {
	flags agentconfig.Flags
}

func NewAgent(env *cli.Env) *cobra.Command {
	var o agentOptions
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run Envoy with its certificate and its configuration",
		Long: `Runs beside one workload: writes Envoy's bootstrap, gets the workload's
certificate from the mesh's certificate authority, serves it to Envoy by SDS
and renews it, tells on the status port whether the proxy is ready, and starts
and ends Envoy.

It reads the environment that Istio injects into pods: POD_NAME,
POD_NAMESPACE, INSTANCE_IP, SERVICE_ACCOUNT, TRUST_DOMAIN, PROXY_CONFIG,
CA_ADDR, ISTIO_META_… and others. A flag wins over its MESHCTL_… variable,
that over Istio's variable, that over PROXY_CONFIG.

With --no-envoy there is no Envoy: applications whose gRPC is its own xDS
client read the bootstrap that --grpc-bootstrap names, get their configuration
through a Unix socket of the agent, and their certificate from files.

Told to end (SIGTERM, Ctrl-C), it drains Envoy first. It ends with Envoy: with
code 1 and the cause when Envoy fails.`,
		Example: `  # in a pod that has Istio's environment
  meshctl agent --type sidecar

  # on a machine of one's own, everything on one address
  meshctl agent --pod-name client --pod-namespace sample --service-account client \
    --bind-address 127.1.0.12 --cluster-id cluster1 --network network1 \
    --discovery-address 127.1.0.2:15012 --root-ca root-cert.pem --token token \
    --config-path run/client --envoy .cache/envoy/envoy

  # for an application that finds its services by xds:/// targets of gRPC,
  # started with GRPC_XDS_BOOTSTRAP=run/client/grpc-bootstrap.json
  meshctl agent --no-envoy --pod-name client --pod-namespace sample \
    --service-account client --bind-address 127.1.0.12 --cluster-id cluster1 \
    --discovery-address 127.1.0.2:15012 --root-ca root-cert.pem --token token \
    --config-path run/client`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), env)
		},
	}
	fs, f := cmd.Flags(), &o.flags
	fs.StringVar(&f.Type, "type", "", "`kind` of proxy: sidecar or router (default sidecar)")
	fs.StringVar(&f.PodName, "pod-name", "", "The pod's `name` (POD_NAME)")
	fs.StringVar(&f.PodNamespace, "pod-namespace", "", "The pod's `namespace` (POD_NAMESPACE)")
	fs.StringVar(&f.InstanceIP, "instance-ip", "", "The pod's `address` (INSTANCE_IP)")
	fs.StringVar(&f.ServiceAccount, "service-account", "", "The pod's service `account` (SERVICE_ACCOUNT)")
	fs.StringVar(&f.TrustDomain, "trust-domain", "", "Trust `domain` of the mesh (TRUST_DOMAIN, default cluster.local)")
	fs.StringVar(&f.ClusterID, "cluster-id", "", "`id` of the cluster that the pod is in (ISTIO_META_CLUSTER_ID)")
	fs.StringVar(&f.Network, "network", "", "`network` that the pod is on (ISTIO_META_NETWORK)")
	fs.StringVar(&f.DiscoveryAddress, "discovery-address", "",
		"`host:port` of the control plane (discoveryAddress of PROXY_CONFIG, default "+agentconfig.DefaultDiscovery+")")
	fs.StringVar(&f.CAAddress, "ca-address", "", "`host:port` of the certificate authority (CA_ADDR, default that of the control plane)")
	fs.StringVar(&f.RootCA, "root-ca", "", "`file` of roots to check both with, PEM (CA_ROOT_CA, XDS_ROOT_CA, default "+agentconfig.DefaultRootFile+")")
	fs.StringVar(&f.CRL, "crl", "", "`file` of revocation lists, PEM, followed; while it is not there, the control plane is asked for them (default "+agentconfig.DefaultCRLFile+")")
	fs.StringVar(&f.Token, "token", "", "`file` of the token that proves who the pod is (default "+agentconfig.DefaultTokenFile+")")
	fs.StringVar(&f.KeyExchange, "tls-key-exchange", "", "`Kind` of key exchange with the control plane: pqc-preferred (X25519MLKEM768 with who can), pqc-required (nothing else, COMPLIANCE_POLICY=pqc) or classic (default pqc-preferred)")
	cli.MarkWeakening(fs, "tls-key-exchange", "classic")
	cli.DirVar(fs, &f.ConfigPath, "config-path", "`directory` for the bootstrap and the SDS socket (configPath, default "+agentconfig.DefaultConfigPath+")")
	fs.StringVar(&f.Envoy, "envoy", "", "`path` of Envoy (binaryPath, default envoy on PATH)")
	fs.StringVar(&f.NoEnvoy, "no-envoy", "", "Run no Envoy, only what applications with gRPC need, a `boolean` (DISABLE_ENVOY, default false)")
	fs.Lookup("no-envoy").NoOptDefVal = "true"
	fs.StringVar(&f.GRPCBootstrap, "grpc-bootstrap", "",
		"Write the bootstrap of applications' gRPC to this `file` (GRPC_XDS_BOOTSTRAP, default with --no-envoy: grpc-bootstrap.json in --config-path)")
	fs.StringVar(&f.OutputCerts, "output-certs", "",
		"Write certificate, key and roots to this `directory` (OUTPUT_CERTS, default with a gRPC bootstrap: certs in --config-path)")
	fs.StringVar(&f.BindAddress, "bind-address", "", "The one `address` to listen on (default: admin on loopback, the rest on all)")
	fs.IntVar(&f.AdminPort, "admin-port", 0, "`port` of Envoy's admin interface (proxyAdminPort, default 15000)")
	fs.IntVar(&f.StatusPort, "status-port", 0, "`port` of the agent's own readiness and metrics (statusPort, default 15020)")
	fs.IntVar(&f.ReadyPort, "readiness-port", 0, "`port` of Envoy's readiness (ENVOY_STATUS_PORT, default 15021)")
	fs.IntVar(&f.StatsPort, "prometheus-port", 0, "`port` of Envoy's metrics (ENVOY_PROMETHEUS_PORT, default 15090)")
	fs.IntVar(&f.Concurrency, "concurrency", 0, "`number` of Envoy's worker threads (concurrency, ISTIO_CPU_LIMIT, default one a core)")
	fs.StringVar(&f.Delta, "delta", "", "Incremental xDS, a `boolean` (ISTIO_DELTA_XDS, default true)")
	optionalDuration(fs, &f.DrainDuration, "drain-duration", "Drain a changed listener for this `duration` (drainDuration, default 45s)")
	optionalDuration(fs, &f.TerminationDrainDuration, "termination-drain-duration",
		"Let connections go on for this `duration` at the end (terminationDrainDuration, default 5s)")
	fs.StringVar(&f.LogLevel, "proxy-log-level", "", "Envoy's log `level`, with those of components: info,misc:error (default warning)")
	return cmd
}

// optionalDuration binds a duration that PROXY_CONFIG gives when the flag does
// not: 0s is a value, so not given is nil.
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
	env.IgnoreSIGPIPE() // an application's traffic does not end with who reads the log
	log := slog.New(logs.Limit(slog.NewTextHandler(env.Stderr, nil), env.Now))
	in := agentconfig.Input{Flags: o.flags, Version: cli.CurrentBuild().Version}
	if env.Environ != nil {
		in.Environ = env.Environ()
	}
	var err error
	if in.PodLabels, err = podLabels(); err != nil {
		return err
	}
	if in.Interfaces, err = interfaceAddrs(); err != nil {
		return err
	}
	cfg, warnings, err := agentconfig.Resolve(in)
	for _, w := range warnings {
		log.Warn("configuration", "warning", w)
	}
	if err != nil {
		return cli.Usagef("%w", err)
	}
	return agent.Run(ctx, cfg, agent.Options{
		Log:     log,
		Stdout:  env.Stdout,
		Stderr:  env.Stderr,
		Environ: in.Environ,
		Now:     env.Now,
		Rand:    rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), //nolint:gosec // spreads waits, guards nothing
	})
}

// maxPodLabels bounds the file of a pod's labels, in bytes.
const maxPodLabels = 1 << 20

// podLabels returns the file of labels that Kubernetes mounts, nil without it.
func podLabels() ([]byte, error) {
	data, err := files.Read(agentconfig.DefaultPodLabelsFile, maxPodLabels)
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
