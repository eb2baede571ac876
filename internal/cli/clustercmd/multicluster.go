// Package clustercmd holds the commands that join clusters: multicluster,
// create-remote-secret, remote-secret and remote-clusters.
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

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

func NewMulticluster(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "multicluster",
		Short: "Join clusters to a mesh",
		Long:  "Join clusters to a mesh, take them out of it, and say what part they take in load balancing.",
		Example: `  meshctl multicluster link east west north
  meshctl multicluster unlink east north
  meshctl multicluster drain west --context east,north`,
	}
	cmd.AddCommand(newMulticlusterLinkCmd(env), newMulticlusterUnlinkCmd(env),
		newMulticlusterDrainCmd(env), newMulticlusterUndrainCmd(env), newMulticlusterWeightCmd(env))
	return cmd
}

// linkFlags name the clusters that are linked.
type linkFlags struct {
	kube      cli.KubeFlags
	namespace cli.NamespaceFlags
	names     map[string]string
}

func (l *linkFlags) bind(fs *pflag.FlagSet) {
	l.kube.Bind(fs)
	l.namespace.Bind(fs, "Namespace of the service accounts and of the secrets")
	fs.StringToStringVar(&l.names, "name", nil, "Name of the cluster of a context, as `CONTEXT=NAME` (default that of the context)")
}

type multiclusterLinkOptions struct {
	linkFlags
	rbac   rbacFlags
	ttl    time.Duration
	server string
	ca     string
	force  bool
}

func newMulticlusterLinkCmd(env *cli.Env) *cobra.Command {
	o := &multiclusterLinkOptions{}
	cmd := &cobra.Command{
		Use:   "link CONTEXT CONTEXT...",
		Short: "Let the control planes of clusters read each other's clusters",
		Long: `Give each of the clusters the remote secrets of all others, as
meshctl create-remote-secret --apply does for one of them. What is there and good
is kept, so it may be run again at any time, and with one more cluster.

Where a credential is replaced, as by one with --ttl, the earlier tokens of the
cluster's reader that meshctl made end. They stay, and are named, when a cluster that
is not among CONTEXTS may read with them.

Nothing is written before it is clear that all may be.`,
		Example: `  meshctl multicluster link east west
  meshctl multicluster link east west north --ttl 24h --server auto`,
		Args:              cobra.ArbitraryArgs, // run tells what is wrong with them
		ValidArgsFunction: o.kube.CompleteContexts(env),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), env, args) },
	}
	fs := cmd.Flags()
	o.bind(fs)
	o.rbac.bind(fs)
	cli.DurationVar(fs, &o.ttl, "ttl", 0, "Life of the tokens, at least 10m; 0 makes them without an end")
	cli.ChoiceVar(fs, &o.server, "server", "", "Addresses of the API servers", serverKubeconfig, multicluster.ServerAuto)
	cli.ChoiceVar(fs, &o.ca, "ca", "", "CAs of the API servers", multicluster.CAAuto, multicluster.CASA, multicluster.CAKubeconfig, multicluster.CASystem)
	fs.BoolVar(&o.force, "force", false, "With --server auto, take an address of this machine if there is no other")
	return cmd
}

// serverKubeconfig takes the addresses as the kubeconfig has them.
const serverKubeconfig = "kubeconfig"

func (o *multiclusterLinkOptions) run(ctx context.Context, env *cli.Env, contexts []string) error {
	scope, err := o.rbac.scope()
	if err != nil {
		return err
	}
	if o.ttl > 0 && o.ttl < create.MinTTL {
		return cli.Usagef("--ttl is %s: API servers give no token less than %s", cli.FormatDuration(o.ttl), cli.FormatDuration(create.MinTTL))
	}
	members, err := o.members(env, contexts)
	if err != nil {
		return err
	}
	scope.Renew = o.ttl > 0
	for i, m := range members {
		r := m.Request
		others := slices.Delete(slices.Clone(contexts), i, i+1)
		r.Command = fmt.Sprintf("meshctl create-remote-secret --context %s --name %s -n %s --apply --to %s",
			contexts[i], r.Cluster, r.Account.Namespace, strings.Join(others, ","))
		r.Scope, r.TTL, r.CA, r.Force, r.Create = scope, o.ttl, o.ca, o.force, true
		if o.server == multicluster.ServerAuto {
			r.Server = o.server
		}
	}
	if err := multicluster.Link(ctx, members, sayTo(env)); err != nil {
		return err
	}
	fmt.Fprintf(env.Stdout, "%s linked\n", cli.Plural(len(members), "cluster"))
	return nil
}

// members connects to the clusters of the contexts.
func (l *linkFlags) members(env *cli.Env, contexts []string) ([]*multicluster.Member, error) {
	namespace, err := l.namespace.Value()
	if err != nil {
		return nil, err
	}
	if len(contexts) < 2 {
		return nil, cli.Usagef("name the contexts of at least two clusters")
	}
	for name := range l.names {
		if !slices.Contains(contexts, name) {
			return nil, cli.Usagef("--name %s=...: that context is none of %s", name, strings.Join(contexts, ", "))
		}
	}
	var members []*multicluster.Member
	for _, name := range contexts {
		id := name
		if given := l.names[name]; given != "" {
			id = given
		}
		if !mesh.IsDNSLabel(id) {
			return nil, cli.Usagef("%v is not a valid DNS 1123 label; name the cluster with --name %s=NAME", id, name)
		}
		c, err := l.kube.Connect(env, name)
		if err != nil {
			return nil, err
		}
		r := &multicluster.Request{Cluster: mesh.ClusterID(id), Now: env.Now()}
		r.Account, r.Rand = create.Account{Namespace: namespace, Name: readerAccount}, rand.Reader
		members = append(members, &multicluster.Member{Cluster: c, Request: r})
	}
	return members, nil
}

type multiclusterUnlinkOptions struct{ linkFlags }

func newMulticlusterUnlinkCmd(env *cli.Env) *cobra.Command {
	o := &multiclusterUnlinkOptions{}
	cmd := &cobra.Command{
		Use:   "unlink CONTEXT CONTEXT...",
		Short: "Delete the remote secrets that clusters have of each other",
		Long: `Delete the remote secrets that the clusters have of each other: the way back from
meshctl multicluster link. Their control planes take the endpoints of the others
away at once.

The tokens that meshctl made for the clusters' readers end. They stay, and are named,
when a cluster that is not among CONTEXTS may read with them: meshctl remote-secret
rotate ends them then, and gives that cluster a new one. Token Secrets that others
made are listed and stay.`,
		Example:           "  meshctl multicluster unlink east west",
		Args:              cobra.ArbitraryArgs, // run tells what is wrong with them
		ValidArgsFunction: o.kube.CompleteContexts(env),
		RunE: func(cmd *cobra.Command, args []string) error {
			members, err := o.members(env, args)
			if err != nil {
				return err
			}
			deleted, err := multicluster.Unlink(cmd.Context(), members, sayTo(env))
			if err != nil {
				return err
			}
			if deleted == 0 {
				fmt.Fprintln(env.Stdout, "nothing to unlink: the clusters have no remote secrets of each other")
				return nil
			}
			fmt.Fprintf(env.Stdout, "%s unlinked\n", cli.Plural(len(members), "cluster"))
			return nil
		},
	}
	o.bind(cmd.Flags())
	return cmd
}
