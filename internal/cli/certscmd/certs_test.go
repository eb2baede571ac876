package certscmd

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/cli"
)

// TestPatiently: long work prints its message, short work prints nothing.
func TestPatiently(t *testing.T) {
	failed := errors.New("failed")
	r, w := io.Pipe()
	err := patiently(&cli.Env{Stderr: w}, "making a key", func() error {
		line, err := bufio.NewReader(r).ReadString('\n')
		if line != "making a key\n" {
			t.Errorf("told %q, %v", line, err)
		}
		return failed
	})
	if !errors.Is(err, failed) {
		t.Errorf("error is %v", err)
	}
	var quiet strings.Builder
	if err := patiently(&cli.Env{Stderr: &quiet}, "making a key", func() error { return nil }); err != nil || quiet.Len() > 0 {
		t.Errorf("told %q, %v", quiet.String(), err)
	}
}
