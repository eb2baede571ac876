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
	for _, prefix := range []string{"file-cert:", "file-root:"} {
		testFileSecret(t, prefix, filepath.Join(dir, prefix+"1"), filepath.Join(dir, prefix+"2"))
	}
}

// testFileSecret checks the secret of two files.
func testFileSecret(t *testing.T, prefix, first, second string) {
	t.Helper()
	name := prefix + first + "~" + second
	sub := &subscription{names: map[string]string{name: ""}, order: []string{name}}
	for step, file := range []string{"", first, second} {
		if file != "" {
			if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		due, lacks := len(sub.due(nil)), sub.lacksFile()
		if wantDue, wantLacks := step != 1, step < 2; due > 0 != wantDue || lacks != wantLacks {
			t.Errorf("%s, step %d: %d secrets are due, files are missing: %v", prefix, step, due, lacks)
		}
	}
	if due := sub.due(nil); len(due) > 0 {
		t.Errorf("%s: an unchanged secret is sent again", prefix)
	}
}
