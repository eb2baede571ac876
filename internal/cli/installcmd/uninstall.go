package installcmd

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install"
	"github.com/meshctl/meshctl/internal/install/apply"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
)

type uninstallOptions struct {
	cluster   clusterFlags
	namespace string
	name      string
	revision  string
	all       bool
	yes       bool
	dryRun    bool
}

// NewUninstall returns the command uninstall.
func NewUninstall(env *cli.Env) *cobra.Command {
	var o uninstallOptions
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Delete an installation from a cluster",
		Long: `Delete the objects that meshctl install made, by their label meshctl.io/installation. If
it deletes the last installation of the cluster, the command also deletes the objects
that control planes wrote, the settings of clusters that multicluster drain and weight
wrote, the service accounts without tokens that multicluster link created, and the
CustomResourceDefinitions and namespaces that install made.

The command never deletes objects of other programs. It keeps and lists each
CustomResourceDefinition that has objects, and each namespace that has other objects,
such as the Secret with the signing CA. Pods keep their sidecars until they are created
again. If proxies or namespaces use the control plane, or if gateways end while another
control plane stays, the command names them and asks.`,
		Example: `  meshctl uninstall --context cluster1 --dry-run
  meshctl uninstall --context cluster1 --revision canary
  meshctl uninstall --context cluster1 --all`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	f := cmd.Flags()
	o.cluster.bind(env, cmd)
	f.StringVarP(&o.namespace, "istioNamespace", "i", mesh.DefaultSystemNamespace, "`Namespace` of the control plane")
	f.StringVar(&o.name, "name", "meshctl", "`Name` of the installation, metadata.name of an IstioOperator")
	f.StringVarP(&o.revision, "revision", "r", "", "`Revision` of the control plane to delete")
	f.BoolVar(&o.all, "all", false, "Delete all installations")
	f.BoolVar(&o.all, "purge", false, "The name of --all in istioctl")
	_ = f.MarkHidden("purge") // fails for an unknown flag only
	yesVar(f, &o.yes)
	f.BoolVar(&o.dryRun, "dry-run", false, "List what would be deleted, and delete nothing")
	return cmd
}

func (o *uninstallOptions) run(ctx context.Context, env *cli.Env) error {
	c, _, err := o.cluster.connect(env)
	if err != nil {
		return err
	}
	defer c.API.Close()
	found, err := c.Installations(ctx)
	if err != nil {
		return err
	}
	v := install.Values{Name: o.name, Revision: o.revision}
	name := v.Installation()
	names := []string{name}
	switch {
	case o.all:
		names = found
	case len(found) > 0 && !slices.Contains(found, name):
		return fmt.Errorf("%s: there is no installation %s, but %s: name one with --name or --revision", c.Name, name, strings.Join(found, ", "))
	}
	effects, err := c.Users(ctx, names)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%s: deleting %s", c.Name, strings.Join(names, ", "))
	if o.dryRun {
		for _, e := range effects {
			env.Notef("%s %s", what, e)
		}
	} else if err := confirm(env, o.yes, what, effects, "move them to another revision, or restart them without sidecars"); err != nil {
		return err
	}
	done, err := c.Uninstall(ctx, names, o.namespace, apply.Options{DryRun: o.dryRun, Now: env.Now(), Say: env.Notef})
	if err != nil {
		return err
	}
	said := "deleted from"
	if o.dryRun {
		said = "would be deleted from"
	}
	if done.Deleted == 0 && len(found) == 0 {
		env.Notef("%s: nothing is installed: no object has the label %s", c.Name, install.LabelInstallation)
	}
	env.Notef("%s %s %s", output.Plural(done.Deleted, "object"), said, c.Name)
	return nil
}
