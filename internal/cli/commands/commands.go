// Package commands assembles the command tree from the packages of commands.
package commands

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/cli/analyzecmd"
	"github.com/meshctl/meshctl/internal/cli/authzcmd"
	"github.com/meshctl/meshctl/internal/cli/certscmd"
	"github.com/meshctl/meshctl/internal/cli/clustercmd"
	"github.com/meshctl/meshctl/internal/cli/debugcmd"
	"github.com/meshctl/meshctl/internal/cli/explaincmd"
	"github.com/meshctl/meshctl/internal/cli/injectcmd"
	"github.com/meshctl/meshctl/internal/cli/installcmd"
	"github.com/meshctl/meshctl/internal/cli/pccmd"
	"github.com/meshctl/meshctl/internal/cli/pscmd"
	"github.com/meshctl/meshctl/internal/cli/servecmd"
	_ "github.com/meshctl/meshctl/internal/xdswire/protos" // for EnvoyFilters and dumps
)

// Run executes the command that args name and returns the exit code, one of those of
// exit_codes.go in package cli.
func Run(ctx context.Context, env *cli.Env, args []string) int {
	return cli.Run(ctx, env, args, groups()...)
}

// Root returns the root command, for the manual pages.
func Root(env *cli.Env) *cobra.Command { return cli.NewRoot(env, groups()...) }

// groups lists the commands, one a line, in the order of the help.
func groups() []cli.Group {
	return []cli.Group{
		{Title: "Run a mesh:", Commands: []cli.Command{
			servecmd.NewDemo,
			servecmd.NewServe,
			servecmd.NewAgent,
			servecmd.NewWorkload,
			injectcmd.NewInject,
		}},
		{Title: "Install it in clusters:", Commands: []cli.Command{
			installcmd.NewInstall,
			installcmd.NewUpgrade,
			installcmd.NewUninstall,
			installcmd.NewCheck,
			installcmd.NewManifest,
		}},
		{Title: "See what it does:", Commands: []cli.Command{
			pccmd.NewProxyConfig,
			pscmd.NewProxyStatus,
			explaincmd.NewExplain,
			analyzecmd.NewAnalyze,
			analyzecmd.NewValidate,
			authzcmd.NewAuthz,
			explaincmd.NewRender,
			debugcmd.NewXDS,
			debugcmd.NewLogLevel,
		}},
		{Title: "Join clusters:", Commands: []cli.Command{
			clustercmd.NewMulticluster,
			clustercmd.NewCreateRemoteSecret,
			clustercmd.NewRemoteSecret,
			clustercmd.NewRemoteClusters,
			clustercmd.NewGateways,
		}},
		{Title: "Manage identities:", Commands: []cli.Command{
			certscmd.NewCerts,
			certscmd.NewToken,
		}},
		{Commands: []cli.Command{
			newExperimentalCmd,
			debugcmd.NewVersion,
		}},
	}
}

// newExperimentalCmd groups the commands that istioctl has as experimental ones.
func newExperimentalCmd(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     cli.ExperimentalName,
		Aliases: []string{"x", "exp"},
		Short:   "Commands under their experimental names in istioctl",
		Long:    "Commands that were experimental in istioctl, for scripts that still use these names.",
		Example: "  meshctl x create-remote-secret --context west --name west",
	}
	cmd.AddCommand(clustercmd.NewCreateRemoteSecret(env), debugcmd.NewInternalDebug(env))
	return cmd
}
