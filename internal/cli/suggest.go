package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/output"
)

// flagError adds the flag that was probably meant, or the type of its value, to an
// error about flags.
func flagError(cmd *cobra.Command, err error) error {
	if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
		return unknownCommand(cmd, words) // the flags belong to it
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return plainer(err, invalid.GetFlag(), invalid.GetValue())
	}
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if ok && strings.HasPrefix(unknown.GetSpecifiedShortnames(), "f") && takesFiles(cmd) {
		return fmt.Errorf("%w: files are arguments, as in %s FILE", err, cmd.CommandPath())
	}
	if !ok || unknown.GetSpecifiedShortnames() != "" {
		return err
	}
	if instead := removedFlags[unknown.GetSpecifiedName()]; instead != "" {
		return fmt.Errorf("--%s was removed: %s", unknown.GetSpecifiedName(), instead)
	}
	if instead := counterpartFlag(unknown.GetSpecifiedName()); instead != "" {
		return fmt.Errorf("%w: %s", err, instead)
	}
	var known []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			known = append(known, f.Name)
		}
	})
	if word := output.NearestWord(unknown.GetSpecifiedName(), known); word != "" {
		return fmt.Errorf("%w, did you mean --%s?", err, word)
	}
	return err
}

// takesFiles reports whether the arguments of a command are files.
func takesFiles(cmd *cobra.Command) bool {
	return slices.ContainsFunc([]string{"FILE", "PATH", "INPUT"}, func(word string) bool { return strings.Contains(cmd.Use, word) })
}

// removedFlags maps a flag of earlier versions to what replaces it.
var removedFlags = map[string]string{
	"pprof-socket":  "--profiling serves profiles at /debug/pprof/ of --http-addr, and meshctl x internal-debug pprof/heap reads them",
	"otlp-endpoint": "meshctl xds timeline and meshctl xds history show how changes reach proxies",
}

// helpArgs refuses commands that help does not know.
func helpArgs(help *cobra.Command, args []string) error {
	found, rest, err := help.Root().Find(args)
	if err != nil || len(rest) == 0 || !found.HasSubCommands() {
		return err
	}
	return unknownCommand(found, rest)
}

// Near returns a clause with at most five names that may have been meant, empty for none:
// first names that contain the typed one or are part of it, then names with few edits.
func Near(typed string, names []string) string {
	distance := func(name string) int {
		if strings.Contains(name, typed) || strings.Contains(typed, name) {
			return 0
		}
		return output.EditDistance(typed, name)
	}
	near := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return distance(n) > max(3, len(typed)/3) })
	if len(near) == 0 {
		return ""
	}
	slices.SortStableFunc(near, func(a, b string) int { return cmp.Compare(distance(a), distance(b)) })
	return ", near are: " + strings.Join(near[:min(5, len(near))], ", ")
}

// unknownCommand returns an error with a suggestion when a group has arguments.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if hint := fileFlagHint(cmd, args[0]); hint != "" {
		return NoArgs(cmd, args)
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
	var known, names []string
	for _, sub := range cmd.Commands() {
		names = append(names, sub.Name())
		known = append(append(known, sub.Name()), sub.Aliases...)
	}
	if near := output.DidYouMean(args[0], known); near != "" {
		return fmt.Errorf("%w%s", err, near)
	}
	if cmd != cmd.Root() && cmd.Name() != ExperimentalName {
		return fmt.Errorf("%w: it has %s", err, strings.Join(names, ", "))
	}
	if path := elsewhere(cmd, args[0]); path != "" {
		return fmt.Errorf("%w, it is %s", err, path)
	}
	if instead := counterpart(args[0]); instead != "" {
		return fmt.Errorf("%w; %s", err, instead)
	}
	return err
}
