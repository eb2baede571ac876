package cli

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version overrides what the Go build recorded; set by the linker only.
var version string

type versionOptions struct{}

func newVersionCmd(env *Env) *cobra.Command {
	var o versionOptions
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of meshctl",
		Example: "  meshctl version",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), env)
		},
	}
	return cmd
}

func (o *versionOptions) run(_ context.Context, env *Env) error {
	_, err := fmt.Fprintln(env.Stdout, currentBuild().Version)
	return err
}

// build says what this binary was made from.
type build struct {
	Version   string `json:"version"`
	Commit    string `json:"commit,omitempty"`
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
}

func currentBuild() build {
	b := build{
		Version:   version,
		GoVersion: runtime.Version(),
		Platform:  runtime.GOOS + "/" + runtime.GOARCH,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Commit = s.Value
		}
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	return b
}
