package clustercmd

import (
	"context"
	"crypto/rand"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

// Types of remote secrets and of their credentials, by istioctl's names.
const (
	typeRemote      = "remote"
	typeConfig      = "config"
	authBearerToken = "bearer-token"
	authPlugin      = "plugin"
)

type createRemoteSecretOptions struct {
	kube    kubeFlags
	context string

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

// NewCreateRemoteSecret returns the command create-remote-secret.
func NewCreateRemoteSecret(env *cli.Env) *cobra.Command {
	o := &createRemoteSecretOptions{}
	cmd := &cobra.Command{
		Use:   "create-remote-secret",
		Short: "Create the secret that lets other control planes read this cluster",
		Long: `Print the remote secret of a cluster: a Secret with a kubeconfig. With this kubeconfig,
control planes of other clusters find the services of the cluster. Apply the Secret in
the clusters of these control planes.

The command creates the service account of the token, with a role that permits only what
a control plane reads, unless the account exists and has these permissions. It writes
nothing until it has checked that it may write everything. At the end it reports the
permissions that the account lacks, and what does not work without them.

With --ttl the token expires, and a control plane of meshctl renews it after two
thirds of its life. The token is bound to a Secret in the cluster: delete that Secret
to revoke the token at once.

The secret contains the address in --api-server unchanged. With --api-server auto the command
tries all known addresses of the cluster from here and uses the best one. It uses an
address of this machine only with --force.`,
		Example: `  # Create the secret of cluster west for the control plane in cluster east
  meshctl create-remote-secret --context west --name west | kubectl apply -f - --context east

  # Do the same, with a token that expires and an address that works
  meshctl create-remote-secret --context west --name west --ttl 24h --api-server auto --apply --to east

  # Show what would be written
  meshctl create-remote-secret --context west --name west --dry-run`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.bind(env, cmd)
	return cmd
}

func (o *createRemoteSecretOptions) bind(env *cli.Env, cmd *cobra.Command) {
	fs := cmd.Flags()
	o.kube.bind(env, cmd, "the service account and of the secret")
	o.kube.ContextVar(env, cmd, &o.context, "context", "Kubeconfig `context` of the cluster (default the current one)")
	fs.StringVar(&o.name, "name", "", "`Name` of the cluster, a DNS label (default the UID of its namespace kube-system)")
	fs.StringVar(&o.kind, "type", typeRemote, "`Type` of the cluster: remote, or config if it holds the configuration of the mesh")
	fs.StringVar(&o.authType, "auth-type", authBearerToken, "`Type` of the credential: bearer-token or plugin")
	fs.StringVar(&o.pluginName, "auth-plugin-name", "", "`Name` of the auth provider, with --auth-type plugin")
	cli.MapVar(fs, &o.pluginConfig, "auth-plugin-config", "Settings of the auth provider, as `key=value,...`")
	fs.StringVar(&o.serviceAccount, "service-account", "",
		"Service `account` of the reader (default "+create.Reader+", with --type config istiod)")
	fs.BoolVar(&o.createAccount, "create-service-account", true, "Create the service account, its namespace and its role if they do not exist")
	fs.StringVar(&o.secretName, "secret-name", "", "`Name` of the token Secret of the service account (default any existing one, else a new one)")
	fs.StringVar(&o.server, "api-server", "", "`URL` of the API server, or auto (default the URL in the kubeconfig)")
	cli.Alias(fs, "api-server", "server")
	fs.StringVar(&o.tlsServerName, "tls-server-name", "", "Host `name` in the certificate of the API server (default the host of its URL)")
	fs.StringVar(&o.ca, "ca", multicluster.CAAuto, "CA of the API server: auto (the CA that signed the certificate of the API server), sa (the CA of the cluster), kubeconfig, file:`FILE` or system")
	cli.Suggest(fs, "ca", cas()...)
	bindForce(fs, &o.force)
	cli.DurationVar(fs, &o.ttl, "ttl", 0, "Lifetime of the token, at least 10m; 0 makes a token that never expires")
	o.rbac.bind(fs)
	fs.BoolVar(&o.apply, "apply", false, "Write the secret into the clusters of --to instead of printing it")
	o.kube.ContextListVar(env, cmd, &o.to, "to", "Kubeconfig `context`s to write the secret into, with --apply")
	fs.BoolVar(&o.dryRun, "dry-run", false, "Print what would be written, and write nothing")
	fs.StringVar(&o.out, "out", "", "Write the secret to this `file`, with mode 0600, instead of printing it")
}

func (o *createRemoteSecretOptions) run(ctx context.Context, env *cli.Env) error {
	r, err := o.request(env)
	if err != nil {
		return err
	}
	if o.out != "" {
		if err := files.CheckOutput(filepath.Dir(o.out)); err != nil {
			return err
		}
	}
	cluster, err := o.kube.Connect(env, o.context)
	if err != nil {
		return err
	}
	targets, err := o.kube.connectAll(env, "to", o.to)
	if err != nil {
		return err
	}
	prepared, err := cluster.Prepare(ctx, r)
	if prepared != nil {
		printCandidates(env, prepared.Candidates)
		printWarnings(env, prepared.Warnings)
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
	printWarnings(env, made.Lacking())
	if r.TTL > 0 && made.Expires.Sub(env.Now()) < r.TTL*9/10 {
		env.Warnf("the token expires at %s already: the API server limits its lifetime", made.Expires.UTC().Format(time.RFC3339))
	}
	return o.deliver(ctx, env, made, targets)
}

// deliver applies, writes or prints the secret.
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
		env.Wrote(o.out)
		return nil
	case o.apply:
		return nil
	}
	env.WarnSecret("a token that reads the cluster")
	return env.WriteOut(text)
}

func printWarnings(env *cli.Env, warnings []string) {
	for _, w := range warnings {
		env.Warnf("%s", w)
	}
}

// request returns the request of the flags.
func (o *createRemoteSecretOptions) request(env *cli.Env) (*multicluster.Request, error) {
	namespace, err := o.kube.theNamespace()
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
		r.Account.Name = create.Reader
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

// cas returns the values of --ca, without file:FILE.
func cas() []string {
	return []string{multicluster.CAAuto, multicluster.CASA, multicluster.CAKubeconfig, multicluster.CASystem}
}

func (o *createRemoteSecretOptions) checkFlags() error {
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
		return cli.Usagef("--ttl is for tokens: it does not work with --auth-type plugin")
	case o.serviceAccount != "" && !mesh.IsDNSName(o.serviceAccount):
		return cli.Usagef("--service-account: %q is not a DNS name", o.serviceAccount)
	case o.ttl > 0 && o.secretName != "":
		return cli.Usagef("--secret-name names a Secret whose token never expires: leave out --ttl")
	case !strings.HasPrefix(o.ca, multicluster.CAFile+":") && !slices.Contains(cas(), o.ca):
		return cli.Usagef("--ca is %q: want auto, sa, kubeconfig, file:FILE or system", o.ca)
	case o.apply != (len(o.to) > 0):
		return cli.Usagef("--apply and --to CONTEXT go together")
	}
	return checkTTL(o.ttl)
}

// checkTTL refuses a lifetime of tokens that API servers do not give.
func checkTTL(ttl time.Duration) error {
	if ttl > 0 && ttl < create.MinTTL {
		return cli.Usagef("--ttl is %s: the least that API servers allow is %s", cli.FormatDuration(ttl), cli.FormatDuration(create.MinTTL))
	}
	return nil
}

// printCandidates shows the tried addresses with their results.
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
			result = "works, but is this machine"
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

// printPlan prints the objects of a dry run as YAML, and the other changes to Stderr.
func (o *createRemoteSecretOptions) printPlan(env *cli.Env, p *multicluster.Prepared, targets []*multicluster.Cluster) error {
	var text []byte
	for _, object := range p.Plan.Objects {
		doc, err := yaml.Marshal(object)
		if err != nil {
			return fmt.Errorf("encode %s: %w", object.GetName(), err)
		}
		text = append(append(text, doc...), "---\n"...)
	}
	for _, stale := range p.Plan.Stale {
		env.Notef("would delete %s %s/%s", stale.GetObjectKind().GroupVersionKind().Kind, stale.GetNamespace(), stale.GetName())
	}
	where := "on standard output"
	if len(targets) > 0 {
		var names []string
		for _, target := range targets {
			names = append(names, target.Name)
		}
		where = "in " + strings.Join(names, ", ")
	}
	env.Notef("would write %d objects in this cluster, and the secret of cluster %s with server %s %s",
		len(p.Plan.Objects), p.ID, p.Server, where)
	return env.WriteOut(text)
}
