package pccmd

import (
	"context"

	"github.com/meshctl/meshctl/internal/cli"
)

// group returns the command of this package.
func group() cli.Group { return cli.Group{Commands: []cli.Command{NewProxyConfig}} }

// run runs the command of this package and returns its exit code.
func run(ctx context.Context, env *cli.Env, args []string) int {
	return cli.Run(ctx, env, args, group())
}
