package installcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install/apply"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
)

type checkOptions struct {
	kube     cli.KubeFlags
	contexts cli.MeshContexts
	values   valueFlags
	output   output.Format
	looked   string // what is checked, for the line about no findings
}

// before is the argument that checks before an installation.
const before = "pre"

// NewCheck returns the command check.
func NewCheck(env *cli.Env) *cobra.Command {
	var o checkOptions
	cmd := &cobra.Command{
		Use:   "check [pre]",
		Short: "Check the installations in clusters, or a cluster before an installation",
		Long: `Check the installations in the clusters of contexts: that Deployments are available,
Services have endpoints and addresses, API servers can call the webhooks, control planes
answer, read the other clusters with sufficient rights, and have a CA and names in common, the
proxies of injected pods are connected and accept their configuration, key sets can be fetched,
gateways have valid certificates, and meshctl analyze finds no warning or error, also not between
the clusters.

With pre, check whether the cluster is ready for an installation with the same flags:
the version of Kubernetes, your permissions, the kinds of Istio, objects and webhooks of
other programs, and security policies that would not be enforced.

The command writes nothing. A line of level Info is a remark, such as a drained cluster. The exit
code is 3 if the command finds a fault, and 4 if it finds none but could not check everything.
meshctl remote-clusters shows the clusters that control planes read.`,
		Example: `  meshctl check pre --context cluster1 --network network1 --crds
  meshctl check --context cluster1 --all-clusters`,
		Args:      checkArgs,
		ValidArgs: []string{before},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), env, cmd.Flags(), len(args) > 0)
		},
	}
	f := cmd.Flags()
	o.kube.Bind(f)
	o.contexts.Bind(env, cmd, &o.kube, "")
	o.values.bind(f)
	cli.TableVar(f, &o.output)
	return cmd
}

// checkArgs permits pre only.
func checkArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 1 && args[0] == before {
		return nil
	}
	if err := cli.NoArgs(cmd, args); err != nil {
		return fmt.Errorf("%w: the only argument is %s; name clusters with --context %s", err, before, strings.Join(args, ","))
	}
	return nil
}

func (o *checkOptions) run(ctx context.Context, env *cli.Env, f *pflag.FlagSet, before bool) error {
	if before {
		return o.checkBefore(ctx, env, f)
	}
	contexts, err := o.contexts.ResolveAnswering(ctx, env, &o.kube, o.values.namespace)
	if err != nil {
		return err
	}
	var clusters []*checkedCluster
	var unread []error
	for i := range contexts {
		c, err := o.open(env, &contexts[i])
		if err != nil {
			unread = append(unread, err)
			continue
		}
		defer c.API.Close()
		clusters = append(clusters, c)
	}
	var found []apply.Finding
	if len(clusters) > 0 {
		var more []error
		found, more = o.checkClusters(ctx, env, clusters, len(contexts) > 1)
		unread = append(unread, more...)
	}
	var names []string
	for _, c := range clusters {
		names = append(names, c.Name)
	}
	return o.report(env, strings.Join(names, ", "), found, unread)
}

// checkClusters checks the clusters, their credentials for each other, and their configuration, at the
// same time. It may return some findings with the reasons why it could not check the rest.
func (o *checkOptions) checkClusters(ctx context.Context, env *cli.Env, clusters []*checkedCluster, several bool) (found []apply.Finding, unread []error) {
	var running sync.WaitGroup
	states := make([]clusterState, len(clusters))
	for i, c := range clusters {
		running.Go(func() { states[i] = o.checkCluster(ctx, env, c) })
	}
	var credentials clusterState
	running.Go(func() { credentials = o.checkCredentials(ctx, env, clusters) })
	configuration, err := o.readConfiguration(ctx, env, clusters)
	if err != nil {
		unread = append(unread, fmt.Errorf("the configuration is not checked: %w", err))
	}
	running.Wait()
	for i, c := range clusters {
		unread = append(unread, states[i].unread...)
		for j := range states[i].found {
			f := &states[i].found[j]
			if f.Hint = inCluster(f.Hint, o.kube.CommandFlags(c.access.Context)); several {
				f.Cluster = c.access.Context
			}
		}
		found = append(found, states[i].found...)
	}
	for _, f := range credentials.found {
		if !slices.ContainsFunc(found, func(other apply.Finding) bool { return other.Object == f.Object && other.Cluster == f.Cluster }) {
			found = append(found, f)
		}
	}
	for _, st := range append(states, credentials) {
		for _, note := range st.notes {
			env.Notef("%s", note)
		}
	}
	found = append(found, o.compareControlPlanes(clusters, states)...)
	found = append(found, o.clusterSettings(clusters, states)...)
	if configuration != nil {
		found = append(found, configuration.check(states, several)...)
		unread = append(unread, configuration.unread...)
	}
	contexts := contextsOf(clusters, states)
	for i := range found {
		found[i].Hint = withContexts(found[i].Hint, contexts)
	}
	o.looked = lookedAt(states, configuration)
	return found, unread
}

// lookedAt says what was read in clusters, for the line about no findings.
func lookedAt(states []clusterState, c *configuration) string {
	var reports []proxystatus.Report
	for i := range states {
		reports = append(reports, states[i].planes.reports...)
	}
	text := "installations, " + cli.LookedAt(reports)
	if c != nil {
		objects, namespaces := c.mesh.Size()
		text += fmt.Sprintf(", %s in %s, and the Secrets that Gateways name", output.Plural(objects, "object"), output.Plural(namespaces, "namespace"))
		text += cli.NotLookedAt(c.checks.Unread)
	}
	return text
}

// checkBefore checks the first cluster before an installation.
func (o *checkOptions) checkBefore(ctx context.Context, env *cli.Env, f *pflag.FlagSet) error {
	if len(o.contexts.Names) > 1 || o.contexts.All {
		return cli.Usagef("check pre is for the flags of one installation: name one context")
	}
	o.looked = "the version of Kubernetes, permissions, kinds, webhooks and objects of other programs, and security policies"
	c, access, err := connect(env, &o.kube, o.contexts.First())
	if err != nil {
		return err
	}
	defer c.API.Close()
	v, err := o.values.values(ctx, env, f)
	if err != nil {
		return err
	}
	server, err := create.Connect(c.Name, access.Config)
	if err != nil {
		return err
	}
	found, err := c.CheckBefore(ctx, v, server)
	if err != nil {
		return err
	}
	return o.report(env, c.Name, found, nil)
}

// checkedCluster is a cluster with the access to it, and its name in the mesh as far as it is known.
type checkedCluster struct {
	*apply.Cluster
	id     mesh.ClusterID
	access *kube.Access
}

// open returns the cluster of a context. The caller closes its API.
func (o *checkOptions) open(env *cli.Env, c *cli.MeshContext) (*checkedCluster, error) {
	if c.Err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name(), c.Err)
	}
	cluster, access, err := connect(env, &o.kube, c.Context)
	if err != nil {
		return nil, err
	}
	return &checkedCluster{cluster, cmp.Or(c.Cluster, mesh.ClusterID(access.Context), "Kubernetes"), access}, nil
}

// clusterState is what is known of the installations in a cluster.
type clusterState struct {
	found []apply.Finding
	// notes are remarks, and unread the reasons why not all was checked.
	notes  []string
	unread []error
	planes controlPlanes
}

// checkCluster finds the faults of the installations in a cluster.
func (o *checkOptions) checkCluster(ctx context.Context, env *cli.Env, c *checkedCluster) (st clusterState) {
	var running sync.WaitGroup
	var own clusterState
	running.Go(func() {
		found, err := c.CheckAfter(ctx)
		if own.found = found; err != nil {
			own.unread = append(own.unread, err)
		}
	})
	st = checkControlPlanes(ctx, env, c.Cluster, c.access, o.values.namespace, o.kube.CommandFlags(c.access.Context))
	running.Wait()
	st.found, st.unread = append(own.found, st.found...), append(own.unread, st.unread...)
	return st
}

// inCluster adds the flags that name a cluster to a hint with a command that has none.
func inCluster(hint, flags string) string {
	switch {
	case flags == "" || strings.Contains(hint, "--context"):
		return hint
	case strings.HasPrefix(hint, "kubectl "):
		return "kubectl " + flags + strings.TrimPrefix(hint, "kubectl")
	case strings.Contains(hint, "meshctl "):
		return hint + " " + flags
	}
	return hint
}

// report shows the findings in clusters, and what could not be checked.
func (o *checkOptions) report(env *cli.Env, clusters string, found []apply.Finding, unread []error) error {
	rank := func(f apply.Finding) int { return slices.Index(codes.Levels(), codes.Level(f.Level)) }
	slices.SortStableFunc(found, func(a, b apply.Finding) int { return cmp.Compare(rank(a), rank(b)) })
	several := slices.ContainsFunc(found, func(f apply.Finding) bool { return f.Cluster != "" })
	t := &output.Table{Header: []string{"LEVEL", "OBJECT", "FAULT", "HINT"}}
	if several {
		t.Header = slices.Insert(t.Header, 1, "CLUSTER")
	}
	for _, f := range found {
		row := []string{string(f.Level), f.Object, f.Fault, f.Hint}
		if several {
			row = slices.Insert(row, 1, cli.OrDash(f.Cluster))
		}
		t.Rows = append(t.Rows, row)
	}
	if len(found) > 0 || len(unread) == 0 && !o.output.ForPeople() {
		if err := cli.WriteResult(env, o.output, found, t); err != nil {
			return err
		}
	}
	if clusters == "" {
		return errors.Join(unread...)
	}
	remarks := 0
	for _, f := range found {
		if f.Level == apply.Info {
			remarks++
		}
	}
	switch faults := len(found) - remarks; {
	case faults > 0:
		env.NotRead(unread...)
		return cli.Findingsf("%s: %s", clusters, output.Plural(faults, "fault"))
	case len(unread) > 0:
		return cli.Incomplete(unread...)
	case remarks > 0:
		env.Notef("%s: no fault found, %s: looked at %s", clusters, output.Plural(remarks, "remark"), o.looked)
	default:
		env.Notef("%s: nothing found: looked at %s", clusters, o.looked)
	}
	return nil
}
