package servecmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	agentconfig "github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/workload"
)

// maxWorkloadFile bounds each file of a workload, in bytes.
const maxWorkloadFile = 1 << 20

// NewWorkload returns the command workload.
func NewWorkload(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "workload",
		Short: "Join virtual machines to a mesh",
		Long: `Join workloads outside Kubernetes, such as virtual machines, to a mesh: write the files
that a machine needs, and run its proxy there.`,
		Example: `  meshctl workload entry configure -f group.yaml --cluster-id cluster1 --out vm
  meshctl workload run --dir vm`,
	}
	entry := &cobra.Command{
		Use:     "entry",
		Short:   "Configure the machines of a WorkloadGroup",
		Long:    "Configure machines outside Kubernetes, which a WorkloadGroup describes.",
		Example: "  meshctl workload entry configure -f group.yaml --cluster-id cluster1 --out vm",
	}
	entry.AddCommand(newWorkloadConfigure(env))
	cmd.AddCommand(entry, newWorkloadRun(env))
	return cmd
}

type workloadConfigureOptions struct {
	kube                 cli.KubeFlags
	context              string
	file, out            string
	cluster, trustDomain string
	meshID               string
	systemNamespace      string
	discovery, address   string
	entry, roots, token  string
	autoRegister         bool
	tokenTTL             time.Duration
}

func newWorkloadConfigure(env *cli.Env) *cobra.Command {
	o := &workloadConfigureOptions{}
	cmd := &cobra.Command{
		Use:   "configure",
		Short: "Write the files with which a machine joins the mesh",
		Long: `Write the files that a machine needs to join the mesh into a directory, from its
WorkloadGroup: cluster.env, mesh.yaml, hosts, root-cert.pem and istio-token, all with
mode 0600. They have Istio's format, so that Istio's agent can use them, too.

The roots and the token come from the cluster of --context: the ConfigMap
istio-ca-root-cert of the namespace, and a new token of the service account. The settings
of the proxy come from defaultConfig of the MeshConfig and from the annotation
proxy.istio.io/config in spec.metadata of the group. With --root-ca and --token-file the
command reads no cluster.`,
		Example: `  # From the cluster of the group; 192.0.2.1 is its east-west gateway
  meshctl workload entry configure -f group.yaml --cluster-id cluster1 --out vm --ingress-ip 192.0.2.1

  # With a token and roots from files
  meshctl workload entry configure -f group.yaml --cluster-id cluster1 --out vm \
    --root-ca root-cert.pem --token-file token`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	o.kube.Bind(fs)
	o.kube.ContextVar(env, cmd, &o.context, "context", "Kubeconfig `context` of the cluster (default the current one)")
	fs.StringVarP(&o.file, "file", "f", "", "`File` with the WorkloadGroup")
	cli.Alias(fs, "file", "filename")
	cli.DirVar(fs, &o.out, "out", "`Directory` to write to")
	fs.StringVar(&o.cluster, "cluster-id", "", "`Name` of the cluster that issues the token, as the control plane knows it")
	fs.StringVar(&o.trustDomain, "trust-domain", "", "Trust `domain` of the mesh (default of the MeshConfig, else cluster.local)")
	fs.StringVar(&o.meshID, "mesh-id", "", "`Name` of the mesh (default of the annotation proxy.istio.io/config of the group, else of the MeshConfig)")
	fs.StringVarP(&o.systemNamespace, "istioNamespace", "i", mesh.DefaultSystemNamespace, "`Namespace` of the control plane, with the MeshConfig")
	fs.StringVar(&o.discovery, "discovery-address", agentconfig.DefaultDiscovery, "`host:port` of the control plane; its certificate contains the name")
	fs.StringVar(&o.address, "ingress-ip", "", "IP `address` at which the machine reaches the control plane (default by DNS)")
	fs.StringVar(&o.entry, "workload-entry", "", "`Name` of the WorkloadEntry of the machine")
	fs.BoolVar(&o.autoRegister, "autoregister", false, "Let the control plane write the WorkloadEntry when the machine joins")
	cmd.MarkFlagsMutuallyExclusive("workload-entry", "autoregister")
	fs.StringVar(&o.roots, "root-ca", "", "PEM `file` with the roots of the mesh (default from the cluster)")
	fs.StringVar(&o.token, "token-file", "", "`File` with the token of the service account (default a new token from the cluster)")
	cli.WaitVar(fs, &o.tokenTTL, "token-ttl", time.Hour, "Life of a new token, a `duration` from 10m. The machine needs it once")
	return cmd
}

func (o *workloadConfigureOptions) run(ctx context.Context, env *cli.Env) error {
	for flag, value := range map[string]string{"file": o.file, "out": o.out, "cluster-id": o.cluster} {
		if value == "" {
			return cli.Usagef("--%s is required", flag)
		}
	}
	text, err := files.Read(o.file, maxWorkloadFile)
	if err != nil {
		return err
	}
	group, err := workload.ParseGroup(text, "default")
	if err != nil {
		return err
	}
	in := workload.Input{Cluster: mesh.ClusterID(o.cluster), Discovery: o.discovery, TrustDomain: o.trustDomain, MeshID: o.meshID, Entry: o.entry, AutoRegister: o.autoRegister}
	if o.address != "" {
		if in.Address, err = netip.ParseAddr(o.address); err != nil {
			return cli.Usagef("--ingress-ip: %w", err)
		}
	}
	if err := files.CheckOutput(o.out); err != nil {
		return err
	}
	if err := o.readCluster(ctx, env, group, &in); err != nil {
		return err
	}
	all, err := workload.Configure(group, in)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o700); err != nil {
		return err
	}
	for _, f := range all {
		if err := files.Write(filepath.Join(o.out, f.Name), f.Data, f.Mode); err != nil {
			return err
		}
	}
	env.Notef("wrote %d files to %s; copy them to the machine, and run there: meshctl workload run --dir DIR", len(all), o.out)
	return nil
}

// readCluster sets the roots and the token, from files or from the cluster, and the MeshConfig of
// the cluster.
func (o *workloadConfigureOptions) readCluster(ctx context.Context, env *cli.Env, g *workload.Group, in *workload.Input) (err error) {
	var access *kube.Access
	if o.roots == "" || o.token == "" {
		if access, err = kube.Load(o.kube.Options(env, o.context)); err != nil {
			return err
		}
		if in.MeshConfig, err = replicas.MeshConfig(ctx, access.Config, o.systemNamespace); err != nil {
			if o.meshID == "" || o.trustDomain == "" {
				return fmt.Errorf("%w; give --mesh-id and --trust-domain to do without", err)
			}
			env.Warnf("%v: its settings of proxies are not used", err)
		}
	}
	if o.roots != "" {
		in.Roots, err = files.Read(o.roots, maxWorkloadFile)
	} else {
		in.Roots, err = replicas.MeshRoots(ctx, access.Config, g.Namespace)
	}
	if err != nil {
		return err
	}
	if o.token != "" {
		in.Token, err = files.ReadSecret(o.token, maxWorkloadFile)
		return err
	}
	made, err := replicas.MintFor(ctx, access.Config, g.Namespace, g.ServiceAccount(), o.tokenTTL)
	in.Token = []byte(made)
	return err
}

type workloadRunOptions struct {
	agent agentOptions
	dir   string
}

func newWorkloadRun(env *cli.Env) *cobra.Command {
	o := &workloadRunOptions{}
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the proxy of a machine",
		Long: `Run meshctl agent with the files that meshctl workload entry configure wrote. Flags and
the environment override these files.

The agent keeps the certificate in DIR/certs and authenticates with it after a restart,
so it needs the token only once. The default of POD_NAME is the name of the machine.`,
		Example: `  meshctl workload run --dir /etc/meshctl`,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.agent.bind(cmd.Flags())
	cli.DirVar(cmd.Flags(), &o.dir, "dir", "`Directory` with the files")
	return cmd
}

func (o *workloadRunOptions) run(ctx context.Context, env *cli.Env) error {
	if o.dir == "" {
		return cli.Usagef("--dir is required")
	}
	environ, err := o.environment()
	if err != nil {
		return err
	}
	own := *env
	own.Environ = func() []string {
		if env.Environ == nil {
			return environ
		}
		return slices.Concat(environ, env.Environ())
	}
	own.IgnoreSIGPIPE()
	cfg, opts, err := o.agent.resolve(&own)
	if err != nil {
		return err
	}
	return runAgent(ctx, &own, cfg, opts)
}

// environment returns the variables of the machine's files, and completes the flags.
func (o *workloadRunOptions) environment() ([]string, error) {
	read := func(name string) ([]byte, error) {
		data, err := files.Read(filepath.Join(o.dir, name), maxWorkloadFile)
		if errors.Is(err, fs.ErrNotExist) && name != workload.EnvironmentFile {
			return nil, nil
		}
		return data, err
	}
	text, err := read(workload.EnvironmentFile)
	if err != nil {
		return nil, err
	}
	environ, err := workload.ParseEnvironment(text)
	if err != nil {
		return nil, err
	}
	settings, err := read(workload.MeshFile)
	if err != nil {
		return nil, err
	}
	proxyConfig, err := workload.ProxyConfig(settings)
	if err != nil {
		return nil, err
	}
	hosts, err := read(workload.HostsFile)
	if err != nil {
		return nil, err
	}
	name, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	certs := filepath.Join(o.dir, "certs")
	f := &o.agent.flags
	f.Token = cmp.Or(f.Token, filepath.Join(o.dir, workload.TokenFile))
	f.RootCA = cmp.Or(f.RootCA, filepath.Join(o.dir, workload.RootFile))
	f.ConfigPath = cmp.Or(f.ConfigPath, filepath.Join(o.dir, "proxy"))
	// Variables of the files come last, so that they override.
	environ = append([]string{
		"POD_NAME=" + strings.ToLower(name), "PROXY_CONFIG=" + proxyConfig, "PROV_CERT=" + certs, "OUTPUT_CERTS=" + certs,
	}, environ...)
	return environ, o.address(environ, hosts)
}

// address makes the agent connect to the address in the hosts file, without a change of the
// machine's own.
func (o *workloadRunOptions) address(environ []string, hosts []byte) error {
	const variable = "CA_ADDR="
	i := slices.IndexFunc(environ, func(e string) bool { return strings.HasPrefix(e, variable) })
	f := &o.agent.flags
	if i < 0 {
		return nil
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(environ[i], variable))
	if err != nil {
		return fmt.Errorf("%s: CA_ADDR: %w", workload.EnvironmentFile, err)
	}
	addr, err := workload.Address(hosts, host)
	if err != nil {
		return fmt.Errorf("%s: %w", workload.HostsFile, err)
	}
	if !addr.IsValid() {
		return nil
	}
	at := net.JoinHostPort(addr.String(), port)
	if f.DiscoveryAddress == "" {
		f.DiscoveryAddress = at
		environ[i] = "ISTIOD_SAN=" + host
	} else if f.CAAddress == "" { // the control plane is elsewhere
		f.CAName = host
	}
	f.CAAddress = cmp.Or(f.CAAddress, at)
	return nil
}
