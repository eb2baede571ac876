package verify

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestOpenSSL checks files that openssl made (testdata/openssl/make.sh).
func TestOpenSSL(t *testing.T) {
	t.Parallel()
	const dir = "testdata/openssl"
	text, err := os.ReadFile(filepath.Join(dir, "clock"))
	if err != nil {
		t.Fatal(err)
	}
	now, err := time.Parse(time.RFC3339, strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for set, want := range map[string][]Code{
		"good":          {},
		"text":          {},
		"traditional":   {},
		"sha1":          {WeakSignature},
		"md5":           {WeakSignature},
		"sha1-root":     {WeakSignature},
		"version1":      {NotACA},
		"trusted":       {TrustedBlock},
		"encrypted":     {EncryptedKey},
		"encrypted-old": {EncryptedKey},
		"dsa":           {WeakKey},
		"secp256k1":     {WeakKey},
	} {
		t.Run(set, func(t *testing.T) {
			t.Parallel()
			entries, err := os.ReadDir(filepath.Join(dir, set))
			if err != nil {
				t.Fatal(err)
			}
			var files []File
			for _, e := range entries {
				data, err := os.ReadFile(filepath.Join(dir, set, e.Name()))
				if err != nil {
					t.Fatal(err)
				}
				files = append(files, NewFile(e.Name(), e.Name(), data))
			}
			got := Check(Arrange(set, files), Options{Now: now, TrustDomain: "cluster.local"})
			if diff := cmp.Diff(want, codes(got)); diff != "" {
				t.Errorf("%s\n%+v", diff, got)
			}
			if set == "sha1-root" && (len(got) != 1 || got[0].Severity != Warning) {
				t.Errorf("the signature of a root counts as more than a warning: %+v", got)
			}
		})
	}
}
