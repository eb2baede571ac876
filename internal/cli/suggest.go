package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/output"
)

// didYouMean suggests the word of known that is nearest to what was written,
// or nothing when none is near.
func didYouMean(written string, known []string) string {
	word := output.NearestWord(written, known)
	if word == "" {
		return ""
	}
	return fmt.Sprintf(", did you mean %q?", word)
}

// flagError says of what was typed which flag was likely meant, and what a
// flag wants.
func flagError(cmd *cobra.Command, err error) error {
	if words := cmd.Flags().Args(); cmd.HasSubCommands() && len(words) > 0 {
		return unknownCommand(cmd, words) // whose flags these are
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return plainer(err, invalid.GetFlag(), invalid.GetValue())
	}
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || unknown.GetSpecifiedShortnames() != "" {
		return err
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

// helpArgs has help refuse what there is no help for.
func helpArgs(help *cobra.Command, args []string) error {
	found, rest, err := help.Root().Find(args)
	if err != nil || len(rest) == 0 || !found.HasSubCommands() {
		return err
	}
	return unknownCommand(found, rest)
}
