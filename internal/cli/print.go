package cli

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/term"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/output"
)

// Plural writes a number with its noun: 1 error, 2 errors.
func Plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

func OrDash(s string) string { return cmp.Or(s, "-") }

func PrintPaths(w io.Writer, paths []string) {
	for _, path := range paths {
		fmt.Fprintln(w, "wrote", path)
	}
}

func PrintData(env *Env, data []byte) error {
	if _, err := env.Stdout.Write(data); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}

// PrintSecret writes data with a private key to standard output, and a warning
// when a person is watching.
func PrintSecret(env *Env, data []byte) error {
	if f, ok := env.Stdout.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		fmt.Fprintln(env.Stderr, "Warning: this holds a private key; send it to a file or a program, not to a terminal")
	}
	return PrintData(env, data)
}

// WarnOnTerminal prints a warning when what is printed is seen by whoever sees
// the terminal.
func WarnOnTerminal(env *Env, text string) {
	if f, ok := env.Stdout.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		fmt.Fprintln(env.Stderr, "warn:", text)
	}
}

func PrintWarnings(env *Env, warnings []string) {
	for _, w := range warnings {
		fmt.Fprintln(env.Stderr, "warn:", w)
	}
}

// PrintHints writes each line once.
func PrintHints(env *Env, lines []string) {
	slices.Sort(lines)
	for _, line := range slices.Compact(lines) {
		fmt.Fprintln(env.Stderr, output.Escape(line))
	}
}

// DescribeRoot is one line: nothing in a subject ends it.
func DescribeRoot(c *x509.Certificate) string {
	return fmt.Sprintf("%q until %s, SHA-256 %s", c.Subject, c.NotAfter.UTC().Format(time.RFC3339), certs.Fingerprint(c))
}
