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
answer and have a CA and names in common, the proxies of injected pods are connected and accept
their configuration, key sets can be fetched, gateways have valid certificates, and meshctl
analyze finds no warning or error, also not between the clusters.

With pre, check whether the cluster is ready for an installation with the same flags:
the version of Kubernetes, your permissions, the kinds of Istio, objects and webhooks of
other programs, and security policies that would not be enforced.

The command writes nothing. The exit code is 3 if it finds a fault, and 4 if it finds none but
could not check everything. meshctl remote-clusters shows the clusters that control planes read.`,
		Example: `  meshctl check pre --context cluster1 --network network1 --crds
  meshctl check --context cluster1 --all-clusters`,
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
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

func (o *checkOptions) run(ctx context.Context, env *cli.Env, f *pflag.FlagSet, before bool) error {
	if before {
		return o.checkBefore(ctx, env, f)
	}
	contexts, err := o.contexts.Resolve(ctx, env, &o.kube, o.values.namespace)
	if err != nil {
		return err
	}
	var clusters []*checkedCluster
	var found []apply.Finding
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
	var running sync.WaitGroup
	states := make([]clusterState, len(clusters))
	for i, c := range clusters {
		running.Go(func() { states[i] = o.checkCluster(ctx, env, c) })
	}
	var configuration *configuration
	if len(clusters) > 0 {
		if configuration, err = o.readConfiguration(ctx, env, clusters); err != nil {
			unread = append(unread, fmt.Errorf("the configuration is not checked: %w", err))
		}
	}
	running.Wait()
	for i, c := range clusters {
		for _, note := range states[i].notes {
			env.Notef("%s", note)
		}
		unread = append(unread, states[i].unread...)
		for j := range states[i].found {
			if len(contexts) > 1 {
				states[i].found[j].Cluster = c.access.Context
			}
		}
		found = append(found, states[i].found...)
	}
	found = append(found, o.compareControlPlanes(clusters, states)...)
	if configuration != nil {
		found = append(found, configuration.check(states, len(contexts) > 1)...)
		unread = append(unread, configuration.unread...)
	}
	o.looked = lookedAt(states, configuration)
	var names []string
	for _, c := range clusters {
		names = append(names, c.Name)
	}
	return o.report(env, strings.Join(names, ", "), found, unread)
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

// report shows the findings in clusters, and what could not be checked.
func (o *checkOptions) report(env *cli.Env, clusters string, found []apply.Finding, unread []error) error {
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
	if len(found) == 0 && len(unread) > 0 {
		return cli.Incomplete(unread...)
	}
	env.NotRead(unread...)
	if len(found) > 0 {
		return cli.Findingsf("%s: %s", clusters, output.Plural(len(found), "fault"))
	}
	env.Notef("%s: nothing found: looked at %s", clusters, o.looked)
	return nil
}
