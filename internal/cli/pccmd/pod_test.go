package pccmd

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/cobra"
)

// TestNotInPod: a file or an address in place of a workload is an error that names the flag for it.
func TestNotInPod(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "dump.json")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := &cobra.Command{}
	cmd.Flags().String("file", "", "")
	cmd.Flags().String("admin", "", "")
	for arg, want := range map[string]string{
		file:              file + " is a file: want --file " + file,
		"127.0.0.1:15000": "127.0.0.1:15000 is an address: want --admin 127.0.0.1:15000",
		"[::1]:15000":     "[::1]:15000 is an address: want --admin [::1]:15000",
		"web-1":           "", "web-1.apps": "", "deploy/web": "", filepath.Dir(file): "", file + ".gone": "",
	} {
		got := ""
		if err := notInPod(cmd, []string{arg}); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", arg, got, want)
		}
	}
	if err := notInPod(&cobra.Command{}, []string{file}); err != nil {
		t.Errorf("a command without --file: %v", err)
	}
}
