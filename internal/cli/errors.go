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
	ExitFailure  = 1 // the command failed
	ExitUsage    = 2 // flags, arguments, environment or configuration file are wrong
	ExitFindings = 3 // the command worked and found problems
)

// report prints an error and returns its exit code.
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
	// An error before run is about the command line.
	case errors.As(err, &usage), !errors.As(err, &run):
		fmt.Fprintf(stderr, "Error: %v\nRun '%s --help' for usage.\n", err, cmd.CommandPath())
		return ExitUsage
	default:
		fmt.Fprintf(stderr, "Error: %v\n", err)
		return ExitFailure
	}
}

// runError marks an error that the run of a command returned.
type runError struct{ err error }

func (e *runError) Error() string { return e.err.Error() }
func (e *runError) Unwrap() error { return e.err }

// usageError marks wrong usage that only the run of a command detects.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// Usagef returns an error of wrong usage: exit code 2 and a pointer to the help.
func Usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

// findingsError is the result of a command that worked and found problems.
type findingsError struct{ summary string }

func (e *findingsError) Error() string { return e.summary }

// Findingsf returns an error with exit code 3. A command prints its findings to
// Stdout; the summary, one line, goes to Stderr.
func Findingsf(format string, args ...any) error {
	return &findingsError{fmt.Sprintf(format, args...)}
}
