package clustercmd

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

// Types of remote secrets and of their credentials, as Istio's tool calls them.
const (
	typeRemote      = "remote"
	typeConfig      = "config"
	authBearerToken = "bearer-token"
	authPlugin      = "plugin"
)

type createRemoteSecretOptions struct {
	kube      cli.KubeFlags
	namespace cli.NamespaceFlags
	context   string

	name           string
	kind           string
	authType       string
	pluginName     string
	pluginConfig   map[string]string
	serviceAccount string
	createAccount  bool
	secretName     string

	server        string
	tlsServerName string
	ca            string
	force         bool

	ttl    time.Duration
	rbac   rbacFlags
	apply  bool
	to     []string
	dryRun bool
	out    string
}

func NewCreateRemoteSecret(env *cli.Env) *cobra.Command {
	o := &createRemoteSecretOptions{}
	cmd := &cobra.Command{
		Use:   "create-remote-secret",
		Short: "Make the secret by which another control plane reads this cluster",
		Long: `Print the remote secret of a cluster: a Secret with a kubeconfig, by which the
control planes of other clusters find its services. Apply it in their clusters.

The service account that the secret holds a token of is made, with a role for
what a control plane reads and no more, unless it is there already and may do
it. Nothing is written before it is clear that all may be written; what the
account may not read in the end is named with what does not work without it.

With --ttl the token ends and a control plane that is a meshctl renews it, at two
thirds of its life. It is bound to a Secret of its own in the cluster: deleting
that one revokes it at once.

A secret that is given by --server holds that address as it is. With --server
auto all addresses that the cluster has are tried from here, and the best one is
taken; one of this machine itself is not, unless --force is given.`,
		Example: `  # cluster west, for the control plane in cluster east
  meshctl create-remote-secret --context west --name west | kubectl apply -f - --context east

  # the same, with a token that ends, at the address that works
  meshctl create-remote-secret --context west --name west --ttl 24h --server auto --apply --to east

  # see first what would be written
  meshctl create-remote-secret --context west --name west --dry-run`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.bind(cmd.Flags())
	o.kube.ContextFlags(env, cmd, "context", "to")
	return cmd
}

func (o *createRemoteSecretOptions) bind(fs *pflag.FlagSet) {
	o.kube.Bind(fs)
	o.namespace.Bind(fs, "Namespace of the service account and of the secret")
	fs.StringVar(&o.context, "context", "", "Kubeconfig `context` of the cluster (default the current one)")
	fs.StringVar(&o.name, "name", "", "Name of the cluster, a DNS label (default the UID of its namespace kube-system)")
	fs.StringVar(&o.kind, "type", typeRemote, "What the secret is for: remote, or config for a cluster that holds the mesh's configuration")
	fs.StringVar(&o.authType, "auth-type", authBearerToken, "What proves the reader: bearer-token or plugin")
	fs.StringVar(&o.pluginName, "auth-plugin-name", "", "Name of the auth provider, with --auth-type plugin")
	fs.StringToStringVar(&o.pluginConfig, "auth-plugin-config", nil, "Settings of the auth provider, as `key=value,...`")
	fs.StringVar(&o.serviceAccount, "service-account", "",
		"Service account that the reader is (default "+readerAccount+", with --type config istiod)")
	fs.BoolVar(&o.createAccount, "create-service-account", true, "Make the service account with its namespace and role where they are missing")
	fs.StringVar(&o.secretName, "secret-name", "", "Name of the token Secret of the service account (default any that it has, else a new one)")
	fs.StringVar(&o.server, "server", "", "Address of the API server, as `URL`, or auto (default that of the kubeconfig)")
	fs.StringVar(&o.tlsServerName, "tls-server-name", "", "Name that the certificate of the API server is for (default the host of its address)")
	fs.StringVar(&o.ca, "ca", multicluster.CAAuto, "CA of the API server: auto (the one that signs what it shows), sa (the cluster's own), kubeconfig, file:`FILE` or system")
	fs.BoolVar(&o.force, "force", false, "With --server auto, take an address of this machine if there is no other")
	cli.DurationVar(fs, &o.ttl, "ttl", 0, "Life of the token, at least 10m; 0 makes one without an end")
	o.rbac.bind(fs)
	fs.BoolVar(&o.apply, "apply", false, "Write the secret into the clusters of --to instead of printing it")
	fs.StringSliceVar(&o.to, "to", nil, "Kubeconfig `context`s to write the secret into, with --apply")
	fs.BoolVar(&o.dryRun, "dry-run", false, "Print what would be written into the cluster, and write nothing")
	fs.StringVar(&o.out, "out", "", "Write the secret into this `file`, mode 0600, instead of printing it")
}

func (o *createRemoteSecretOptions) run(ctx context.Context, env *cli.Env) error {
	r, err := o.request(env)
	if err != nil {
		return err
	}
	cluster, err := o.kube.Connect(env, o.context)
	if err != nil {
		return err
	}
	targets, err := o.targets(env)
	if err != nil {
		return err
	}
	prepared, err := cluster.Prepare(ctx, r)
	if prepared != nil {
		printCandidates(env, prepared.Candidates)
		cli.PrintWarnings(env, prepared.Warnings)
	}
	if err != nil {
		return err
	}
	if err := prepared.CheckTargets(ctx, targets); err != nil {
		return err
	}
	if o.dryRun {
		return o.printPlan(env, prepared, targets)
	}
	made, err := prepared.Make(ctx)
	if err != nil {
		return err
	}
	cli.PrintWarnings(env, made.Lacking())
	if r.TTL > 0 && made.Expires.Sub(env.Now()) < r.TTL*9/10 {
		fmt.Fprintf(env.Stderr, "warn: the API server gave the token until %s only\n", made.Expires.UTC().Format(time.RFC3339))
	}
	return o.deliver(ctx, env, made, targets)
}

// deliver hands the secret over in the way that was asked for.
func (o *createRemoteSecretOptions) deliver(ctx context.Context, env *cli.Env, made *multicluster.Made, targets []*multicluster.Cluster) error {
	for _, target := range targets {
		if err := target.Apply(ctx, made.Secret); err != nil {
			return err
		}
		fmt.Fprintf(env.Stdout, "wrote secret %s/%s in %s\n", made.Secret.Namespace, made.Secret.Name, target.Name)
	}
	text, err := remotesecret.Encode(made.Secret)
	if err != nil {
		return err
	}
	switch {
	case o.out != "":
		if err := files.Write(o.out, text, files.Secret); err != nil {
			return err
		}
		cli.PrintPaths(env.Stdout, []string{o.out})
		return nil
	case o.apply:
		return nil
	}
	cli.WarnOnTerminal(env, "who sees this token may read the cluster; pipe it into kubectl apply -f -, or keep it in a file with --out FILE")
	return cli.PrintData(env, text)
}

// request reads the flags.
func (o *createRemoteSecretOptions) request(env *cli.Env) (*multicluster.Request, error) {
	namespace, err := o.namespace.Value()
	if err != nil {
		return nil, err
	}
	scope, err := o.rbac.scope()
	if err != nil {
		return nil, err
	}
	if err := o.checkFlags(); err != nil {
		return nil, err
	}
	scope.Configuration, scope.Renew = o.kind == typeConfig, o.ttl > 0
	r := &multicluster.Request{
		Request: create.Request{
			Account: create.Account{Namespace: namespace, Name: o.serviceAccount}, Scope: scope,
			Create: o.createAccount, TokenSecret: o.secretName, TTL: o.ttl, Rand: rand.Reader,
		},
		Cluster: mesh.ClusterID(o.name), Config: o.kind == typeConfig,
		Server: o.server, TLSServerName: o.tlsServerName, CA: o.ca, Force: o.force, Now: env.Now(),
	}
	if r.Account.Name == "" {
		r.Account.Name = readerAccount
		if o.kind == typeConfig {
			r.Account.Name = "istiod"
		}
	}
	if o.authType == authPlugin {
		r.NoToken = true
		r.Plugin = &remotesecret.AuthProvider{Name: o.pluginName, Config: o.pluginConfig}
	}
	if path, ok := strings.CutPrefix(o.ca, multicluster.CAFile+":"); ok {
		if r.CAPEM, err = files.Read(path, maxCAFile); err != nil {
			return nil, err
		}
		r.CA = multicluster.CAFile
	}
	return r, nil
}

// maxCAFile bounds the file of --ca, in bytes.
const maxCAFile = 1 << 20

func (o *createRemoteSecretOptions) checkFlags() error {
	cas := []string{multicluster.CAAuto, multicluster.CASA, multicluster.CAKubeconfig, multicluster.CASystem}
	switch {
	case o.name != "" && !mesh.IsDNSLabel(o.name):
		return cli.Usagef("%v is not a valid DNS 1123 label", o.name)
	case o.kind != typeRemote && o.kind != typeConfig:
		return cli.Usagef("unsupported type: %v", o.kind)
	case o.authType != authBearerToken && o.authType != authPlugin:
		return cli.Usagef("unsupported authentication type: %v", o.authType)
	case o.authType == authPlugin && o.pluginName == "":
		return cli.Usagef("--auth-type plugin needs --auth-plugin-name")
	case o.authType != authPlugin && (o.pluginName != "" || o.pluginConfig != nil):
		return cli.Usagef("--auth-plugin-name and --auth-plugin-config need --auth-type plugin")
	case o.authType == authPlugin && o.ttl > 0:
		return cli.Usagef("--ttl is the life of a token, and --auth-type plugin has none")
	case o.serviceAccount != "" && !mesh.IsDNSName(o.serviceAccount):
		return cli.Usagef("--service-account: %q is not a DNS name", o.serviceAccount)
	case o.ttl > 0 && o.ttl < create.MinTTL:
		return cli.Usagef("--ttl is %s: API servers give no token less than %s", cli.FormatDuration(o.ttl), cli.FormatDuration(create.MinTTL))
	case o.ttl > 0 && o.secretName != "":
		return cli.Usagef("--secret-name is a Secret with a token that has no end: leave --ttl out")
	case !strings.HasPrefix(o.ca, multicluster.CAFile+":") && !slices.Contains(cas, o.ca):
		return cli.Usagef("--ca is %q: want auto, sa, kubeconfig, file:FILE or system", o.ca)
	case o.apply != (len(o.to) > 0):
		return cli.Usagef("--apply and --to CONTEXT go together")
	}
	return nil
}

func (o *createRemoteSecretOptions) targets(env *cli.Env) ([]*multicluster.Cluster, error) {
	var targets []*multicluster.Cluster
	for _, name := range o.to {
		if name == "" {
			return nil, cli.Usagef("--to has an empty context")
		}
		target, err := o.kube.Connect(env, name)
		if err != nil {
			return nil, err
		}
		targets = append(targets, target)
	}
	return targets, nil
}

// printCandidates shows which addresses were tried, and how that went.
func printCandidates(env *cli.Env, candidates []create.Address) {
	if len(candidates) == 0 {
		return
	}
	table := output.Table{Header: []string{"SERVER", "NAMED BY", "RESULT"}}
	for i := range candidates {
		c := &candidates[i]
		result := "works"
		switch {
		case c.Err != nil:
			result = c.Err.Error()
		case c.Loopback():
			result = "works, but is the reader's own machine"
		case c.TLSServerName != "":
			result = "works as " + c.TLSServerName
		}
		if c.CA != nil {
			result += ", CA: " + c.CA.Name
		}
		table.Rows = append(table.Rows, []string{c.URL, c.Source, result})
	}
	_ = table.Write(env.Stderr)
}

// printPlan prints the objects as YAML, and says what else would be written.
func (o *createRemoteSecretOptions) printPlan(env *cli.Env, p *multicluster.Prepared, targets []*multicluster.Cluster) error {
	var text []byte
	for _, object := range p.Plan.Objects {
		doc, err := yaml.Marshal(object.Value)
		if err != nil {
			return fmt.Errorf("encode %s %s: %w", object.Kind, object.Name, err)
		}
		text = append(append(text, doc...), "---\n"...)
	}
	for _, stale := range p.Plan.Stale {
		fmt.Fprintf(env.Stderr, "would delete %s %s/%s\n", stale.Kind, stale.Namespace, stale.Name)
	}
	where := "on standard output"
	if len(targets) > 0 {
		var names []string
		for _, target := range targets {
			names = append(names, target.Name)
		}
		where = "in " + strings.Join(names, ", ")
	}
	fmt.Fprintf(env.Stderr, "would write %d objects here, and the secret of cluster %s with server %s %s\n",
		len(p.Plan.Objects), p.ID, p.Server(), where)
	return cli.PrintData(env, text)
}
