// Package servecmd holds the commands that run until they are stopped: serve, agent
// and demo.
package servecmd

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/logs"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/server/ca"
)

// serveOptions hold the flags of serve. Most of them set cfg.
type serveOptions struct {
	cfg                      server.Config
	kubeconfig, kubeContext  string
	remoteDirs, tokenIssuers []string
	insecureRemote           []string
	logFormat, logLevel      string
	tls                      serveTLSOptions
	federation               federationOptions
	callers                  callerOptions
}

// NewServe returns the command serve.
func NewServe(env *cli.Env) *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve [--config-dir DIR | --kubeconfig FILE | --context NAME]",
		Short: "Run the control plane on a directory of YAML or on a Kubernetes API",
		Long: `Run the control plane on a directory of Kubernetes and Istio YAML, or on a Kubernetes
API: the API of --kubeconfig or --context, or without these flags the API of the
cluster that the pod runs in.

serve watches the directory and applies a change as soon as its file is written. A
broken object does not affect others: serve logs its place and the reason, and keeps
its last good version. It also keeps the objects of an API server that no longer
answers.

Proxies get their configuration over xDS and their certificates with Istio's CA
protocol. serve takes the identity of a proxy from its certificate or token. It only
compares the metadata of the proxy with this identity.

Some objects and fields of Istio have no effect yet: docs/api-support.md lists every
kind and field. serve logs each object and each field without effect. Workloads to which
a security policy may apply that no proxy can enforce refuse requests, unless
--ignore-security-policies is given.`,
		Example: `  # Run one cluster with a self-signed CA
  meshctl serve --config-dir ./mesh

  # Run two clusters that share a root
  meshctl serve --cluster-id cluster1 --network network1 --ca-dir ./ca/cluster1 \
      --config-dir ./cluster1 --remote-dir cluster2=./cluster2 \
      --token-issuer cluster1=./issuer

  # Run on the cluster of a context, with the CA in its Secret cacerts
  meshctl serve --cluster-id cluster1 --context kind-cluster1`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	f := cmd.Flags()
	cli.DirVar(f, &o.cfg.ConfigDir, "config-dir", "`Directory` with the YAML of the cluster, watched with its subdirectories")
	cli.SocketDirVar(f, &o.cfg.SocketDir)
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "Kubeconfig `file` of the own cluster, instead of a directory")
	f.StringVar(&o.kubeContext, "context", "", "Kubeconfig `context` of the own cluster, instead of a directory (default the current one)")
	f.StringVar(&o.cfg.SystemNamespace, "system-namespace", "", "`Namespace` of the control plane and of the ConfigMap istio (default the namespace of the pod, else istio-system)")
	f.StringSliceVar(&o.cfg.SecretNamespaces, "credential-namespaces", nil, "`Namespaces` in which Secrets are read for gateways and WasmPlugins, and ConfigMaps for CA certificates, with a Kubernetes API; * for all (default none)")
	f.BoolVar(&o.cfg.IgnorePolicies, "ignore-security-policies", false, "Leave security policies that no proxy can enforce without effect, instead of refusing requests to their workloads")
	cli.MarkWeakening(f, "ignore-security-policies")
	f.StringVar((*string)(&o.cfg.ClusterID), "cluster-id", "", "`Name` of the own cluster (default $CLUSTER_ID, else Kubernetes)")
	f.StringVar((*string)(&o.cfg.Network), "network", "", "`Network` of the own cluster if its system namespace has no label topology.istio.io/network")
	f.StringVar(&o.cfg.MeshID, "mesh-id", "", "`Name` of the mesh; proxies with another MESH_ID are refused (default any)")
	f.StringVar(&o.cfg.TrustDomain, "trust-domain", "", "SPIFFE trust `domain` (default the value in the ConfigMap istio, else cluster.local)")
	cli.DirVar(f, &o.cfg.CADir, "ca-dir", "`Directory` of the signing CA, watched: ca-cert.pem, ca-key.pem, root-cert.pem, cert-chain.pem, ca-crl.pem, or tls.crt, tls.key, ca.crt (default with a Kubernetes API the Secret cacerts or istio-ca-secret, else a self-signed CA in --state-dir)")
	cli.DirVar(f, &o.cfg.StateDir, "state-dir", "`Directory` for the state of the server (default $XDG_STATE_HOME/meshctl/<cluster-id>)")
	f.StringArrayVar(&o.tokenIssuers, "token-issuer", nil, "Trust the token issuer in a directory for callers of a cluster, as `CLUSTER=DIR`; may be repeated")
	f.StringSliceVar(&o.cfg.TokenAudiences, "token-audience", []string{"istio-ca"}, "`Audience` of accepted tokens; may be repeated")
	f.StringVar(&o.cfg.GRPCAddr, "grpc-addr", fmt.Sprintf("127.0.0.1:%d", mesh.PortPlaintextXDS), "`Address` of plaintext xDS without authentication; empty turns it off")
	f.StringVar(&o.cfg.SecureGRPCAddr, "secure-grpc-addr", fmt.Sprintf(":%d", mesh.PortSecureXDS), "`Address` of xDS and CA over TLS; empty turns it off")
	o.tls.bind(f, &o.cfg)
	f.StringVar(&o.cfg.HTTPAddr, "http-addr", ":8080", "`Address` of /ready, /version and status pages; empty turns it off")
	f.StringVar(&o.cfg.MonitoringAddr, "monitoring-addr", fmt.Sprintf(":%d", mesh.PortMonitoring), "`Address` of /metrics, and of the pages that istioctl reads; empty turns it off")
	f.StringVar(&o.cfg.HTTPSAddr, "https-addr", "", fmt.Sprintf("`Address` of the webhooks of the Kubernetes API, /inject and /validate, over TLS; off turns them off (default :%d in a pod, else off)", mesh.PortWebhooks))
	f.StringVar(&o.cfg.Revision, "revision", "", "`Name` of the revision, the value of the label istio.io/rev that selects this control plane (default $REVISION, else default)")
	o.federation.bind(f, &o.cfg)
	o.callers.bind(f, &o.cfg)
	bindLimits(f, &o.cfg)
	f.BoolVar(&o.cfg.VirtualHostDiscovery, "virtual-host-discovery", true, "Send virtual hosts one by one to sidecars with the agent of meshctl, Envoy 1.40 or later and incremental xDS, so that a changed route does not send all routes of its port")
	f.BoolVar(&o.cfg.HostsOnDemand, "virtual-hosts-on-demand", false, "To sidecars that get virtual hosts one by one and see more than 2,000 services, send only the virtual hosts that their requests need")
	cli.ChoiceVar(f, &o.logFormat, "log-format", "Format of the log on standard error", "text", "json")
	f.StringVar(&o.logLevel, "log-level", "info", "Lowest `level` in the log, debug, info, warn or error, or a level for each area, as in default:info,xds:debug; the areas are "+strings.Join(server.LogAreas(), ", "))
	cli.Suggest(f, "log-level", "debug", "info", "warn", "error")
	o.bindClusters(f)
	o.bindDebug(f)
	return cmd
}

// bindClusters defines the flags for other clusters.
func (o *serveOptions) bindClusters(f *pflag.FlagSet) {
	f.StringArrayVar(&o.remoteDirs, "remote-dir", nil, "Another cluster and its directory, as `CLUSTER=DIR`; may be repeated")
	cli.DirVar(f, &o.cfg.KubeconfigDir, "kubeconfig-dir", "`Directory` with a kubeconfig for each other cluster, watched")
	f.StringArrayVar(&o.insecureRemote, "insecure-remote", nil, "Accept an insecure setting in the kubeconfig of a cluster, as `CLUSTER=SETTING` (see docs/serve.md); may be repeated")
	cli.MarkWeakening(f, "insecure-remote")
	cli.ChoiceVar(f, &o.cfg.OnClusterLost, "on-cluster-lost", "Treatment of the endpoints of a cluster whose API server does not answer; drop removes them after --grace, unless no other cluster has the service", mesh.Keep, mesh.Demote, mesh.Drop)
	cli.DurationVar(f, &o.cfg.Grace, "grace", 5*time.Minute, "Time until --on-cluster-lost drop removes a cluster")
}

// bindDebug defines the flags for status pages.
func (o *serveOptions) bindDebug(f *pflag.FlagSet) {
	f.StringSliceVar(&o.cfg.DebugNamespaces, "debug-namespace", nil, "`Namespace` whose identities may read all status pages, in addition to the system namespace; may be repeated")
	f.BoolVar(&o.cfg.DebugNetwork, "debug-network", false, "Serve status pages at --http-addr also to other machines; the tokens of callers cross the network in clear text")
	cli.MarkWeakening(f, "debug-network")
	f.BoolVar(&o.cfg.Profiling, "profiling", false, "Serve runtime profiles at /debug/pprof/ of --http-addr to the user of serve on this machine, for meshctl x internal-debug pprof/heap")
}

func (o *serveOptions) run(ctx context.Context, env *cli.Env) error {
	env.IgnoreSIGPIPE() // the mesh goes on without a reader of the log
	cfg := o.cfg
	cfg.Version, cfg.VersionText = cli.CurrentBuild(), cli.CurrentBuild().Istio()
	cfg.Now, cfg.Rand = env.Now, rand.Reader
	if err := o.openLog(env, &cfg); err != nil {
		return err
	}
	if err := o.complete(env, &cfg); err != nil {
		return err
	}
	if err := openCA(ctx, &cfg); err != nil {
		return err
	}
	if err := placeState(env, &cfg); err != nil {
		return err
	}
	boundMemory(env, &cfg)
	s, err := server.New(cfg)
	if err == nil {
		err = s.Run(ctx)
	}
	return o.withPlace(err, cfg.StateDir)
}

// openLog sets the log on standard error and the levels of its areas, which may change at
// any time.
func (o *serveOptions) openLog(env *cli.Env, cfg *server.Config) error {
	cfg.LogLevels = logs.NewLevels(server.LogAreas()...)
	if err := cfg.LogLevels.Set(o.logLevel); err != nil {
		return cli.Usagef("--log-level %q: %w", o.logLevel, err)
	}
	opts := &slog.HandlerOptions{Level: slog.LevelDebug} // LogLevels filters lines
	var lines slog.Handler = slog.NewTextHandler(env.Stderr, opts)
	if o.logFormat == "json" {
		lines = slog.NewJSONHandler(output.JSONLines(env.Stderr), opts)
	}
	cfg.Log = slog.New(cfg.LogLevels.Handler(logs.Limit(lines, env.Now)))
	return nil
}

// openCA opens the Secrets with the signing CA of a control plane that reads a
// Kubernetes API, unless the CA is in a directory.
func openCA(ctx context.Context, cfg *server.Config) error {
	if cfg.KubeAccess == nil || cfg.CADir != "" {
		return nil
	}
	source, err := ca.OpenSecrets(ctx, ca.SecretConfig{
		API: cfg.KubeAccess, Namespace: cmp.Or(cfg.SystemNamespace, mesh.DefaultSystemNamespace), Log: cfg.Log,
		Make: func() (map[string][]byte, error) {
			return store.SelfSigned(cmp.Or(cfg.TrustDomain, mesh.DefaultDomain), cfg.Now(), cfg.Rand)
		},
	})
	if err != nil {
		return fmt.Errorf("signing CA, without --ca-dir: %w", err)
	}
	cfg.CASource = source
	return nil
}

// complete checks the flags and sets the fields of cfg that are not flags.
func (o *serveOptions) complete(env *cli.Env, cfg *server.Config) error {
	if err := checkLimits(cfg); err != nil {
		return err
	}
	if cfg.HostsOnDemand && !cfg.VirtualHostDiscovery {
		return cli.Usagef("--virtual-hosts-on-demand has no effect with --virtual-host-discovery=false: leave one of them out")
	}
	if cfg.ClusterID == "" {
		cfg.ClusterID = mesh.ClusterID(cmp.Or(env.Getenv("CLUSTER_ID"), "Kubernetes"))
	}
	access, err := o.kubeAccess(env)
	if err != nil {
		return err
	}
	cfg.Revision = cmp.Or(cfg.Revision, env.Getenv("REVISION"), "default")
	if cfg.HTTPSAddr == "" && access != nil && access.InPod {
		cfg.HTTPSAddr = fmt.Sprintf(":%d", mesh.PortWebhooks)
	}
	if cfg.HTTPSAddr == "off" {
		cfg.HTTPSAddr = ""
	}
	host, _ := os.Hostname()
	cfg.Name = cmp.Or(env.Getenv("POD_NAME"), host)
	cfg.Replica = cmp.Or(cfg.Name, "meshctl") + "_" + strings.ToLower(rand.Text()) // unique for this process
	cfg.TokenDirs = localtoken.Directories(env.LookupEnv)
	if cfg.Allow, err = remotesecret.ParseAllow(o.insecureRemote); err != nil {
		return cli.Usagef("--insecure-remote: %w", err)
	}
	if access != nil {
		// A pod may also read another cluster than its own.
		cfg.KubeAccess, cfg.InPod = access.Config, env.Getenv("KUBERNETES_SERVICE_HOST") != ""
	}
	if access != nil && access.InPod {
		cfg.SystemNamespace = cmp.Or(cfg.SystemNamespace, access.Namespace)
		if namespace := cmp.Or(env.Getenv("POD_NAMESPACE"), access.Namespace); namespace != "" && cfg.Name != "" {
			cfg.Pod = namespace + "/" + cfg.Name
		}
	}
	var remoteErr, issuerErr error
	cfg.RemoteDirs, remoteErr = clusterDirs("--remote-dir", o.remoteDirs)
	cfg.TokenIssuers, issuerErr = clusterDirs("--token-issuer", o.tokenIssuers)
	if err := errors.Join(o.tls.apply(cfg), o.federation.apply(cfg), o.callers.apply(cfg), remoteErr, issuerErr); err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return cli.Usagef("%w", err)
	}
	return nil
}

// withPlace adds advice to an error about the default state directory.
func (o *serveOptions) withPlace(err error, dir string) error {
	at, ok := errors.AsType[*fs.PathError](err)
	if !ok || o.cfg.StateDir != "" || dir == "" || !strings.HasPrefix(dir, at.Path) && !strings.HasPrefix(at.Path, dir) {
		return err
	}
	return fmt.Errorf("%w; set XDG_STATE_HOME, or give --state-dir DIR", err)
}

// kubeAccess returns the access to the API of the own cluster, nil for a directory. It
// uses a kubeconfig only if a flag names one.
func (o *serveOptions) kubeAccess(env *cli.Env) (*kube.Access, error) {
	named := o.kubeconfig != "" || o.kubeContext != ""
	switch {
	case o.cfg.ConfigDir != "" && named:
		return nil, cli.Usagef("--config-dir and --kubeconfig or --context: the own cluster is either a directory or a Kubernetes API")
	case o.cfg.ConfigDir != "":
		return nil, nil
	}
	lookup := env.LookupEnv
	if !named {
		if env.Getenv("KUBERNETES_SERVICE_HOST") == "" {
			return nil, nil
		}
		lookup = func(name string) (string, bool) {
			if name == "HOME" || name == "KUBECONFIG" {
				return "", false
			}
			return env.LookupEnv(name)
		}
	}
	access, err := kube.Load(kube.Options{Kubeconfig: o.kubeconfig, Context: o.kubeContext, LookupEnv: lookup, UserAgent: "meshctl", PodDir: env.PodDir})
	if err == nil {
		// The API server is near: compressing lists would take longer than sending them.
		access.Config.DisableCompression = true
	}
	return access, err
}

// clusterDirs parses CLUSTER=DIR pairs.
func clusterDirs(flag string, values []string) ([]server.ClusterDir, error) {
	var out []server.ClusterDir
	for _, v := range values {
		cluster, dir, ok := strings.Cut(v, "=")
		if !ok || cluster == "" || dir == "" {
			return nil, cli.Usagef("%s %q: want CLUSTER=DIR", flag, v)
		}
		out = append(out, server.ClusterDir{Cluster: mesh.ClusterID(cluster), Dir: dir})
	}
	return out, nil
}

// placeState sets the default state directory. If there is none, the server keeps no
// state, unless the state holds its CA.
func placeState(env *cli.Env, cfg *server.Config) error {
	needed := cfg.StateDir != "" || cfg.CADir == "" && cfg.CASource == nil
	if cfg.StateDir == "" {
		dir, err := stateDir(env, string(cfg.ClusterID))
		if err != nil && needed {
			return err
		}
		cfg.StateDir = dir
	}
	if err := cfg.ValidateStateDir(); err != nil {
		if needed {
			return cli.Usagef("%w", err)
		}
		cfg.StateDir = ""
	}
	return nil
}

// stateDir returns the default state directory. It is never the working directory or a
// watched one.
func stateDir(env *cli.Env, cluster string) (string, error) {
	base := env.XDGDir("XDG_STATE_HOME", ".local/state")
	if base == "" {
		return "", errors.New("neither XDG_STATE_HOME nor HOME is set: give --state-dir DIR or --ca-dir DIR")
	}
	return filepath.Join(base, "meshctl", cluster), nil
}
