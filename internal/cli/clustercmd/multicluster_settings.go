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
	"github.com/meshctl/meshctl/internal/output"
)

// clusterSettingOptions hold the flags of a command that changes the settings of a cluster.
type clusterSettingOptions struct {
	kube      kubeFlags
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
	o.kube.bind(env, cmd, "the ConfigMap meshctl-clusters")
	o.kube.ContextListVar(env, cmd, &o.contexts, "context", "Kubeconfig `context`s of the clusters whose control planes read the settings (default the current one)")
	cli.DirVar(f, &o.configDir, "config-dir", "`Directory` of a control plane without Kubernetes, instead of contexts")
	cli.ForceVar(f, &o.force, "Accept a cluster that no control plane of the contexts knows, such as a cluster that is not linked yet")
	return cmd
}

func (o *clusterSettingOptions) run(ctx context.Context, env *cli.Env, id mesh.ClusterID, set func(*mesh.ClusterSetting), done string) error {
	namespace, err := o.kube.theNamespace()
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
			return cli.Usagef("--config-dir and --context: give one of them")
		}
		path, err := multicluster.ChangeSettingsFile(o.configDir, namespace, change)
		if err != nil {
			return err
		}
		fmt.Fprintf(env.Stdout, "cluster %s: %s (%s)\n", id, done, path)
		return nil
	}
	contexts := o.kube.Contexts(env, o.contexts)
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
	unchecked, err := o.checkKnown(ctx, env, namespace, in, id)
	if err != nil {
		return err
	}
	for _, c := range in {
		if err := c.ChangeSettings(ctx, namespace, change); err != nil {
			return err
		}
		fmt.Fprintf(env.Stdout, "cluster %s: %s (%s)\n", id, done, c.Name)
	}
	if unchecked != nil {
		return cli.Incomplete(fmt.Errorf("it is set, but meshctl could not check that there is a cluster %s: %s; --force skips the check",
			id, strings.ReplaceAll(unchecked.Error(), "\n", "; ")))
	}
	return nil
}

// checkKnown refuses a cluster that no control plane knows: the name is probably
// mistyped, and nothing would be drained. When a control plane does not report its
// clusters, it refuses nothing, as clusters are drained while things are broken:
// unchecked is the reason. For a directory, only the flags of the control plane name the
// clusters.
func (o *clusterSettingOptions) checkKnown(
	ctx context.Context, env *cli.Env, namespace string, in []*multicluster.Cluster, id mesh.ClusterID,
) (unchecked, err error) {
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
			unchecked = errors.Join(unchecked, c.Explain(err))
		}
		for _, k := range known {
			all = append(all, string(k))
		}
		names = append(names, c.Name)
	}
	if unchecked != nil {
		return unchecked, nil
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return nil, fmt.Errorf("no control plane in %s knows cluster %s, they know %s%s; --force skips the check",
		strings.Join(names, ", "), id, strings.Join(all, ", "), output.DidYouMean(string(id), all))
}

func newMulticlusterDrainCmd(env *cli.Env) *cobra.Command {
	return new(clusterSettingOptions).command(env, &cobra.Command{
		Use:   "drain CLUSTER",
		Short: "Move the load of a cluster to other clusters",
		Long: `Send no requests to the endpoints of a cluster while another cluster has healthy
endpoints of the service that the proxy can reach. Nothing is deleted, and services
that only this cluster has keep their endpoints. All control planes that read the
settings apply them until undrain, also after a restart.

The command refuses a cluster that no control plane of the contexts knows. If the
control planes do not report their clusters, the command drains the cluster and exits
with code 4.`,
		Example: `  meshctl multicluster drain west --context east,north
  meshctl multicluster drain cluster2 --config-dir ./cluster1`,
	}, 1, func([]string) (func(*mesh.ClusterSetting), string, error) {
		return func(c *mesh.ClusterSetting) { c.Drain = true }, "drained", nil
	})
}

func newMulticlusterUndrainCmd(env *cli.Env) *cobra.Command {
	return new(clusterSettingOptions).command(env, &cobra.Command{
		Use:     "undrain CLUSTER",
		Short:   "Let a drained cluster receive load again",
		Long:    "Let a drained cluster receive load again.",
		Example: "  meshctl multicluster undrain west --context east,north",
	}, 1, func([]string) (func(*mesh.ClusterSetting), string, error) {
		return func(c *mesh.ClusterSetting) { c.Drain = false }, "takes part in load balancing", nil
	})
}

func newMulticlusterWeightCmd(env *cli.Env) *cobra.Command {
	return new(clusterSettingOptions).command(env, &cobra.Command{
		Use:   "weight CLUSTER PERCENT",
		Short: "Set the share of the load for the endpoints of a cluster",
		Long: `Set the load of each endpoint of a cluster relative to endpoints of other clusters,
in percent from 1 to 1000. The default is 100.`,
		Example: `  # Give endpoints of a new cluster a tenth of the load at first
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
