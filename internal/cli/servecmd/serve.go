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
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/internal/server/clusters"
	"github.com/meshctl/meshctl/internal/server/xds"
)

// serveOptions are the flags of serve.
type serveOptions struct {
	configDir      string
	kubeconfig     string
	kubeContext    string
	system         string
	secrets        []string
	remoteDirs     []string
	clusterID      string
	network        string
	meshID         string
	trustDomain    string
	caDir          string
	stateDir       string
	tokenIssuers   []string
	tokenAudiences []string
	grpcAddr       string
	secureGRPCAddr string
	tls            serveTLSOptions
	httpAddr       string
	monitoringAddr string
	logFormat      string
	logLevel       string
	limits         xds.Limits
	signing        ca.Policy
	shutdown       time.Duration
	clusters       clusterOptions
	federation     federationOptions
	callers        callerOptions
	debug          debugOptions
	ignorePolicies bool
}

func NewServe(env *cli.Env) *cobra.Command {
	var o serveOptions
	cmd := &cobra.Command{
		Use:   "serve [--config-dir DIR | --kubeconfig FILE | --context NAME]",
		Short: "Run the control plane on a directory of YAML or on a Kubernetes API",
		Long: `Run the control plane on a directory of Kubernetes and Istio YAML, or on the
objects of a Kubernetes API: that of --kubeconfig or --context, or, without any
of them, that of the pod it runs in.

A directory is watched: a change is used as soon as its file is written. One
broken object does not take the rest down; it is named with its place and the
reason, and its last good version stays. So does what an API server gave that
does not answer any more.

Proxies fetch their configuration by xDS and their certificates by Istio's CA
protocol. A proxy's identity is that of its certificate or token; what it says
of itself is only compared with it.

Not all of Istio's YAML has an effect yet: ` + cli.WithoutEffectHelp + `
Each such object, and each field of MeshConfig without effect, is logged when it
appears. serve does not start while the own cluster has security policies that are
not enforced, unless --ignore-security-policies is given. docs/api-support.md
lists every kind and field.`,
		Example: `  # one cluster, its own self-signed CA
  meshctl serve --config-dir ./mesh

  # two clusters that share a root
  meshctl serve --cluster-id cluster1 --network network1 --ca-dir ./ca/cluster1 \
      --config-dir ./cluster1 --remote-dir cluster2=./cluster2 \
      --token-issuer cluster1=./issuer

  # the cluster of a kubeconfig's context, with the CA of its Secret cacerts
  meshctl serve --cluster-id cluster1 --context kind-cluster1`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	f := cmd.Flags()
	cli.DirVar(f, &o.configDir, "config-dir", "`Directory` of the cluster's YAML, read with its subfolders and watched")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "`File` of the kubeconfig of the own cluster, whose API is read instead of a directory")
	f.StringVar(&o.kubeContext, "context", "", "`Context` of the kubeconfig of the own cluster, whose API is read instead of a directory (default: the current one)")
	f.StringVar(&o.system, "system-namespace", "", "`Namespace` of the control plane and of the ConfigMap istio (default: that of the pod it runs in, else istio-system)")
	f.StringSliceVar(&o.secrets, "credential-namespaces", nil, "`Namespaces` whose Secrets are read for gateways, and whose ConfigMaps for CA certificates, from the Kubernetes API; * is every one (default: none)")
	f.StringArrayVar(&o.remoteDirs, "remote-dir", nil, "Another cluster and its directory, as `CLUSTER=DIR`; repeatable")
	f.BoolVar(&o.ignorePolicies, "ignore-security-policies", false, "Start also when the own cluster has security policies that are not enforced, such as AuthorizationPolicies")
	cli.MarkWeakening(f, "ignore-security-policies")
	f.StringVar(&o.clusterID, "cluster-id", "", "`Name` of the own cluster (default: $CLUSTER_ID, else Kubernetes)")
	f.StringVar(&o.network, "network", "", "`Network` of the own cluster when its system namespace has no label topology.istio.io/network")
	f.StringVar(&o.meshID, "mesh-id", "", "`Name` of the mesh; proxies whose MESH_ID says another are refused (default: all are served)")
	f.StringVar(&o.trustDomain, "trust-domain", "", "SPIFFE trust `domain` (default: that of the ConfigMap istio, else cluster.local)")
	cli.DirVar(f, &o.caDir, "ca-dir", "`Directory` of the signing CA, followed: ca-cert.pem, ca-key.pem, root-cert.pem, cert-chain.pem, ca-crl.pem, or tls.crt, tls.key, ca.crt (default: with a Kubernetes API the Secret cacerts or istio-ca-secret, else a self-signed CA kept in --state-dir)")
	cli.DirVar(f, &o.stateDir, "state-dir", "`Directory` for what the server keeps (default $XDG_STATE_HOME/meshctl/<cluster-id>)")
	f.StringArrayVar(&o.tokenIssuers, "token-issuer", nil, "Trust the issuer of a directory for callers of a cluster, as `CLUSTER=DIR`; repeatable")
	f.StringSliceVar(&o.tokenAudiences, "token-audience", []string{"istio-ca"}, "`Audience` that a token must name, one of these")
	f.StringVar(&o.grpcAddr, "grpc-addr", fmt.Sprintf("127.0.0.1:%d", mesh.PortPlaintextXDS), "`Address` of plaintext xDS, without identities; empty turns it off")
	f.StringVar(&o.secureGRPCAddr, "secure-grpc-addr", fmt.Sprintf(":%d", mesh.PortSecureXDS), "`Address` of xDS and CA over TLS; empty turns it off")
	o.tls.bind(f)
	f.StringVar(&o.httpAddr, "http-addr", ":8080", "`Address` of /ready and /version, and of status pages; empty turns it off")
	f.StringVar(&o.monitoringAddr, "monitoring-addr", fmt.Sprintf(":%d", mesh.PortMonitoring), "`Address` of /metrics, and of what istioctl asks for; empty turns it off")
	o.clusters.bind(f)
	o.federation.bind(f)
	o.callers.bind(f)
	o.debug.bind(f)
	limitFlags(f, &o.limits)
	signingFlags(f, &o.signing)
	cli.DurationVar(f, &o.shutdown, "shutdown-timeout", 5*time.Second, "Longest time for streams to end when the server stops")
	cli.ChoiceVar(f, &o.logFormat, "log-format", "Format of the log on standard error", "text", "json")
	f.StringVar(&o.logLevel, "log-level", "info", "Least `level` that is logged: debug, info, warn or error, or by area, as in default:info,xds:debug; the areas are "+strings.Join(server.LogAreas(), ", "))
	cli.Suggest(f, "log-level", "debug", "info", "warn", "error")
	return cmd
}

func (o *serveOptions) run(ctx context.Context, env *cli.Env) error {
	env.IgnoreSIGPIPE() // a mesh does not end with who reads the log
	log, levels, err := newLog(env, o.logFormat, o.logLevel, server.LogAreas())
	if err != nil {
		return err
	}
	if err := checkLimits(&o.limits, o.shutdown, o.clusters.timeout); err != nil {
		return err
	}
	if err := checkSigning(o.signing); err != nil {
		return err
	}
	if o.clusterID == "" {
		id, _ := env.LookupEnv("CLUSTER_ID")
		o.clusterID = cmp.Or(id, "Kubernetes")
	}
	access, err := o.kubeAccess(env)
	if err != nil {
		return err
	}
	cfg := server.Config{
		ClusterID: mesh.ClusterID(o.clusterID), ConfigDir: o.configDir, SecretNamespaces: o.secrets, SystemNamespace: o.system,
		IgnorePolicies: o.ignorePolicies, Network: mesh.NetworkID(o.network), MeshID: o.meshID, TrustDomain: o.trustDomain,
		CADir: o.caDir, StateDir: o.stateDir, TokenAudiences: o.tokenAudiences,
		GRPCAddr: o.grpcAddr, SecureGRPCAddr: o.secureGRPCAddr, HTTPAddr: o.httpAddr, MonitoringAddr: o.monitoringAddr,
		Limits: o.limits, Signing: o.signing, ShutdownTimeout: o.shutdown,
		Version: cli.CurrentBuild(), VersionText: cli.CurrentBuild().Istio(), Log: log, LogLevels: levels, Now: env.Now, Rand: rand.Reader,
	}
	o.debug.apply(env, &cfg)
	if err := o.clusters.apply(&cfg); err != nil {
		return err
	}
	cfg.Replica = replica(env)
	if access != nil {
		cfg.Pod = podOf(env, access)
		cfg.KubeAccess, cfg.InPod = access.Config, access.InPod
		if cfg.SystemNamespace == "" && access.InPod {
			cfg.SystemNamespace = access.Namespace
		}
	}
	if err := o.tls.apply(&cfg); err != nil {
		return err
	}
	if err := errors.Join(o.federation.apply(&cfg), o.callers.apply(&cfg)); err != nil {
		return err
	}
	if cfg.RemoteDirs, err = clusterDirs("--remote-dir", o.remoteDirs); err != nil {
		return err
	}
	if cfg.TokenIssuers, err = clusterDirs("--token-issuer", o.tokenIssuers); err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return cli.Usagef("%w", err)
	}
	if err := openCA(ctx, &cfg); err != nil {
		return err
	}
	if err := placeState(env, &cfg); err != nil {
		return err
	}
	// Most of what a control plane allocates is requests, which live for a
	// moment. Collecting twice as often as by default costs little CPU and
	// halves what they occupy. Until it is ready, what it reads stays, and
	// starting soon counts. GOGC and GOMEMLIMIT still count.
	if _, set := env.LookupEnv("GOGC"); !set {
		cfg.OnReady = func() { debug.SetGCPercent(50) }
	}
	if _, set := env.LookupEnv("GOMEMLIMIT"); !set {
		limitMemory(log)
	}
	s, err := server.New(cfg)
	if err == nil {
		err = s.Run(ctx)
	}
	return o.withPlace(withFix(err), cfg.StateDir)
}

// withPlace adds to an error about the default state directory how to name another.
func (o *serveOptions) withPlace(err error, dir string) error {
	at, ok := errors.AsType[*fs.PathError](err)
	if !ok || o.stateDir != "" || dir == "" || !strings.HasPrefix(dir, at.Path) && !strings.HasPrefix(at.Path, dir) {
		return err
	}
	return fmt.Errorf("%w; name another place with XDG_STATE_HOME, or give --state-dir DIR", err)
}

// withFix adds to an error of the server what to do about it.
func withFix(err error) error {
	if _, ok := errors.AsType[*clusters.UnenforcedError](err); ok {
		return fmt.Errorf("%w: delete them, or start with --ignore-security-policies to serve the mesh without them (%s)", err, APISupportPage)
	}
	return err
}

// limitMemory has the garbage collector keep the process within nine tenths of
// what its cgroup allows, if that is limited. Past the limit the kernel would end
// the process, though most of its memory may be garbage.
func limitMemory(log *slog.Logger) {
	limit, err := memlimit.FromCgroup()
	switch {
	case errors.Is(err, memlimit.ErrNoLimit), errors.Is(err, memlimit.ErrNoCgroup), errors.Is(err, memlimit.ErrCgroupsNotSupported):
		log.Debug("no memory limit", "error", err)
	case err != nil:
		log.Warn("the memory limit of the cgroup cannot be read: set GOMEMLIMIT", "error", err)
	case limit < math.MaxInt64:
		limit = limit / 10 * 9
		debug.SetMemoryLimit(int64(limit))
		log.Info("memory is limited as the cgroup has it", "GOMEMLIMIT", limit)
	}
}

// APISupportPage lists what of the APIs of Istio and Kubernetes has an effect.
const APISupportPage = "docs/api-support.md"

// kubeAccess is the way to the API of the own cluster; nil when it is read from
// a directory. A kubeconfig is only used when it is asked for.
func (o *serveOptions) kubeAccess(env *cli.Env) (*kube.Access, error) {
	named := o.kubeconfig != "" || o.kubeContext != ""
	switch {
	case o.configDir != "" && named:
		return nil, cli.Usagef("--config-dir and --kubeconfig or --context: the own cluster is read from a directory or from its Kubernetes API, not from both")
	case o.configDir != "":
		return nil, nil
	}
	lookup := env.LookupEnv
	if !named {
		if host, _ := env.LookupEnv("KUBERNETES_SERVICE_HOST"); host == "" {
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
		// The API server of the own cluster is near: to compress its lists takes it
		// longer than to send them.
		access.Config.DisableCompression = true
	}
	return access, err
}

// replica names this process for those who read who writes: by its pod or
// machine, and so that no other one has the name.
func replica(env *cli.Env) string {
	name, _ := env.LookupEnv("POD_NAME")
	if name == "" {
		name, _ = os.Hostname()
	}
	return cmp.Or(name, "meshctl") + "_" + strings.ToLower(rand.Text())
}

// podOf is the pod that this is, namespace/name, empty outside of pods. A pod
// that does not say its name has the host name.
func podOf(env *cli.Env, access *kube.Access) string {
	if !access.InPod {
		return ""
	}
	namespace, _ := env.LookupEnv("POD_NAMESPACE")
	name, _ := env.LookupEnv("POD_NAME")
	if name == "" {
		name, _ = os.Hostname()
	}
	if namespace = cmp.Or(namespace, access.Namespace); namespace == "" || name == "" {
		return ""
	}
	return namespace + "/" + name
}

// clusterDirs reads CLUSTER=DIR pairs.
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

// placeState chooses where a server without --state-dir keeps what it keeps.
// Without a place it does without, unless it keeps the CA there.
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

// stateDir is where a server without --state-dir keeps its CA: never the
// working directory, nor one that is watched.
func stateDir(env *cli.Env, cluster string) (string, error) {
	base, ok := env.LookupEnv("XDG_STATE_HOME")
	if !ok || !filepath.IsAbs(base) {
		home, ok := env.LookupEnv("HOME")
		if !ok || !filepath.IsAbs(home) {
			return "", errors.New("neither XDG_STATE_HOME nor HOME is set: give --state-dir DIR or --ca-dir DIR")
		}
		base = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(base, "meshctl", cluster), nil
}
