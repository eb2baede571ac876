package sds

import (
	"os"
	"path/filepath"
	"testing"
)

// TestFileSecret: a secret of files differs until all of them are there, so that it is sent
// again.
func TestFileSecret(t *testing.T) {
	dir := t.TempDir()
	chain, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	name := "file-cert:" + chain + "~" + key
	sub := &subscription{names: map[string]string{name: ""}, order: []string{name}}
	for step, file := range []string{"", chain, key} {
		if file != "" {
			if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		due, lacks := len(sub.due(nil)), sub.lacksFile()
		if wantDue, wantLacks := step != 1, step < 2; due > 0 != wantDue || lacks != wantLacks {
			t.Errorf("step %d: %d secrets are due, files are missing: %v", step, due, lacks)
		}
	}
	if due := sub.due(nil); len(due) > 0 {
		t.Error("an unchanged secret is sent again")
	}
}
