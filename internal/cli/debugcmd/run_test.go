package debugcmd

import "github.com/meshctl/meshctl/internal/cli"

// group returns the commands of this package.
func group() cli.Group {
	return cli.Group{Commands: []cli.Command{NewXDS, NewLogLevel, NewInternalDebug, NewVersion}}
}
