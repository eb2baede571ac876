package clustercmd

import (
	"context"

	"github.com/meshctl/meshctl/internal/cli"
)

// group returns the commands of this package.
func group() cli.Group {
	return cli.Group{Commands: []cli.Command{NewMulticluster, NewCreateRemoteSecret, NewRemoteSecret, NewRemoteClusters, NewGateways}}
}

// run runs a command of this package and returns its exit code.
func run(ctx context.Context, env *cli.Env, args []string) int {
	return cli.Run(ctx, env, args, group())
}
