// Package commands assembles the command tree.
package cli

import (
	"context"

	"github.com/spf13/cobra"
)

// Run executes the command that args name and returns the exit code: 0 done,
// 1 failed, 2 wrong usage, 3 done and found problems.
func Run(ctx context.Context, env *Env, args []string) int {
	return execute(ctx, env, args, groups()...)
}

// groups lists the commands, one a line, in the order of the help.
func groups() []Group {
	return []Group{
		{"Run a mesh:", []Command{
			newDemoCmd,
			newServeCmd,
			newAgentCmd,
		}},
		{"See what it does:", []Command{
			newProxyConfigCmd,
			newProxyStatusCmd,
			newExplainCmd,
			newXDSCmd,
			newLogLevelCmd,
		}},
		{"Join clusters:", []Command{
			newMulticlusterCmd,
			newCreateRemoteSecretCmd,
			newRemoteSecretCmd,
			newRemoteClustersCmd,
		}},
		{"Prove who is who:", []Command{
			newCertsCmd,
			newTokenCmd,
		}},
		{"", []Command{
			newExperimentalCmd,
			newVersionCmd,
		}},
	}
}

// newExperimentalCmd groups the commands that istioctl has as experimental ones.
func newExperimentalCmd(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     experimentalName,
		Aliases: []string{"x", "exp"},
		Short:   "Commands by the names that older scripts have for them",
		Long:    "Commands that istioctl had among its experimental ones, for scripts that still call them so.",
		Example: "  meshctl x create-remote-secret --context west --name west",
	}
	cmd.AddCommand(newCreateRemoteSecretCmd(env), newInternalDebugCmd(env))
	return cmd
}
