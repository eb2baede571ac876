package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestPrivateKeys: one file encodes private keys. All other code uses crypto.Signer, so that
// keys can be kept elsewhere.
func TestPrivateKeys(t *testing.T) {
	t.Parallel()
	const home = "internal/certs/key.go"
	encoding := regexp.MustCompile(`x509\.(Parse|Marshal)\w*PrivateKey\b`)
	found := map[string]bool{}
	for _, top := range []string{"cmd", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if encoding.Match(text) {
				rel, err := filepath.Rel(root, path)
				found[filepath.ToSlash(rel)] = true
				return err
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if !found[home] {
		t.Errorf("%s reads no private keys any more: name the file that does", home)
	}
	delete(found, home)
	for file := range found {
		t.Errorf("%s knows how private keys are written: let it have a crypto.Signer from %s", file, home)
	}
}
