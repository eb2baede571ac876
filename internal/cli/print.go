package cli

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
)

// OrDash returns the text of a table cell, "-" for an empty one.
func OrDash(s string) string { return cmp.Or(s, "-") }

// Named returns "cluster a" or "clusters a, b", and "no cluster" without a name.
func Named(noun string, names []string) string {
	switch len(names) {
	case 0:
		return "no " + noun
	case 1:
		return noun + " " + names[0]
	}
	return noun + "s " + strings.Join(names, ", ")
}

// NotLookedAt names the clusters of the mesh that were not read, for the end of the line about no
// findings; "" for none.
func NotLookedAt(clusters []mesh.ClusterID) string {
	if len(clusters) == 0 {
		return ""
	}
	names := make([]string, len(clusters))
	for i, id := range clusters {
		names[i] = string(id)
	}
	return "; not looked at: " + Named("cluster", names) + " (--all-clusters)"
}

// DescribeRoot returns one line about a root certificate.
func DescribeRoot(c *x509.Certificate) string {
	return fmt.Sprintf("%q until %s, SHA-256 %s", c.Subject, c.NotAfter.UTC().Format(time.RFC3339), certs.Fingerprint(c))
}

// Notef prints one line to Stderr.
func (e *Env) Notef(format string, args ...any) {
	fmt.Fprintln(e.Stderr, output.Escape(fmt.Sprintf(format, args...)))
}

// Warnf prints one line to Stderr that begins with "Warning: ".
func (e *Env) Warnf(format string, args ...any) { e.Notef("Warning: "+format, args...) }

// WarnSecret warns when the output, which holds a secret, goes to a terminal.
func (e *Env) WarnSecret(secret string) {
	if e.TerminalSize() != nil {
		e.Warnf("the output holds %s: redirect it to a file or to another program", secret)
	}
}

// TerminalSize returns a function for the size of the terminal on Stdout, nil without a
// terminal. The size is 0 if it is unknown.
func (e *Env) TerminalSize() func() (width, height int) {
	f, ok := e.Stdout.(*os.File)
	if !ok || !isTerminal(f) {
		return nil
	}
	return func() (int, int) {
		width, height, err := term.GetSize(int(f.Fd()))
		if err != nil {
			return 0, 0
		}
		return width, height
	}
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Hints prints each line once to Stderr.
func (e *Env) Hints(lines []string) {
	slices.Sort(lines)
	for _, line := range slices.Compact(lines) {
		e.Notef("%s", line)
	}
}

// Wrote prints the paths of written files to Stdout.
func (e *Env) Wrote(paths ...string) {
	for _, path := range paths {
		fmt.Fprintln(e.Stdout, "wrote", path)
	}
}

// WriteOut writes data to Stdout.
func (e *Env) WriteOut(data []byte) error {
	if _, err := e.Stdout.Write(data); err != nil {
		return fmt.Errorf("write to standard output: %w", err)
	}
	return nil
}
