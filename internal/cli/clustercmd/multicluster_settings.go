package clustercmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
)

// clusterSettingOptions change what is set for one cluster.
type clusterSettingOptions struct {
	kube      cli.KubeFlags
	namespace cli.NamespaceFlags
	contexts  []string
	configDir string
	force     bool
}

func (o *clusterSettingOptions) command(env *cli.Env, cmd *cobra.Command, args int, change func([]string) (func(*mesh.ClusterSetting), string, error)) *cobra.Command {
	cmd.Args = func(_ *cobra.Command, given []string) error {
		if len(given) != args || !mesh.ClusterID(given[0]).Valid() {
			return errors.New("want meshctl multicluster " + cmd.Use)
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		set, done, err := change(given)
		if err != nil {
			return err
		}
		return o.run(cmd.Context(), env, mesh.ClusterID(given[0]), set, done)
	}
	f := cmd.Flags()
	o.kube.Bind(f)
	o.namespace.Bind(f, "Namespace of the ConfigMap meshctl-clusters")
	f.StringSliceVar(&o.contexts, "context", nil, "`Contexts` of the clusters whose control planes are told (default: the current one)")
	f.StringVar(&o.configDir, "config-dir", "", "`Directory` of a control plane without Kubernetes, instead of contexts")
	f.BoolVar(&o.force, "force", false, "Also for a cluster that no control plane of the contexts knows, such as one that is to be linked")
	o.kube.ContextFlags(env, cmd, "context")
	return cmd
}

func (o *clusterSettingOptions) run(ctx context.Context, env *cli.Env, id mesh.ClusterID, set func(*mesh.ClusterSetting), done string) error {
	namespace, err := o.namespace.Value()
	if err != nil {
		return err
	}
	change := func(s mesh.ClusterSettings) {
		c := s[id]
		set(&c)
		s[id] = c
	}
	if o.configDir != "" {
		if len(o.contexts) > 0 {
			return cli.Usagef("--config-dir and --context: settings are in a directory or in clusters")
		}
		path, err := multicluster.ChangeSettingsFile(o.configDir, namespace, change)
		if err != nil {
			return err
		}
		fmt.Fprintf(env.Stdout, "cluster %s: %s (%s)\n", id, done, path)
		return nil
	}
	contexts := o.contexts
	if len(contexts) == 0 {
		contexts = []string{""}
	}
	var in []*multicluster.Cluster
	for _, name := range contexts {
		c, err := o.kube.Connect(env, name)
		if err != nil {
			return err
		}
		in = append(in, c)
	}
	untold, err := o.checkKnown(ctx, env, namespace, in, id)
	if err != nil {
		return err
	}
	for _, c := range in {
		if err := c.ChangeSettings(ctx, namespace, change); err != nil {
			return err
		}
		fmt.Fprintf(env.Stdout, "cluster %s: %s (%s)\n", id, done, c.Name)
	}
	if untold != nil {
		return cli.Findingsf("it is set, but whether there is a cluster %s is not known: %s; --force sets it unchecked",
			id, strings.ReplaceAll(untold.Error(), "\n", "; "))
	}
	return nil
}

// checkKnown refuses a cluster that no control plane knows: its name is likely
// mistyped, and nothing would be drained. Where a control plane does not report which
// it knows, nothing is refused, as clusters are drained when much is broken: untold
// is why the cluster could not be verified. A directory reports none: only the flags
// of its control plane do.
func (o *clusterSettingOptions) checkKnown(
	ctx context.Context, env *cli.Env, namespace string, in []*multicluster.Cluster, id mesh.ClusterID,
) (untold, err error) {
	if o.force {
		return nil, nil
	}
	var all, names []string
	for _, c := range in {
		known, err := c.KnownClusters(ctx, namespace, env.Now())
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if slices.Contains(known, id) {
			return nil, nil
		}
		if err != nil {
			untold = errors.Join(untold, c.Explain(err))
		}
		for _, k := range known {
			all = append(all, string(k))
		}
		names = append(names, c.Name)
	}
	if untold != nil {
		return untold, nil
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return nil, fmt.Errorf("no control plane in %s knows a cluster %s, they know %s%s; set it all the same with --force",
		strings.Join(names, ", "), id, strings.Join(all, ", "), cli.DidYouMean(string(id), all))
}

func newMulticlusterDrainCmd(env *cli.Env) *cobra.Command {
	return new(clusterSettingOptions).command(env, &cobra.Command{
		Use:   "drain CLUSTER",
		Short: "Take a cluster out of load balancing, where others have its services",
		Long: `Take the endpoints of a cluster out of load balancing where other clusters have
healthy ones that a proxy can reach. Nothing is deleted: no secret, no service, no
endpoint of a service that only this cluster has. Every control plane that reads
the settings does so, also after a restart, until undrain.

A name that no control plane of the contexts knows is refused. Where they do not
report which clusters they know, the cluster is drained, and the exit code is 3.`,
		Example: `  meshctl multicluster drain west --context east,north
  meshctl multicluster drain cluster2 --config-dir ./cluster1`,
	}, 1, func([]string) (func(*mesh.ClusterSetting), string, error) {
		return func(c *mesh.ClusterSetting) { c.Drain = true }, "drained", nil
	})
}

func newMulticlusterUndrainCmd(env *cli.Env) *cobra.Command {
	return new(clusterSettingOptions).command(env, &cobra.Command{
		Use:     "undrain CLUSTER",
		Short:   "Let a drained cluster take part in load balancing again",
		Long:    "Let a cluster that was drained take part in load balancing again.",
		Example: "  meshctl multicluster undrain west --context east,north",
	}, 1, func([]string) (func(*mesh.ClusterSetting), string, error) {
		return func(c *mesh.ClusterSetting) { c.Drain = false }, "takes part in load balancing", nil
	})
}

func newMulticlusterWeightCmd(env *cli.Env) *cobra.Command {
	return new(clusterSettingOptions).command(env, &cobra.Command{
		Use:   "weight CLUSTER PERCENT",
		Short: "Give the endpoints of a cluster a larger or smaller share of the load",
		Long: `Give each endpoint of a cluster this share of the load of one elsewhere, in
percent, 1 to 1000; 100 is the usual one.`,
		Example: `  # a new cluster takes a tenth at first
  meshctl multicluster weight west 10 --context east,west`,
	}, 2, func(args []string) (func(*mesh.ClusterSetting), string, error) {
		n, err := strconv.ParseUint(args[1], 10, 32)
		if err != nil || n < 1 || n > mesh.MaxWeight {
			return nil, "", cli.Usagef("weight %q: want 1 to %d percent", args[1], mesh.MaxWeight)
		}
		weight := uint32(n)
		if weight == 100 {
			weight = 0
		}
		return func(c *mesh.ClusterSetting) { c.Weight = weight }, fmt.Sprintf("weight %d%%", n), nil
	})
}
