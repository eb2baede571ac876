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

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

// NewMulticluster returns the command multicluster.
func NewMulticluster(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "multicluster",
		Short: "Join clusters to a mesh",
		Long:  "Join clusters to a mesh, remove them from it, and set their share of the load.",
		Example: `  meshctl multicluster link east west north
  meshctl multicluster unlink east north
  meshctl multicluster drain west --context east,north`,
	}
	cmd.AddCommand(newMulticlusterLinkCmd(env), newMulticlusterUnlinkCmd(env),
		newMulticlusterDrainCmd(env), newMulticlusterUndrainCmd(env), newMulticlusterWeightCmd(env))
	return cmd
}

// linkFlags hold the flags of link and unlink.
type linkFlags struct {
	kube  kubeFlags
	names map[string]string
}

func (l *linkFlags) bind(env *cli.Env, cmd *cobra.Command) {
	l.kube.bind(env, cmd, "the service accounts and of the secrets")
	cli.MapVar(cmd.Flags(), &l.names, "name", "`Name` of the cluster of a context, as `CONTEXT=NAME` (default the name of the context)")
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
		Long: `Write the remote secret of each cluster into all other clusters, as meshctl
create-remote-secret --apply does for one cluster. The command keeps secrets that work:
run it again at any time, also with another cluster.

When link replaces a credential, for example by one with --ttl, it revokes the earlier
tokens that meshctl created for the reader of the cluster. If a cluster of CONTEXTS also
reads a further cluster, the further cluster may use the same tokens: link then keeps
and lists these tokens.

The command writes nothing until it has checked that it may write everything.`,
		Example: `  meshctl multicluster link east west
  meshctl multicluster link east west north --ttl 24h --api-server auto`,
		Args:              cobra.ArbitraryArgs, // checked by members
		ValidArgsFunction: o.kube.CompleteContexts(env),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), env, args) },
	}
	fs := cmd.Flags()
	o.bind(env, cmd)
	o.rbac.bind(fs)
	cli.DurationVar(fs, &o.ttl, "ttl", 0, "Lifetime of the tokens, at least 10m; 0 makes tokens that never expire")
	cli.ChoiceVar(fs, &o.server, "api-server", "Addresses of the API servers", serverKubeconfig, multicluster.ServerAuto)
	cli.Alias(fs, "api-server", "server")
	cli.ChoiceVar(fs, &o.ca, "ca", "CAs of the API servers", cas()...)
	bindForce(fs, &o.force)
	return cmd
}

// serverKubeconfig takes the addresses in the kubeconfig.
const serverKubeconfig = "kubeconfig"

func (o *multiclusterLinkOptions) run(ctx context.Context, env *cli.Env, contexts []string) error {
	scope, err := o.rbac.scope()
	if err != nil {
		return err
	}
	if err := checkTTL(o.ttl); err != nil {
		return err
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
	if err := multicluster.Link(ctx, members, env.Notef); err != nil {
		return err
	}
	fmt.Fprintf(env.Stdout, "%s linked\n", output.Plural(len(members), "cluster"))
	return nil
}

// members connects to the clusters of the contexts.
func (l *linkFlags) members(env *cli.Env, contexts []string) ([]*multicluster.Member, error) {
	namespace, err := l.kube.theNamespace()
	if err != nil {
		return nil, err
	}
	if len(contexts) < 2 {
		return nil, cli.Usagef("name the contexts of at least two clusters")
	}
	for name := range l.names {
		if !slices.Contains(contexts, name) {
			return nil, cli.Usagef("--name %s=...: the context is not one of %s", name, strings.Join(contexts, ", "))
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
		r.Account, r.Rand = create.Account{Namespace: namespace, Name: create.Reader}, rand.Reader
		members = append(members, &multicluster.Member{Cluster: c, Request: r})
	}
	return members, nil
}

type multiclusterUnlinkOptions struct{ linkFlags }

func newMulticlusterUnlinkCmd(env *cli.Env) *cobra.Command {
	o := &multiclusterUnlinkOptions{}
	cmd := &cobra.Command{
		Use:   "unlink CONTEXT CONTEXT...",
		Short: "Delete the remote secret of each cluster in all other clusters",
		Long: `Delete the remote secret of each cluster in all other clusters. This reverses meshctl
multicluster link. The control planes remove the endpoints of the other clusters at
once.

unlink revokes the tokens that meshctl created for the readers of the clusters. If one
of the clusters also reads a cluster that is not in CONTEXTS, that cluster probably also
reads the clusters in CONTEXTS, with the same tokens: unlink then keeps and lists these
tokens, and meshctl remote-secret rotate replaces them. Token Secrets that meshctl did
not create are also kept and listed.`,
		Example:           "  meshctl multicluster unlink east west",
		Args:              cobra.ArbitraryArgs, // checked by members
		ValidArgsFunction: o.kube.CompleteContexts(env),
		RunE: func(cmd *cobra.Command, args []string) error {
			members, err := o.members(env, args)
			if err != nil {
				return err
			}
			deleted, err := multicluster.Unlink(cmd.Context(), members, env.Notef)
			if err != nil {
				return err
			}
			if deleted == 0 {
				fmt.Fprintf(env.Stdout, "nothing to unlink: %s have no remote secrets of each other in namespace %s\n", cli.Named("cluster", args), members[0].Request.Account.Namespace)
				return nil
			}
			fmt.Fprintf(env.Stdout, "%s unlinked\n", output.Plural(len(members), "cluster"))
			return nil
		},
	}
	o.bind(env, cmd)
	return cmd
}
