package certscmd

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs/rotate"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
)

func newCertsRotateCmd(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate-root",
		Short: "Replace the root of a mesh without downtime",
		Long: `Replace the root of a mesh in steps, so that no proxy ever refuses another one: first
both roots are trusted, then the new signers sign, then the old root is dropped. Each
step changes the directories of all clusters, which their control planes read. The
next step is refused until --propagation and --leaf-ttl have passed, so that every proxy
has a new certificate. Until finish, abort goes back in the same way.

DIR is the directory of certs root-ca and certs intermediate-ca: root-cert.pem and a
directory for each cluster. DIR/.rotation holds the state of the rotation, the new CAs
and the old ones. Run a command again if it was interrupted.

With --context instead of DIR the rotation works on the Secrets cacerts of clusters,
and keeps its state in the Secret meshctl-root-rotation of the first one. Name all
clusters of the mesh in each command.`,
		Example: `  meshctl certs rotate-root plan certs
  meshctl certs rotate-root start certs --leaf-ttl 24h
  meshctl certs rotate-root status certs
  meshctl certs rotate-root next certs
  meshctl certs rotate-root finish certs

  # Rotate the root in the Secrets of clusters
  meshctl certs rotate-root start --context cluster1,cluster2
  meshctl certs rotate-root next --context cluster1,cluster2`,
	}
	cmd.AddCommand(
		newRotatePlanCmd(env),
		newRotateStartCmd(env),
		newRotateStatusCmd(env),
		newRotateNextCmd(env),
		newRotateAbortCmd(env),
		newRotateFinishCmd(env),
	)
	return cmd
}

// rotateDir is the place of a rotation: a directory or clusters.
type rotateDir struct {
	clusterFlags
	path string
}

// take checks and keeps the argument.
func (r *rotateDir) take(args []string) error {
	switch {
	case len(args) == 1 && len(r.contexts) == 0:
		r.path = args[0]
		return nil
	case len(args) == 0 && len(r.contexts) > 0:
		return nil
	}
	if len(args) == 1 {
		return cli.Usagef("name either the directory or the clusters with --context, not both")
	}
	return cli.Usagef("name the directory with root-cert.pem and the directories of the clusters, or the clusters with --context")
}

// target returns the place as the arguments of the next command.
func (r *rotateDir) target() string {
	if len(r.contexts) == 0 {
		return r.path
	}
	out := r.CommandFlags(strings.Join(r.contexts, ","))
	if r.namespace != mesh.DefaultSystemNamespace {
		out += " -n " + r.namespace
	}
	return out
}

func (r *rotateDir) open(ctx context.Context, env *cli.Env) (*rotate.Dir, error) {
	d := &rotate.Dir{
		Path: r.path, Now: env.Now, Rand: rand.Reader,
		Gates: []rotate.Gate{rotate.Waited(env.Now)},
		Wrote: func(path string) { fmt.Fprintln(env.Stdout, "wrote", path) },
	}
	if len(r.contexts) == 0 {
		return d, nil
	}
	clusters, err := r.connect(env)
	if err != nil {
		return nil, err
	}
	for _, c := range clusters {
		if !mesh.IsDNSLabel(string(c.ID)) {
			return nil, cli.Usagef("--context: %q is not a DNS label: name the cluster with CLUSTER=%s", c.ID, c.Context)
		}
	}
	d.Storage, err = rotate.OpenSecretStorage(ctx, clusters)
	return d, err
}

func newRotateNextCmd(env *cli.Env) *cobra.Command {
	o := &rotateStep{}
	var force bool
	cmd := command(&cobra.Command{
		Use:   "next [DIR]",
		Short: "Sign with the new signers, once both roots are trusted",
		Long: `Take the next step, or complete one that was interrupted. A step that could break the
connections of a proxy is refused, with the time from which it is safe. A step is also
refused when the directory of a cluster is missing, fails verification, was changed, or
is not part of the rotation. No flag overrides a refusal.

With --server or --ask-proxies the command also asks the control planes. It refuses the
step and lists the reasons when a connected proxy may not know the new root, because
its certificate is older than the step, or when a control plane does not use the new
root. The waiting time still applies, because of proxies that are not connected.

--force restores the directories of all clusters to the current step, and takes no
step. The wait starts again, because other certificates may have been signed in
between.`,
		Example: `  meshctl certs rotate-root next certs

  # Ask all control planes for their proxies first
  meshctl certs rotate-root next certs --server 127.0.0.1:8081,127.0.0.1:8082
  meshctl certs rotate-root next --context cluster1,cluster2 --ask-proxies

  # Restore a directory that was changed or lost
  meshctl certs rotate-root next certs --force`,
	}, o.take, func(ctx context.Context) error {
		if force {
			return o.change(ctx, env, func(d *rotate.Dir) (*rotate.State, error) { return d.Restore(ctx) })
		}
		return o.act(ctx, env, rotate.Next)
	})
	o.bind(env, cmd)
	cli.ForceVar(cmd.Flags(), &force, "Restore directories that were changed or are missing, and start the wait again")
	return cmd
}

func newRotateAbortCmd(env *cli.Env) *cobra.Command {
	return actionCommand(env, rotate.Abort, &cobra.Command{
		Use:   "abort [DIR]",
		Short: "Go back to the old root",
		Long: `Go back from any step before finish. If the new root has signed nothing, the rotation
ends at once. Otherwise the old signers sign again and both roots stay trusted: run the
command again when no certificate of the new root is left, to drop that root.`,
		Example: "  meshctl certs rotate-root abort certs",
	})
}

func newRotateFinishCmd(env *cli.Env) *cobra.Command {
	return actionCommand(env, rotate.Finish, &cobra.Command{
		Use:   "finish [DIR]",
		Short: "Drop the old root; this cannot be undone",
		Long: `Drop the old root from the trust bundles when none of its certificates is left. The new
root with its key goes to DIR, the old root and the old signers to
DIR/.finished-DATE-ROOT. This cannot be undone.

With --server or --ask-proxies the command also asks the control planes. It refuses and
lists the reasons when a connected proxy has a certificate of the old root, or when a
certificate that a control plane signed with an old signer is still valid.`,
		Example: `  meshctl certs rotate-root finish certs
  meshctl certs rotate-root finish certs --server 127.0.0.1:8081,127.0.0.1:8082`,
	})
}

// actionCommand lets cmd take a step of the current rotation.
func actionCommand(env *cli.Env, a rotate.Action, cmd *cobra.Command) *cobra.Command {
	o := &rotateStep{}
	command(cmd, o.take, func(ctx context.Context) error { return o.act(ctx, env, a) })
	o.bind(env, cmd)
	return cmd
}

func (o *rotateStep) act(ctx context.Context, env *cli.Env, a rotate.Action) error {
	return o.change(ctx, env, func(d *rotate.Dir) (*rotate.State, error) { return d.Take(ctx, a) })
}

// change changes the rotation, unless its gates refuse.
func (o *rotateStep) change(ctx context.Context, env *cli.Env, step func(*rotate.Dir) (*rotate.State, error)) error {
	dir, err := o.open(ctx, env)
	if err != nil {
		return err
	}
	dir.Gates = append(dir.Gates, o.gate(env))
	state, err := step(dir)
	if err != nil {
		return err
	}
	o.report(env, dir, state)
	return nil
}

// report prints the phase of the rotation and the next command.
func (o *rotateStep) report(env *cli.Env, d *rotate.Dir, s *rotate.State) {
	fmt.Fprintf(env.Stdout, "%s: %s\n", s.Phase, s.Phase.Describe())
	if s.Phase.Ends() {
		fmt.Fprintf(env.Stdout, "the rotation has ended; its files, with private keys, are in %s\n", d.Archive(s))
		return
	}
	fmt.Fprintf(env.Stdout, "next, from %s: meshctl certs rotate-root %s %s\n",
		s.SafeFrom().UTC().Format(time.RFC3339), s.Command(), o.again())
}
