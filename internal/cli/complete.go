package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/proxyconfig"
)

// completions tells the shell what values the flags of cmd can have, by their
// names, which mean the same in every command.
func completions(cmd *cobra.Command) {
	cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		values := flagValues(f)
		if len(values) == 0 {
			return
		}
		if slices.Contains(values, directory) {
			// The error is that the flag does not exist or has a function.
			_ = cmd.RegisterFlagCompletionFunc(f.Name, func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
				return nil, cobra.ShellCompDirectiveFilterDirs
			})
			return
		}
		CompleteValues(cmd, f.Name, values...)
	})
}

// directory stands for any directory in the list of a flag's values.
const directory = "/"

func flagValues(f *pflag.Flag) []string {
	switch v := f.Value.(type) {
	case *choiceValue:
		return v.values
	case *outputValue:
		return slices.DeleteFunc(v.names(), func(name string) bool { return strings.Contains(name, "=") })
	}
	switch f.Name {
	case "algorithm":
		var out []string
		for _, a := range certs.Algorithms() {
			out = append(out, string(a))
		}
		return out
	case "log-level":
		return []string{"debug", "info", "warn", "error"}
	case "log-format":
		return []string{"text", "json"}
	case "xds":
		return []string{"delta", "sotw"}
	case "status":
		return proxyconfig.HealthStatuses()
	case "direction":
		return []string{"inbound", "outbound"}
	case "layout":
		return []string{string(store.LayoutIstio), string(store.LayoutTLS)}
	case "format":
		return []string{"pem", "spiffe"}
	case "config-dir", "ca", "ca-dir", "state-dir", "root", "keep", "config-path":
		return []string{directory}
	}
	return nil
}

// CompleteValues tells the shell the values of a flag. The first call for a flag
// counts: a command makes it whose flag has others than its name has elsewhere.
func CompleteValues(cmd *cobra.Command, flag string, values ...string) {
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}
