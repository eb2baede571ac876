package clustercmd

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
	"github.com/meshctl/meshctl/internal/replicas"
)

type remoteSecretRotateOptions struct {
	kube      cli.KubeFlags
	namespace cli.NamespaceFlags
	from      string
	to        []string
	name      string
	ttl       time.Duration
	replicas  []string
	token     cli.TokenFlag
	timeout   time.Duration
	noWait    bool
	abort     bool
}

func newRemoteSecretRotateCmd(env *cli.Env) *cobra.Command {
	o := &remoteSecretRotateOptions{}
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Replace the credential of a remote secret without a gap",
		Long: `Replace the token by which other clusters read a cluster: make a new one, write it
into their remote secrets, wait until every replica of their control planes reports
that it reads the cluster with it, and only then end the old one.

--to has to name every cluster that has the secret: all earlier tokens of the
reader that meshctl made end, for all clusters. Token Secrets of the reader that
others made are listed and stay. The exit code is 3 when the old token still works,
as one that is bound to no Secret.

The replicas are those that the control planes of these clusters have, each with a
Lease; what it says is enough where they cannot be reached. --replica names them
by address instead, that of meshctl serve --http-addr: they answer the user that
runs them on their own machine, and others with --token-file.

A rotation that was interrupted, or whose replicas took too long, goes on when
the command is run again. Until it is finished the old secret is kept beside the
new one, as NAME-previous, and --abort puts it back and ends the new token.`,
		Example: `  meshctl remote-secret rotate --from west --to east,north

  # take it back
  meshctl remote-secret rotate --from west --to east,north --abort`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	o.kube.Bind(fs)
	o.namespace.Bind(fs, "Namespace of the secret")
	fs.StringVar(&o.from, "from", "", "Kubeconfig `context` of the cluster whose credential it is (required)")
	fs.StringSliceVar(&o.to, "to", nil, "Kubeconfig `context`s of the clusters that have its remote secret (required)")
	fs.StringVar(&o.name, "name", "", "Name of the cluster (default that of the context)")
	cli.DurationVar(fs, &o.ttl, "ttl", 0, "Life of the new token, at least 10m; 0 makes it like the old one")
	fs.StringSliceVar(&o.replicas, "replica", nil, "HTTP `address` of a replica, host:port; may be repeated (default: all that keep a Lease or run in pods in the clusters of --to)")
	o.token.Bind(fs)
	cli.DurationVar(fs, &o.timeout, "timeout", 5*time.Minute, "How long to wait for the replicas")
	fs.BoolVar(&o.noWait, "no-wait", false, "End the old token without asking any replica")
	fs.BoolVar(&o.abort, "abort", false, "Put the old credential back, and end the new one")
	o.kube.ContextFlags(env, cmd, "from", "to")
	return cmd
}

func (o *remoteSecretRotateOptions) run(ctx context.Context, env *cli.Env) error {
	r, err := o.rotation(env)
	if err != nil {
		return err
	}
	if o.abort {
		if err := r.Abort(ctx); err != nil {
			return err
		}
		fmt.Fprintf(env.Stdout, "cluster %s has its old credential again\n", r.ID)
		return nil
	}
	if !o.noWait { // before anything is written
		found, err := o.find(ctx, env, r)
		if err != nil {
			return fmt.Errorf("nothing is written: %w", err)
		}
		cli.CloseReplicas(found)
	}
	credential, err := r.Begin(ctx)
	if err != nil {
		return err
	}
	if !o.noWait {
		ctx, cancel := context.WithTimeout(ctx, o.timeout)
		defer cancel()
		find := func(ctx context.Context) ([]*replicas.Replica, error) { return o.find(ctx, env, r) }
		if err := multicluster.WaitInUse(ctx, find, r.ID, credential, r.Say); err != nil {
			return fmt.Errorf("%w; the old credential is kept: run this again to go on, or with --abort to go back", err)
		}
	}
	working, err := r.Finish(ctx)
	if err != nil {
		return fmt.Errorf("%w; old tokens may still work: run this again to end them", err)
	}
	if len(working) > 0 {
		fmt.Fprintf(env.Stdout, "cluster %s has credential %s\n", r.ID, credential)
		return cli.Findingsf("%s", output.EscapeLines(working))
	}
	fmt.Fprintf(env.Stdout, "cluster %s has credential %s, and the old one has ended\n", r.ID, credential)
	return nil
}

// find finds the replicas that must use the new credential.
func (o *remoteSecretRotateOptions) find(ctx context.Context, env *cli.Env, r *multicluster.Rotation) ([]*replicas.Replica, error) {
	if len(o.replicas) == 0 {
		found, err := multicluster.FindReplicas(ctx, r.To, r.Namespace, o.token.Tokens(env), env.Now)
		if err != nil {
			return nil, fmt.Errorf("%w; name the replicas with --replica, or ask none with --no-wait", err)
		}
		return found, nil
	}
	var out []*replicas.Replica
	for _, address := range o.replicas {
		at, err := replicas.At(address, o.token.Tokens(env), kube.RequestTimeout)
		if err != nil {
			return nil, cli.Usagef("--replica %w", err)
		}
		out = append(out, at)
	}
	return out, nil
}

func (o *remoteSecretRotateOptions) rotation(env *cli.Env) (*multicluster.Rotation, error) {
	namespace, err := o.namespace.Value()
	if err != nil {
		return nil, err
	}
	if o.name == "" {
		o.name = o.from
	}
	switch {
	case o.from == "" || len(o.to) == 0:
		return nil, cli.Usagef("--from and --to are required")
	case !mesh.IsDNSLabel(o.name):
		return nil, cli.Usagef("%v is not a valid DNS 1123 label; name the cluster with --name", o.name)
	case o.ttl > 0 && o.ttl < create.MinTTL:
		return nil, cli.Usagef("--ttl is %s: API servers give no token less than %s", cli.FormatDuration(o.ttl), cli.FormatDuration(create.MinTTL))
	case o.noWait && len(o.replicas) > 0:
		return nil, cli.Usagef("--replica names replicas to wait for, and --no-wait asks none: give one of them")
	}
	for _, address := range o.replicas {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, cli.Usagef("--replica %q: want host:port", address)
		}
	}
	r := &multicluster.Rotation{
		ID: mesh.ClusterID(o.name), Namespace: namespace, TTL: o.ttl, Rand: rand.Reader, Say: sayTo(env),
	}
	if r.From, err = o.kube.Connect(env, o.from); err != nil {
		return nil, err
	}
	for _, name := range o.to {
		c, err := o.kube.Connect(env, name)
		if err != nil {
			return nil, err
		}
		r.To = append(r.To, c)
	}
	return r, nil
}
