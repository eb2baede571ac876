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
	"github.com/meshctl/meshctl/internal/replicas"
)

type remoteSecretRotateOptions struct {
	kube     kubeFlags
	from     string
	to       []string
	name     string
	ttl      time.Duration
	replicas []string
	token    cli.TokenFlag
	timeout  time.Duration
	noWait   bool
	abort    bool
}

func newRemoteSecretRotateCmd(env *cli.Env) *cobra.Command {
	o := &remoteSecretRotateOptions{}
	cmd := &cobra.Command{
		Use:   "rotate",
		Short: "Replace the credential of a remote secret without an interruption",
		Long: `Replace the token with which other clusters read a cluster. The command creates a new
token and writes it into the remote secrets of these clusters. It waits until every
replica of their control planes reports that the replica reads the cluster with the new
token. Then it revokes the old token.

--to must name every cluster that has the secret, because all earlier tokens that
meshctl created for the reader are revoked. Token Secrets that meshctl did not create
are kept and listed. The exit code is 3 when the old token still works, for example
because it is bound to no Secret.

The command finds the replicas by the Leases of the control planes in these clusters. If
it cannot reach a replica, it reads in the Lease of the replica whether the replica uses
the new token. --replica names replicas instead, by the addresses in --http-addr of
meshctl serve. The user that runs a replica needs no token on the same machine; all
other callers need --token-file.

Run the command again to continue a rotation that was interrupted or took too long.
Until it is finished the old secret is kept as NAME-previous; --abort restores it and
revokes the new token.`,
		Example: `  meshctl remote-secret rotate --context west --to east,north

  # Undo a rotation that is not finished
  meshctl remote-secret rotate --context west --to east,north --abort`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	o.kube.bind(env, cmd, "the secret")
	o.kube.ContextVar(env, cmd, &o.from, "context", "Kubeconfig `context` of the cluster itself (required)")
	cli.Rename(fs, "context", "from")
	o.kube.ContextListVar(env, cmd, &o.to, "to", "Kubeconfig `context`s of the clusters that have its remote secret (required)")
	fs.StringVar(&o.name, "name", "", "`Name` of the cluster (default the name of the context)")
	cli.DurationVar(fs, &o.ttl, "ttl", 0, "Lifetime of the new token, at least 10m; 0 takes the lifetime of the old one")
	fs.StringSliceVar(&o.replicas, "replica", nil, "HTTP `address` of a replica, host:port; may be repeated (default all replicas in the clusters of --to)")
	o.token.Bind(fs)
	cli.DurationVar(fs, &o.timeout, "timeout", 5*time.Minute, "How long to wait for the replicas")
	fs.BoolVar(&o.noWait, "no-wait", false, "Revoke the old token without asking the replicas")
	cli.MarkWeakening(fs, "no-wait")
	fs.BoolVar(&o.abort, "abort", false, "Restore the old credential, and revoke the new one")
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
	if !o.noWait { // nothing is written yet
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
			return fmt.Errorf("%w; the old credential is kept: run this again to continue, or with --abort to undo", err)
		}
	}
	working, err := r.Finish(ctx)
	if err != nil {
		return fmt.Errorf("%w; old tokens may still work: run this again to revoke them", err)
	}
	if len(working) > 0 {
		fmt.Fprintf(env.Stdout, "cluster %s has credential %s\n", r.ID, credential)
		return cli.Findingsf("%s", output.EscapeLines(working))
	}
	fmt.Fprintf(env.Stdout, "cluster %s has credential %s, and the old one is revoked\n", r.ID, credential)
	return nil
}

// find returns the replicas that must use the new credential.
func (o *remoteSecretRotateOptions) find(ctx context.Context, env *cli.Env, r *multicluster.Rotation) ([]*replicas.Replica, error) {
	if len(o.replicas) == 0 {
		found, err := multicluster.FindReplicas(ctx, r.To, r.Namespace, o.token.Tokens(env), env.Now)
		if err != nil {
			return nil, fmt.Errorf("%w; name the replicas with --replica, or skip the wait with --no-wait", err)
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
	namespace, err := o.kube.theNamespace()
	if err != nil {
		return nil, err
	}
	if o.name == "" {
		o.name = o.from
	}
	switch {
	case o.from == "" || len(o.to) == 0:
		return nil, cli.Usagef("--context and --to are required")
	case !mesh.IsDNSLabel(o.name):
		return nil, cli.Usagef("%v is not a valid DNS 1123 label; name the cluster with --name", o.name)
	case o.noWait && len(o.replicas) > 0:
		return nil, cli.Usagef("--replica and --no-wait: give one of them")
	}
	if err := checkTTL(o.ttl); err != nil {
		return nil, err
	}
	for _, address := range o.replicas {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, cli.Usagef("--replica %q: want host:port", address)
		}
	}
	r := &multicluster.Rotation{
		ID: mesh.ClusterID(o.name), Namespace: namespace, TTL: o.ttl, Rand: rand.Reader, Say: env.Notef,
	}
	if r.From, err = o.kube.Connect(env, o.from); err != nil {
		return nil, err
	}
	r.To, err = o.kube.connectAll(env, "to", o.to)
	return r, err
}
