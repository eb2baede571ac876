package verify

import (
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDocs compares the codes and severities with the table in docs/certs.md.
func TestDocs(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("codes.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../../docs/certs.md")
	if err != nil {
		t.Fatal(err)
	}
	inCode, inDocs := map[string]string{}, map[string]string{}
	for _, m := range regexp.MustCompile(`Code = "([a-z-]+)"`).FindAllSubmatch(source, -1) {
		inCode[string(m[1])] = string(kinds()[Code(m[1])].severity)
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| (error|warning) \\|").FindAllSubmatch(page, -1) {
		inDocs[string(m[1])] = string(m[2])
	}
	if len(inCode) < 40 {
		t.Fatalf("found %d codes", len(inCode))
	}
	if diff := cmp.Diff(inCode, inDocs); diff != "" {
		t.Errorf("codes (-) and docs (+) differ: %s", diff)
	}
}
