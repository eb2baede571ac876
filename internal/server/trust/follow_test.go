package trust

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/meshctl/meshctl/test/harness"
)

// TestFileWithoutDescriptors: a file that could not be read for lack of descriptors is
// read again although it does not change.
func TestFileWithoutDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bundle.json")
	if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	var r fileReader
	feed := harness.Starve(t)
	if _, _, err := r.read(path); err == nil {
		t.Fatal("a file is read without a descriptor")
	}
	feed()
	if data, changed, err := r.read(path); !changed || err != nil || string(data) != "text" {
		t.Errorf("read %q, changed %v, %v", data, changed, err)
	}
	if _, changed, _ := r.read(path); changed {
		t.Error("a file that was read is read again")
	}
}
