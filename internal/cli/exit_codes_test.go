package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

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
		{"failure", t.Context(), runError(errors.New("disk full")), 1, "Error: disk full\n"},
		{"usage seen by run", t.Context(), runError(fmt.Errorf("read: %w", Usagef("--ttl is %d", 0))), 2, "Error: read: --ttl is 0\nRun 'probe --help' for usage.\n"},
		{"findings", t.Context(), runError(Findingsf("%d problems found", 2)), 3, "2 problems found\n"},
		{"incomplete", t.Context(), runError(Incomplete(errors.New("a: gone"), errors.New("b: gone"))), 4, "not read: a: gone\nnot read: b: gone\n"},
		{"nothing unread", t.Context(), runError(Incomplete()), 0, ""},
		{"interrupted", ended, runError(fmt.Errorf("wait: %w", context.Canceled)), 1, "Error: interrupted\n"},
		{"canceled by itself", t.Context(), runError(context.Canceled), 1, "Error: context canceled\n"},
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
