package arch

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// maxTracked bounds the size of tracked files. Larger ones are binaries or generated.
const maxTracked = 1 << 20

// TestTrackedFiles: no tracked file is over 1 MB or an executable other than a script.
func TestTrackedFiles(t *testing.T) {
	if _, err := os.Stat(filepath.Join(root, ".git")); err != nil {
		t.Skip("not a git checkout, so there are no tracked files to check")
	}
	cmd := exec.Command("git", "ls-files", "--stage", "-z")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
	if len(files) == 0 {
		t.Fatal("git tracks no files")
	}
	for _, line := range files {
		stage, name, _ := strings.Cut(line, "\t")
		text, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // removed from the work tree, not yet from the index
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > maxTracked {
			t.Errorf("%s has %d bytes: git tracks files up to %d", name, len(text), maxTracked)
		}
		if strings.HasPrefix(stage, "100755") && !bytes.HasPrefix(text, []byte("#!")) {
			t.Errorf("%s is executable and not a script", name)
		}
	}
}
