package commands

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
)

// TestErrorsEscapeControlCharacters: errors cannot control a terminal.
func TestErrorsEscapeControlCharacters(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	env := &cli.Env{
		Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: &stderr, Now: time.Now,
		LookupEnv: func(string) (string, bool) { return "", false },
	}
	if code := Run(t.Context(), env, []string{"pc", "clusters", "--file", "no\x1b[2Jfile"}); code == cli.ExitOK {
		t.Error("a file that is not there is read")
	}
	if text := stderr.String(); strings.Contains(text, "\x1b") || !strings.Contains(text, `no\x1b[2Jfile`) {
		t.Errorf("wrote %q", text)
	}
}

// TestCommandTree: every command has help texts and an example, and a run that returns an
// error.
func TestCommandTree(t *testing.T) {
	t.Parallel()
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			check(sub)
		}
		if cmd.Name() == "help" || cmd.Parent() != nil && cmd.Parent().Name() == "completion" || cmd.Name() == "completion" {
			return // from cobra
		}
		path := cmd.CommandPath()
		if cmd.Short == "" || cmd.Short[len(cmd.Short)-1] == '.' || cmd.Short[0] < 'A' || cmd.Short[0] > 'Z' {
			t.Errorf("%s: Short is %q, want a sentence without its full stop", path, cmd.Short)
		}
		if cmd.Long == "" {
			t.Errorf("%s: no Long", path)
		}
		for line := range strings.Lines(cmd.Long) {
			if len(line) > 101 {
				t.Errorf("%s: Long has a line of %d bytes, want at most 100: %s", path, len(line)-1, line)
			}
		}
		if cmd.Runnable() && cmd.Example == "" {
			t.Errorf("%s: no Example", path)
		}
		if cmd.Run != nil {
			t.Errorf("%s: has Run, want RunE", path)
		}
	}
	check(newRootCmd(&cli.Env{}))
}
