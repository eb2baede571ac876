package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/output"
)

// Exit codes of Run.
const (
	ExitOK       = 0
	ExitFailure  = 1 // the command failed
	ExitUsage    = 2 // flags, arguments, environment or configuration file are wrong
	ExitFindings = 3 // the command worked and found problems
	// ExitIncomplete means that the command found no problem, but could not look at everything.
	ExitIncomplete = 4
)

// report prints an error and returns its exit code.
func report(stderr io.Writer, cmd *cobra.Command, err error) int {
	if err == nil {
		return ExitOK
	}
	coded, ok := errors.AsType[*codedError](err)
	switch {
	case ok && (coded.code == ExitFindings || coded.code == ExitIncomplete):
		fmt.Fprintln(stderr, coded)
		return coded.code
	case errors.Is(err, context.Canceled) && cmd.Context().Err() != nil:
		fmt.Fprintln(stderr, "Error: interrupted")
		return ExitFailure
	case ok && coded.code == ExitFailure:
		fmt.Fprintf(stderr, "Error: %v\n", err)
		return ExitFailure
	}
	// An error before run is about the command line.
	fmt.Fprintf(stderr, "Error: %v\nRun '%s --help' for usage.\n", err, cmd.CommandPath())
	return ExitUsage
}

// codedError is an error with its exit code.
type codedError struct {
	error
	code int
}

func (e *codedError) Unwrap() error { return e.error }

// runError returns an error of the run of a command, with ExitFailure unless it has a code.
func runError(err error) error {
	if _, ok := errors.AsType[*codedError](err); ok || err == nil {
		return err
	}
	return &codedError{err, ExitFailure}
}

// Usagef returns an error of wrong usage: exit code 2 and a pointer to the help.
func Usagef(format string, args ...any) error {
	return &codedError{fmt.Errorf(format, args...), ExitUsage}
}

// Findingsf returns an error with exit code 3. A command prints its findings to
// Stdout; the summary, one line, goes to Stderr.
func Findingsf(format string, args ...any) error {
	return &codedError{fmt.Errorf(format, args...), ExitFindings}
}

// Incomplete returns an error with exit code 4 that has a line for each thing that could not be read,
// nil for none. A command that also has findings prints the lines with NotRead, and returns the
// findings.
func Incomplete(unread ...error) error {
	if len(unread) == 0 {
		return nil
	}
	return &codedError{errors.New(output.EscapeLines(notRead(unread))), ExitIncomplete}
}

// Conclude returns the result of a command that has findings, each a line, and an error about what it
// could not read; both may be empty.
func (e *Env) Conclude(findings []string, unread error) error {
	if len(findings) == 0 {
		return unread
	}
	if unread != nil {
		for line := range strings.SplitSeq(unread.Error(), "\n") {
			e.Notef("%s", line)
		}
	}
	return Findingsf("%s", output.EscapeLines(findings))
}

// NotRead prints a line for each thing that could not be read.
func (e *Env) NotRead(unread ...error) {
	for _, line := range notRead(unread) {
		e.Notef("%s", line)
	}
}

func notRead(unread []error) []string {
	lines := make([]string, len(unread))
	for i, err := range unread {
		lines[i] = "not read: " + err.Error()
	}
	return lines
}
