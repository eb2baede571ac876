package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

func TestReport(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	tests := []struct {
		name string
		ctx  context.Context
		err  error
		code int
		text string
	}{
		{"done", t.Context(), nil, 0, ""},
		{"before run", t.Context(), errors.New("unknown flag: --x"), 2, "Error: unknown flag: --x\nRun 'probe --help' for usage.\n"},
		{"failure", t.Context(), &runError{errors.New("disk full")}, 1, "Error: disk full\n"},
		{"usage seen by run", t.Context(), &runError{fmt.Errorf("read: %w", usagef("--ttl is %d", 0))}, 2, "Error: read: --ttl is 0\nRun 'probe --help' for usage.\n"},
		{"findings", t.Context(), &runError{findingsf("%d problems found", 2)}, 3, "2 problems found\n"},
		{"interrupted", ended, &runError{fmt.Errorf("wait: %w", context.Canceled)}, 1, "Error: interrupted\n"},
		{"canceled by itself", t.Context(), &runError{context.Canceled}, 1, "Error: context canceled\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd := &cobra.Command{Use: "probe"}
			cmd.SetContext(tt.ctx)
			var stderr bytes.Buffer
			if code := report(&stderr, cmd, tt.err); code != tt.code || stderr.String() != tt.text {
				t.Errorf("report(%v) = %d, %q, want %d, %q", tt.err, code, &stderr, tt.code, tt.text)
			}
		})
	}
}

// TestErrorsCannotSteerATerminal: what a command repeats of others is escaped.
func TestErrorsCannotSteerATerminal(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	env := &Env{
		Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &stderr, Now: time.Now,
		LookupEnv: func(string) (string, bool) { return "", false },
	}
	if code := Run(t.Context(), env, []string{"pc", "clusters", "--file", "no\x1b[2Jfile"}); code == exitOK {
		t.Error("a file that is not there is read")
	}
	if text := stderr.String(); strings.Contains(text, "\x1b") || !strings.Contains(text, `no\x1b[2Jfile`) {
		t.Errorf("wrote %q", text)
	}
}

// Every command explains itself, takes no argument silently and has a run
// that can fail.
func TestCommandTree(t *testing.T) {
	t.Parallel()
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			check(sub)
		}
		if cmd.Name() == "help" || cmd.Parent() != nil && cmd.Parent().Name() == "completion" || cmd.Name() == "completion" {
			return // cobra's own
		}
		path := cmd.CommandPath()
		if cmd.Short == "" || cmd.Short[len(cmd.Short)-1] == '.' || cmd.Short[0] < 'A' || cmd.Short[0] > 'Z' {
			t.Errorf("%s: Short is %q, want a sentence without its full stop", path, cmd.Short)
		}
		if cmd.Long == "" {
			t.Errorf("%s: no Long", path)
		}
		if cmd.Runnable() && cmd.Example == "" {
			t.Errorf("%s: no Example", path)
		}
		if cmd.Run != nil {
			t.Errorf("%s: has Run, want RunE", path)
		}
	}
	check(newRootCmd(&Env{}))
}
