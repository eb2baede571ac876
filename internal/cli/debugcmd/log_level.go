package debugcmd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/logs"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/server"
)

type logLevelOptions struct {
	cli.PageFlags
	set string // empty to show
}

// NewLogLevel returns the command log-level.
func NewLogLevel(env *cli.Env) *cobra.Command {
	var o logLevelOptions
	cmd := &cobra.Command{
		Use:   "log-level [LEVEL | AREA:LEVEL,…]",
		Short: "Show or change the log levels of control planes",
		Long: `Show or change the log levels of running control planes, by area. LEVEL applies to all
areas. default:LEVEL applies to areas without their own level. A restart restores the
levels of serve --log-level.

Levels are ` + strings.Join(logs.Names(), ", ") + `;
areas are default,
` + strings.Join(server.LogAreas(), ", ") + `.

The command asks every replica in the cluster of the kubeconfig, or at --server. The
user that runs a control plane may change its levels. With --token-file, an identity of
the system namespace of the control plane may also change them.`,
		Example: `  meshctl log-level
  # Log what happens between the control plane and the proxies
  meshctl log-level xds:debug
  # Restore the default
  meshctl log-level info`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fmt.Errorf("unexpected argument %q: want levels in one argument, separated by commas", args[1])
			}
			if len(args) == 1 {
				o.set = args[0]
				return logs.NewLevels(server.LogAreas()...).Set(o.set)
			}
			return nil
		},
		ValidArgsFunction: completeLogLevels,
		RunE:              func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.Bind(env, cmd)
	return cmd
}

// completeLogLevels completes areas, and levels after an area.
func completeLogLevels(_ *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	before := typed[:strings.LastIndex(typed, ",")+1]
	var out []cobra.Completion
	if area, _, ok := strings.Cut(typed[len(before):], ":"); ok {
		for _, level := range logs.Names() {
			out = append(out, before+area+":"+level)
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	for _, area := range append([]string{logs.Default}, server.LogAreas()...) {
		out = append(out, before+area+":")
	}
	return append(out, logs.Names()...), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// replicaLevels holds the levels of one replica.
type replicaLevels struct {
	Replica string            `json:"replica"`
	Error   string            `json:"error,omitzero"` // set without levels
	Levels  map[string]string `json:"levels,omitzero"`

	err error // behind codes.Error
}

func (o *logLevelOptions) run(ctx context.Context, env *cli.Env) error {
	found, err := o.Find(ctx, env)
	if err != nil {
		return err
	}
	defer cli.CloseReplicas(found)
	return o.show(env, cli.ForEach(found, func(r *replicas.Replica) replicaLevels { return o.ask(ctx, r) }))
}

const logLevelsPage = "/debug/log-levels"

func (o *logLevelOptions) ask(ctx context.Context, r *replicas.Replica) replicaLevels {
	levels := replicaLevels{Replica: r.Name}
	var err error
	if o.set != "" {
		err = r.Put(ctx, logLevelsPage, o.set, &levels.Levels)
	} else {
		err = r.Get(ctx, logLevelsPage, nil, &levels.Levels)
	}
	if err != nil {
		levels.Error, levels.err = err.Error(), err
	}
	return levels
}

func (o *logLevelOptions) show(env *cli.Env, all []replicaLevels) error {
	var errs []string
	var silent []error
	table := &output.Table{Header: []string{"REPLICA", "AREA", "LEVEL"}}
	for _, r := range all {
		if r.Error != "" {
			errs, silent = append(errs, r.Replica+": "+r.Error), append(silent, r.err)
		}
		for _, area := range slices.Sorted(maps.Keys(r.Levels)) {
			table.Rows = append(table.Rows, []string{r.Replica, area, r.Levels[area]})
		}
	}
	if !o.Output.ForPeople() || len(table.Rows) > 0 {
		if err := cli.WriteResult(env, o.Output, all, table); err != nil {
			return err
		}
	}
	if o.set == "" {
		return o.Unread(errs, silent, len(all))
	}
	return o.Silent(errs, silent, len(all))
}
