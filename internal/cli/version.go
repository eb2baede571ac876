package cli

import (
	"context"
	"crypto/fips140"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/output"
)

// version overrides what the Go build recorded; only the linker sets it.
var version string

type versionOptions struct {
	output output.Format
}

func newVersionCmd(env *Env) *cobra.Command {
	o := versionOptions{output: output.FormatTable}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of meshctl",
		Long:  "Print what this binary was built from: version, commit, Go version and platform.",
		Example: `  meshctl version
  meshctl version -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	cmd.Flags().VarP(&o.output, "output", "o", "Output `format`: table, json or yaml")
	return cmd
}

func (o *versionOptions) run(_ context.Context, env *Env) error {
	b := currentBuild()
	if o.output != output.FormatTable {
		return output.Write(env.Stdout, o.output, b)
	}
	_, err := fmt.Fprintf(env.Stdout, "meshctl version %s\n", b)
	return err
}

// build says what this binary was made from.
type build struct {
	Version   string `json:"version"`
	Commit    string `json:"commit,omitzero"` // absent if the build had no repository
	GoVersion string `json:"goVersion"`
	Platform  string `json:"platform"`
	// FIPS140 is whether cryptography is that of the validated module of Go.
	FIPS140 bool `json:"fips140"`
}

// String is such as: v1.2.0 (go1.26.0, linux/amd64) commit 1f2e…
func (b build) String() string {
	s := fmt.Sprintf("%s (%s, %s)", b.Version, b.GoVersion, b.Platform)
	if b.Commit != "" {
		s += " commit " + b.Commit
	}
	if b.FIPS140 {
		s += " FIPS 140-3"
	}
	return s
}

func currentBuild() build {
	b := build{
		Version:   version,
		GoVersion: runtime.Version(),
		Platform:  runtime.GOOS + "/" + runtime.GOARCH,
		FIPS140:   fips140.Enabled(),
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
