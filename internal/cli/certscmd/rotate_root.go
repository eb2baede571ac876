package certscmd

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/rotate"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
)

func newCertsRotateCmd(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rotate-root",
		Short: "Replace the root of a mesh while it works",
		Long: `Replace the root of a mesh, in steps between which no proxy ever refuses another:
both roots are trusted, then the new signers sign, then the old root is dropped.
Each step is taken in the directories of all clusters, which their control planes
read, and is refused until what it relies on is so: every proxy has renewed its
certificate since the step before. Until finish, abort goes back in the same way.

DIR is what certs root-ca and certs intermediate-ca made: root-cert.pem and a
directory for each cluster. The state of the rotation, the new CAs and the old
ones are kept in DIR/.rotation. A command that was interrupted is given again.

With --context instead of DIR the rotation works on the Secrets cacerts of
clusters, and keeps its state in the Secret meshctl-root-rotation of the first of
them. Name all clusters of the mesh in each command.`,
		Example: `  meshctl certs rotate-root plan certs
  meshctl certs rotate-root start certs --leaf-ttl 24h
  meshctl certs rotate-root status certs
  meshctl certs rotate-root next certs
  meshctl certs rotate-root finish certs

  # in the Secrets of clusters
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

// rotateDir is what all steps of a rotation are about: a directory, or clusters.
type rotateDir struct {
	clusterFlags
	path string
}

// one takes the argument; run tells what is wrong with it.
func (r *rotateDir) one(args []string) error {
	switch {
	case len(args) == 1 && len(r.contexts) == 0:
		r.path = args[0]
		return nil
	case len(args) == 0 && len(r.contexts) > 0:
		return nil
	}
	return cli.Usagef("name one directory, the one with root-cert.pem and the directories of the clusters, or the clusters with --context")
}

// target is how the next command names the same.
func (r *rotateDir) target() string {
	if len(r.contexts) == 0 {
		return r.path
	}
	out := "--context " + strings.Join(r.contexts, ",")
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

// rotateStart are the flags of plan and start.
type rotateStart struct {
	rotateStep
	algorithm                string
	ttl                      time.Duration
	organization, commonName string
	pathLen                  int
	trustDomains, dnsDomains []string
	ipRanges                 []string
	leafTTL, propagation     time.Duration
	force                    bool
	output                   output.Format
}

func (o *rotateStart) bind(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVar(&o.algorithm, "algorithm", "", "Kind of the new keys, as of root-ca (default that of the old ones)")
	cli.Suggest(fs, "algorithm", algorithmNames()...)
	cli.DurationVar(fs, &o.ttl, "ttl", 0, "How long the new root is valid (default as long as the old one was)")
	fs.StringVar(&o.organization, "org", "", "Organization (O) of the new root (default that of the old one)")
	fs.StringVar(&o.commonName, "cn", "", "Common name (CN) of the new root (default that of the old one)")
	fs.IntVar(&o.pathLen, "path-len", -1, "How many CAs may stand between the new root and a leaf; -1 is the `number` of the old one")
	fs.StringSliceVar(&o.trustDomains, "constrain-trust-domain", nil,
		"Permit only SPIFFE ids of this trust `domain` (default the constraints of the old root); may be repeated")
	fs.StringSliceVar(&o.dnsDomains, "permit-dns", nil,
		"With --constrain-trust-domain: permit DNS names in this `domain`, too; may be repeated")
	bindPermitIP(fs, &o.ipRanges)
	cli.DurationVar(fs, &o.leafTTL, "leaf-ttl", cli.Day, "The longest life time of a workload's certificate in the mesh")
	cli.DurationVar(fs, &o.propagation, "propagation", 10*time.Minute,
		"How long after a step, at most, every control plane works with what was written")
}

func (o *rotateStart) options() (rotate.StartOptions, error) {
	out := rotate.StartOptions{LeafTTL: o.leafTTL, Propagation: o.propagation}
	root := &out.Spec.Root
	if o.algorithm != "" {
		a, err := certs.ParseAlgorithm(o.algorithm)
		if err != nil {
			return out, cli.Usagef("--algorithm: %w", err)
		}
		root.Algorithm = a
	}
	switch {
	case o.pathLen < -1 || o.pathLen == 0 || o.pathLen > maxPathLen:
		return out, cli.Usagef("--path-len is %d: want a number from 1 to %d, or -1 for that of the old root", o.pathLen, maxPathLen)
	case o.leafTTL == 0:
		return out, cli.Usagef("--leaf-ttl must be more than 0")
	case o.pathLen > 0:
		root.PathLen = &o.pathLen
	}
	root.TTL, root.Organization, root.CommonName = o.ttl, o.organization, o.commonName
	err := constrain(root, o.trustDomains, o.dnsDomains, o.ipRanges)
	return out, err
}

func newRotatePlanCmd(env *cli.Env) *cobra.Command {
	o := &rotateStart{}
	cmd := &cobra.Command{
		Use:   "plan [DIR]",
		Short: "Explain the steps of a rotation, with their times",
		Long: `Explain each step of the rotation under way, or of the one that start would begin
with the same flags: what it writes, what it waits for and from when on it is
safe, and how it is undone. Nothing is written.

A step has to be waited for as long as a proxy may live on what it got before
the step before: --propagation until the last control plane works with that, and
--leaf-ttl until the last certificate from before has ended.`,
		Example: `  meshctl certs rotate-root plan certs
  meshctl certs rotate-root plan certs --leaf-ttl 12h -o json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.one(args); err != nil {
				return err
			}
			return o.plan(cmd.Context(), env)
		},
	}
	o.rotateDir.bind(env, cmd)
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
		fmt.Fprintln(env.Stderr, "Warning:", n)
	}
	if short := o.short(); short != "" && plan.Phase == "" {
		fmt.Fprintf(env.Stderr, "Warning: %s: start refuses that where proxies are connected\n", short)
	}
	return nil
}

func newRotateStartCmd(env *cli.Env) *cobra.Command {
	o := &rotateStart{}
	cmd := &cobra.Command{
		Use:   "start [DIR]",
		Short: "Make the new root and have both roots trusted",
		Long: `Make the new root and the new signer of each cluster, check all that later steps
will write, and add the new root to the trust bundle of each cluster. The old
signers go on signing. The new CAs are like the old ones but for their keys,
unless flags say otherwise; certificates are not signed across the two roots.

A --leaf-ttl below 10m or a --propagation below 1m is refused. With --server or
--ask-proxies the control planes are asked for their proxies, and what counts are
the certificates of these: a --leaf-ttl that one of them outlives is refused.
--force takes the values all the same, as in a rehearsal.`,
		Example: `  meshctl certs rotate-root start certs
  meshctl certs rotate-root start certs --leaf-ttl 12h --algorithm ecdsa-p384 --cn 'Root CA 2'

  # compare --leaf-ttl with the certificates of connected proxies
  meshctl certs rotate-root start certs --leaf-ttl 1h --server 127.0.0.1:8081,127.0.0.1:8082`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.one(args); err != nil {
				return err
			}
			return o.start(cmd.Context(), env)
		},
	}
	o.rotateStep.bind(env, cmd)
	o.bind(cmd)
	cli.ForceVar(cmd.Flags(), &o.force, "Take a --leaf-ttl and a --propagation that are too short for connected proxies, as in a rehearsal")
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
	err = patiently(env, "making keys, which takes a moment", func() (err error) {
		state, err = dir.Start(ctx, options)
		return err
	})
	if err != nil {
		return err
	}
	o.say(env, dir, state)
	return nil
}

// say tells where the rotation is and what comes next.
func (r *rotateDir) say(env *cli.Env, d *rotate.Dir, s *rotate.State) {
	fmt.Fprintf(env.Stdout, "%s\n", describePhase(s.Phase))
	switch s.Phase {
	case rotate.Finished, rotate.Aborted:
		fmt.Fprintf(env.Stdout, "the rotation has ended; its files, with private keys, are in %s\n", d.Archive(s))
		return
	case rotate.Trust, rotate.Sign, rotate.Back:
	}
	fmt.Fprintf(env.Stdout, "next, from %s: meshctl certs rotate-root %s %s\n",
		s.SafeFrom().UTC().Format(time.RFC3339), commandAfter(s.Phase), r.target())
}

func commandAfter(p rotate.Phase) string {
	switch p {
	case rotate.Sign, rotate.Finished:
		return "finish"
	case rotate.Back, rotate.Aborted:
		return "abort"
	default:
		return "next"
	}
}

func describePhase(p rotate.Phase) string {
	switch p {
	case rotate.Trust:
		return "trust: the old signers sign, both roots are trusted"
	case rotate.Sign:
		return "sign: the new signers sign, both roots are trusted"
	case rotate.Back:
		return "back: the old signers sign again, both roots are trusted"
	case rotate.Finished:
		return "finished: the new signers sign, the new root alone is trusted"
	default:
		return "aborted: the old signers sign, the old root alone is trusted"
	}
}

type rotateNext struct {
	rotateStep
	force bool
}

func newRotateNextCmd(env *cli.Env) *cobra.Command {
	o := &rotateNext{}
	cmd := &cobra.Command{
		Use:   "next [DIR]",
		Short: "Have the new signers sign, once both roots are trusted",
		Long: `Take the next step, or complete one that was interrupted. A step that could make
a proxy refuse another is refused, with the time from which it is safe: too
early, or with a cluster whose directory is missing, does not verify, was changed
by hand, or is no part of the rotation. No flag overrides that.

With --server or --ask-proxies the control planes are asked, too: the step is
refused, with their names, when a connected proxy may not know the new root, as
its certificate is from before the step, or when a control plane does not work
with the new root. What is not connected is not known to them, so the time counts
all the same.

--force writes the directories of all clusters again as the current step has
them, whatever they hold, and takes no step. Nobody knows what was signed in
between, so the wait begins anew.`,
		Example: `  meshctl certs rotate-root next certs

  # ask all control planes for their proxies first
  meshctl certs rotate-root next certs --server 127.0.0.1:8081,127.0.0.1:8082
  meshctl certs rotate-root next --context cluster1,cluster2 --ask-proxies

  # after a directory was changed or lost
  meshctl certs rotate-root next certs --force`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.one(args); err != nil {
				return err
			}
			if o.force {
				return o.take(cmd.Context(), env, func(d *rotate.Dir) (*rotate.State, error) { return d.Restore(cmd.Context()) })
			}
			return o.act(cmd.Context(), env, rotate.Next)
		},
	}
	o.bind(env, cmd)
	cli.ForceVar(cmd.Flags(), &o.force, "Write directories again that were changed or are missing, and wait anew")
	return cmd
}

// act takes a step of the rotation under way.
func (o *rotateStep) act(ctx context.Context, env *cli.Env, a rotate.Action) error {
	return o.take(ctx, env, func(d *rotate.Dir) (*rotate.State, error) { return d.Take(ctx, a) })
}

func (o *rotateStep) take(ctx context.Context, env *cli.Env, step func(*rotate.Dir) (*rotate.State, error)) error {
	dir, err := o.open(ctx, env)
	if err != nil {
		return err
	}
	dir.Gates = append(dir.Gates, o.gate(env))
	state, err := step(dir)
	if err != nil {
		return err
	}
	o.say(env, dir, state)
	return nil
}

func newRotateAbortCmd(env *cli.Env) *cobra.Command {
	o := &rotateStep{}
	cmd := &cobra.Command{
		Use:   "abort [DIR]",
		Short: "Go back to the old root",
		Long: `Go back from any step before finish. As long as the new root has signed nothing
that is at once. Else the old signers sign again and both roots stay trusted; the
same command, given again when no certificate of the new root is left, drops that.`,
		Example: `  meshctl certs rotate-root abort certs`,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.one(args); err != nil {
				return err
			}
			return o.act(cmd.Context(), env, rotate.Abort)
		},
	}
	o.bind(env, cmd)
	return cmd
}

func newRotateFinishCmd(env *cli.Env) *cobra.Command {
	o := &rotateStep{}
	cmd := &cobra.Command{
		Use:   "finish [DIR]",
		Short: "Drop the old root; this cannot be undone",
		Long: `Drop the old root from the trust bundles, once no certificate of it is left, put
the new root with its key into DIR, and keep the old one and the old signers in
DIR/.finished-DATE-ROOT. This cannot be undone.

With --server or --ask-proxies the control planes are asked, too: it is refused,
with their names, when the certificate of a connected proxy leads to the old root,
or a control plane signed one with an old signer that is still valid.`,
		Example: `  meshctl certs rotate-root finish certs
  meshctl certs rotate-root finish certs --server 127.0.0.1:8081,127.0.0.1:8082`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.one(args); err != nil {
				return err
			}
			return o.act(cmd.Context(), env, rotate.Finish)
		},
	}
	o.bind(env, cmd)
	return cmd
}

type rotateStatus struct {
	rotateStep
	output output.Format
}

func newRotateStatusCmd(env *cli.Env) *cobra.Command {
	o := &rotateStatus{}
	cmd := &cobra.Command{
		Use:   "status [DIR]",
		Short: "Show where a rotation stands and what it waits for",
		Long: `Show where the directory of each cluster stands, by the fingerprints of what signs
and of the roots, and what the next step waits for. Exit code 3 when a directory
is missing, does not verify, was changed, or is no part of the rotation.

With --server or --ask-proxies the control planes are asked which of the connected
proxies already have what the next step needs; -o json names all that do not.`,
		Example: `  meshctl certs rotate-root status certs
  meshctl certs rotate-root status certs --server 127.0.0.1:8081,127.0.0.1:8082
  meshctl certs rotate-root status certs -o json`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.one(args); err != nil {
				return err
			}
			return o.run(cmd.Context(), env)
		},
	}
	o.bind(env, cmd)
	cli.TextVar(cmd.Flags(), &o.output)
	return cmd
}

func (o *rotateStatus) run(ctx context.Context, env *cli.Env) error {
	dir, err := o.open(ctx, env)
	if err != nil {
		return err
	}
	status, err := dir.Status()
	if err != nil {
		return err
	}
	if status == nil {
		if !o.output.OfTable() {
			return output.Write(env.Stdout, o.output, struct {
				Command string `json:"command"`
			}{"start"})
		}
		fmt.Fprintf(env.Stdout, "no rotation is under way in %s\n", o.target())
		return nil
	}
	var answer *rotateAnswer
	if status.Requires != nil && o.asks() {
		if answer, err = o.inquire(ctx, env, status.Requires); err != nil {
			return err
		}
	}
	if err := o.write(env, status, answer); err != nil {
		return err
	}
	if !status.Fine() {
		return cli.Findingsf("the rotation cannot go on like this: put back what was there, or give next --force")
	}
	if answer != nil {
		return answer.silent()
	}
	return nil
}

func (o *rotateStatus) write(env *cli.Env, s *rotate.Status, answer *rotateAnswer) error {
	if !o.output.OfTable() {
		return output.Write(env.Stdout, o.output, struct {
			*rotate.Status
			Asked *rotateAnswer `json:"asked,omitzero"`
		}{s, answer})
	}
	fmt.Fprintln(env.Stdout, describePhase(s.Phase))
	where := "DIRECTORY"
	if len(o.contexts) > 0 {
		where = "SECRET"
	}
	t := &output.Table{Header: []string{"CLUSTER", where, "SIGNER", "ROOTS", "PROBLEM"}, Gap: 3}
	for _, d := range s.Directory {
		row := []string{string(d.Cluster), string(d.Condition), d.Signer, strings.Join(d.Roots, " "), d.Problem}
		for i, cell := range row {
			if cell == "" {
				row[i] = "-"
			}
		}
		t.Rows = append(t.Rows, row)
	}
	if err := t.Write(env.Stdout); err != nil {
		return err
	}
	if !s.Fine() {
		return nil // the error says what has to be done before anything else
	}
	fmt.Fprintf(env.Stdout, "waits for: %s\n", s.Waits)
	switch {
	case answer != nil:
		answer.write(env, s.Requires)
	case s.Requires != nil:
		fmt.Fprintln(env.Stdout, "proxies:", notAsked)
	}
	from := ""
	if !s.SafeFrom.IsZero() {
		from = ", from " + s.SafeFrom.UTC().Format(time.RFC3339)
	}
	fmt.Fprintf(env.Stdout, "next%s: meshctl certs rotate-root %s %s\n", from, s.Command, o.target())
	return nil
}
