package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPages: every command has a page with its description, flags and examples.
func TestPages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "meshctl-multicluster-link.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"meshctl multicluster link", ".SH OPTIONS", ".SH EXAMPLE"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if pages, err := os.ReadDir(dir); err != nil || len(pages) < 80 {
		t.Errorf("%d pages, %v", len(pages), err)
	}
}
