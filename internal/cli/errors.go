package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

// Exit codes of Run.
const (
	ExitOK       = 0
	ExitFailure  = 1 // the command could not do its work
	ExitUsage    = 2 // flags, arguments, environment or configuration file are wrong
	ExitFindings = 3 // the command worked and found problems
)

// report tells the person what went wrong and returns the exit code for it.
func report(stderr io.Writer, cmd *cobra.Command, err error) int {
	if err == nil {
		return ExitOK
	}
	var (
		run      *runError
		usage    *usageError
		findings *findingsError
	)
	switch {
	case errors.As(err, &findings):
		fmt.Fprintln(stderr, findings)
		return ExitFindings
	case errors.Is(err, context.Canceled) && cmd.Context().Err() != nil:
		fmt.Fprintln(stderr, "Error: interrupted")
		return ExitFailure
	// What fails before a command's run is what was typed.
	case errors.As(err, &usage), !errors.As(err, &run):
		fmt.Fprintf(stderr, "Error: %v\nRun '%s --help' for usage.\n", err, cmd.CommandPath())
		return ExitUsage
	default:
		fmt.Fprintf(stderr, "Error: %v\n", err)
		return ExitFailure
	}
}

// runError marks what a command's run returned.
type runError struct{ err error }

func (e *runError) Error() string { return e.err.Error() }

func (e *runError) Unwrap() error { return e.err }

// usageError is wrong usage that only a command's run can see.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

// Usagef returns an error that exits with code 2 and points to the help.
func Usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// findingsError is the end of a command that worked and found problems.
type findingsError struct{ summary string }

func (e *findingsError) Error() string { return e.summary }

// Findingsf returns an error that exits with code 3. The findings themselves
// belong on Stdout; the summary, one line, is printed to Stderr.
func Findingsf(format string, args ...any) error {
	return &findingsError{fmt.Sprintf(format, args...)}
}
