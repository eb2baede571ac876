package installcmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install/apply"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

type checkOptions struct {
	cluster clusterFlags
	values  valueFlags
	output  output.Format
}

// before is the argument that checks before an installation.
const before = "pre"

// NewCheck returns the command check.
func NewCheck(env *cli.Env) *cobra.Command {
	var o checkOptions
	cmd := &cobra.Command{
		Use:   "check [pre]",
		Short: "Check the installations in a cluster, or a cluster before an installation",
		Long: `Check the installations in the cluster of a context: that Deployments are available,
Services have endpoints and addresses, API servers can call the webhooks, control planes
answer, the proxies of injected pods are connected and accept their configuration, and meshctl
analyze finds no warning or error.

With pre, check whether the cluster is ready for an installation with the same flags:
the version of Kubernetes, your permissions, the kinds of Istio, objects and webhooks of
other programs, and security policies that would not be enforced.

The command writes nothing. The exit code is 3 if it finds a fault. meshctl
remote-clusters shows the clusters that control planes read.`,
		Example: `  meshctl check pre --context cluster1 --network network1 --crds
  meshctl check --context cluster1`,
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{before},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), env, cmd.Flags(), len(args) > 0)
		},
	}
	f := cmd.Flags()
	o.cluster.bind(env, cmd)
	o.values.bind(f)
	cli.TableVar(f, &o.output)
	return cmd
}

func (o *checkOptions) run(ctx context.Context, env *cli.Env, f *pflag.FlagSet, before bool) error {
	c, access, err := o.cluster.connect(env)
	if err != nil {
		return err
	}
	defer c.API.Close()
	var found []apply.Finding
	var unread error
	if before {
		v, err := o.values.values(ctx, env, f)
		if err != nil {
			return err
		}
		server, err := create.Connect(c.Name, access.Config)
		if err != nil {
			return err
		}
		found, err = c.CheckBefore(ctx, v, server)
		if err != nil {
			return err
		}
	} else {
		if found, err = c.CheckAfter(ctx); err != nil {
			return err
		}
		proxies, err := checkProxies(ctx, env, c, access, o.values.namespace)
		if err != nil {
			return err
		}
		found = append(found, proxies...)
		var configuration []apply.Finding
		configuration, unread = o.checkConfiguration(ctx, env, access)
		found = append(found, configuration...)
	}
	t := &output.Table{Header: []string{"LEVEL", "OBJECT", "FAULT", "HINT"}}
	for _, f := range found {
		t.Rows = append(t.Rows, []string{string(f.Level), f.Object, f.Fault, f.Hint})
	}
	if len(found) > 0 || !o.output.ForPeople() {
		if err := cli.WriteResult(env, o.output, found, t); err != nil {
			return err
		}
	}
	if unread != nil && len(found) > 0 {
		env.Warnf("the configuration is not checked: %v", unread)
	} else if unread != nil {
		return fmt.Errorf("the configuration is not checked: %w", unread)
	}
	if len(found) > 0 {
		return cli.Findingsf("%s: %s", c.Name, output.Plural(len(found), "fault"))
	}
	env.Notef("%s: nothing found", c.Name)
	return nil
}
