package demo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLogsThatCannotBeKept names the variable that helps, and leaves nothing behind.
func TestLogsThatCannotBeKept(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, logs := range []string{"/proc/nobody/.local/state/meshctl/demo/logs", filepath.Join(file, "logs")} {
		m := &Mesh{opts: Options{Logs: logs}}
		if err := m.makeDirs(); err == nil || !strings.HasSuffix(err.Error(), "; name another place with XDG_STATE_HOME, or give --keep DIR") {
			t.Errorf("%s: %v", logs, err)
		}
	}
	if left, err := filepath.Glob(filepath.Join(temporary, "*")); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
