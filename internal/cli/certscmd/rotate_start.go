package certscmd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/rotate"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
)

// rotateStart holds the flags of plan and start.
type rotateStart struct {
	rotateStep
	algorithm                certs.Algorithm
	ttl                      time.Duration
	organization, commonName string
	pathLen                  int
	constraints              constraintFlags
	leafTTL, propagation     time.Duration
	force                    bool
	output                   output.Format
}

func (o *rotateStart) bind(cmd *cobra.Command) {
	fs := cmd.Flags()
	cli.FilterVar(fs, &o.algorithm, "algorithm", "Key algorithm of the new CAs; the default is the algorithm of the old CAs", certs.Algorithms()...)
	cli.DurationVar(fs, &o.ttl, "ttl", 0, "Lifetime of the new root (default as the old one)")
	fs.StringVar(&o.organization, "org", "", "`Organization` (O) of the new root (default as the old one)")
	fs.StringVar(&o.commonName, "cn", "", "Common `name` (CN) of the new root (default as the old one)")
	cli.NumberVar(fs, &o.pathLen, "path-len", -1, -1, maxPathLen, "`Number` of CAs between the new root and a leaf; -1 for the same number as the old root")
	o.constraints.bind(fs, " (default as the old root)")
	cli.DurationVar(fs, &o.leafTTL, "leaf-ttl", cli.Day, "Longest lifetime of a workload certificate in the mesh")
	cli.DurationVar(fs, &o.propagation, "propagation", 10*time.Minute, "Longest time until every control plane uses the files of a step")
}

func (o *rotateStart) options() (rotate.StartOptions, error) {
	out := rotate.StartOptions{
		Root:    certs.CASpec{Algorithm: o.algorithm, TTL: o.ttl, Organization: o.organization, CommonName: o.commonName},
		LeafTTL: o.leafTTL, Propagation: o.propagation,
	}
	switch {
	case o.pathLen == 0:
		return out, cli.Usagef("--path-len must not be 0: the CAs of the clusters are below the root")
	case o.leafTTL == 0:
		return out, cli.Usagef("--leaf-ttl must be more than 0")
	case o.pathLen > 0:
		out.Root.PathLen = &o.pathLen
	}
	return out, o.constraints.apply(&out.Root)
}

func newRotatePlanCmd(env *cli.Env) *cobra.Command {
	o := &rotateStart{}
	cmd := command(&cobra.Command{
		Use:   "plan [DIR]",
		Short: "Show the steps of a rotation with their times",
		Long: `Show each step of the current rotation, or of the one that start would begin with the
same flags: its changes, the time from which it is safe and why, and how to undo it.
Nothing is written.

A step is safe when no proxy uses a certificate or roots from before the previous step.
Every control plane uses the files of that step after --propagation. The last older
certificate expires --leaf-ttl later.

With --server or --ask-proxies the command asks the control planes whether connected
proxies would break, as the next step does, and warns.`,
		Example: `  meshctl certs rotate-root plan certs
  meshctl certs rotate-root plan certs --leaf-ttl 12h -o json`,
	}, o.take, func(ctx context.Context) error { return o.plan(ctx, env) })
	o.rotateStep.bind(env, cmd)
	o.bind(cmd)
	cli.TextVar(cmd.Flags(), &o.output)
	return cmd
}

func (o *rotateStart) plan(ctx context.Context, env *cli.Env) error {
	options, err := o.options()
	if err != nil {
		return err
	}
	dir, err := o.open(ctx, env)
	if err != nil {
		return err
	}
	plan, err := dir.Plan(options)
	if err != nil {
		return err
	}
	if o.asks() {
		if err := o.warn(ctx, env, dir); err != nil {
			return err
		}
	}
	if !o.output.OfTable() {
		return output.Write(env.Stdout, o.output, plan)
	}
	fmt.Fprintf(env.Stdout, "Clusters: %s. Certificates live up to %s, control planes follow within %s.\n\n",
		strings.Join(plan.Clusters, ", "), cli.FormatDuration(time.Duration(plan.LeafTTL)), cli.FormatDuration(time.Duration(plan.Propagation)))
	t := &output.Table{Header: []string{"STEP", "WHEN", "WHAT IT DOES", "WHEN THAT IS SAFE", "UNDO"}, Gap: 3}
	for _, s := range plan.Steps {
		when := "from " + s.NotBefore.UTC().Format(time.RFC3339)
		if !s.Taken.IsZero() {
			when = "taken " + s.Taken.UTC().Format(time.RFC3339)
		}
		t.Rows = append(t.Rows, []string{s.Command, when, s.Does, s.Why, s.Undo})
	}
	if err := t.Write(env.Stdout); err != nil {
		return err
	}
	fmt.Fprintln(env.Stdout)
	for _, s := range plan.Steps {
		fmt.Fprintf(env.Stdout, "%s (%s) writes %s\n", s.Command, s.Phase, strings.Join(s.Writes, ", "))
	}
	for _, n := range plan.Notes {
		env.Warnf("%s", n)
	}
	if short := o.short(); short != "" && plan.Phase == "" && !o.asks() {
		env.Warnf("%s: start refuses that while proxies are connected", short)
	}
	return nil
}

// warn warns if the control planes would refuse the next step.
func (o *rotateStart) warn(ctx context.Context, env *cli.Env, dir *rotate.Dir) error {
	status, err := dir.Status()
	if err != nil {
		return err
	}
	step := rotate.Action("start")
	switch {
	case status == nil:
		err = o.checkWaits(ctx, env)
	case status.Requires != nil:
		step, err = status.Command, o.gate(env)(ctx, *status.Requires)
	}
	if refusal, ok := errors.AsType[*rotate.Refusal](err); ok {
		env.Warnf("%s would be refused now: %v", step, refusal)
		return nil
	}
	return err
}

func newRotateStartCmd(env *cli.Env) *cobra.Command {
	o := &rotateStart{}
	cmd := command(&cobra.Command{
		Use:   "start [DIR]",
		Short: "Create the new root, and trust both roots",
		Long: `Create the new root and the new signer of each cluster, check the files of all later
steps, and add the new root to the trust bundle of each cluster. The old signers
continue to sign. The new CAs are like the old ones with new keys, unless flags say
otherwise. The roots do not sign each other.

A --leaf-ttl below 10m or a --propagation below 1m is refused. With --server or
--ask-proxies the command asks the control planes for the certificates of their proxies
instead, and refuses a --leaf-ttl that is shorter than the remaining lifetime of one of
these certificates. --force skips these checks, for a rehearsal.`,
		Example: `  meshctl certs rotate-root start certs
  meshctl certs rotate-root start certs --leaf-ttl 12h --algorithm ecdsa-p384 --cn 'Root CA 2'

  # Compare --leaf-ttl with the certificates of connected proxies
  meshctl certs rotate-root start certs --leaf-ttl 1h --server 127.0.0.1:8081,127.0.0.1:8082`,
	}, o.take, func(ctx context.Context) error { return o.start(ctx, env) })
	o.rotateStep.bind(env, cmd)
	o.bind(cmd)
	cli.ForceVar(cmd.Flags(), &o.force, "Accept a --leaf-ttl and a --propagation that are too short for connected proxies, for a rehearsal")
	return cmd
}

func (o *rotateStart) start(ctx context.Context, env *cli.Env) error {
	options, err := o.options()
	if err != nil {
		return err
	}
	if err := o.checkWaits(ctx, env); err != nil {
		return err
	}
	dir, err := o.open(ctx, env)
	if err != nil {
		return err
	}
	var state *rotate.State
	err = patiently(env, "generating keys, which takes a moment", func() (err error) {
		state, err = dir.Start(ctx, options)
		return err
	})
	if err != nil {
		return err
	}
	o.report(env, dir, state)
	return nil
}
