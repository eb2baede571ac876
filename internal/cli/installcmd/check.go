package installcmd

import (
	"bytes"
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
	"github.com/meshctl/meshctl/internal/order"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

type checkOptions struct {
	kube     cli.KubeFlags
	contexts cli.MeshContexts
	values   valueFlags
	output   output.Format
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
answer and read the other clusters, their credentials have the rights for this, the proxies
of injected pods are connected and accept their configuration, and meshctl analyze finds no
warning or error, also not between the clusters.

With pre, check whether the cluster is ready for an installation with the same flags:
the version of Kubernetes, your permissions, the kinds of Istio, objects and webhooks of
other programs, and security policies that would not be enforced.

The command writes nothing. The exit code is 3 if it finds a fault, and 1 if it finds none but
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
		var errs []error
		found, errs = o.checkClusters(ctx, env, clusters, len(contexts) > 1)
		unread = append(unread, errs...)
	}
	var names []string
	known := map[mesh.ClusterID]string{}
	for _, c := range clusters {
		names = append(names, c.Name)
		known[c.id] = c.access.Context
	}
	for i := range found {
		found[i].Hint = withContexts(found[i].Hint, known)
	}
	return o.report(env, strings.Join(names, ", "), found, unread)
}

// checkResult is the result of one of several checks at the same time.
type checkResult struct {
	found []apply.Finding
	err   error
	notes bytes.Buffer
}

// do runs a check, and keeps its notes.
func (r *checkResult) do(env *cli.Env, check func(*cli.Env) ([]apply.Finding, error)) {
	own := *env
	own.Stderr = &r.notes
	r.found, r.err = check(&own)
}

// checkClusters checks the clusters, their credentials for each other, and their configuration. It may
// return some findings with the reasons why it could not check the rest.
func (o *checkOptions) checkClusters(ctx context.Context, env *cli.Env, clusters []*checkedCluster, several bool) (found []apply.Finding, unread []error) {
	results := make([]checkResult, len(clusters)+2)
	var running sync.WaitGroup
	for i, c := range clusters {
		running.Go(func() {
			results[i].do(env, func(env *cli.Env) ([]apply.Finding, error) { return o.checkCluster(ctx, env, c) })
			for j := range results[i].found {
				f := &results[i].found[j]
				f.Hint = withFlags(f.Hint, o.kube.CommandFlags(c.access.Context))
				if several {
					f.Cluster = c.access.Context
				}
			}
		})
	}
	credentials, configuration := &results[len(clusters)], &results[len(clusters)+1]
	running.Go(func() {
		credentials.do(env, func(env *cli.Env) ([]apply.Finding, error) { return o.checkCredentials(ctx, env, clusters), nil })
	})
	running.Go(func() {
		configuration.do(env, func(env *cli.Env) ([]apply.Finding, error) { return o.checkConfiguration(ctx, env, clusters, several) })
	})
	running.Wait()
	if configuration.err != nil {
		configuration.err = fmt.Errorf("the configuration is not checked: %w", configuration.err)
	}
	for i := range results {
		r := &results[i]
		_, _ = env.Stderr.Write(r.notes.Bytes())
		if r.err != nil {
			unread = append(unread, r.err)
		}
		if r == credentials {
			r.found = slices.DeleteFunc(r.found, func(f apply.Finding) bool { return slices.ContainsFunc(found, sameSecret(&f)) })
		}
		found = append(found, r.found...)
	}
	return found, unread
}

// checkBefore checks the first cluster before an installation.
func (o *checkOptions) checkBefore(ctx context.Context, env *cli.Env, f *pflag.FlagSet) error {
	if len(o.contexts.Names) > 1 || o.contexts.All {
		return cli.Usagef("check pre is for the flags of one installation: name one context")
	}
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

// checkCluster returns the faults of the installations in a cluster. It may return some with an error.
func (o *checkOptions) checkCluster(ctx context.Context, env *cli.Env, c *checkedCluster) ([]apply.Finding, error) {
	found, err := c.CheckAfter(ctx)
	if err != nil {
		return nil, err
	}
	proxies, err := checkProxies(ctx, env, c.Cluster, c.access, o.values.namespace)
	return append(found, proxies...), err
}

// withFlags adds the flags that name a cluster to a hint with a command that has none.
func withFlags(hint, flags string) string {
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
	order.Stable(found, func(a, b apply.Finding) int { return cmp.Compare(a.Level, b.Level) }) // errors first
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
	if len(found) == 0 && len(unread) > 0 {
		return errors.Join(unread...)
	}
	for _, err := range unread {
		env.Warnf("%v", err)
	}
	if len(found) > 0 {
		return cli.Findingsf("%s: %s", clusters, output.Plural(len(found), "fault"))
	}
	env.Notef("%s: nothing found", clusters)
	return nil
}
