package analyze_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/analyze/codes"
)

// TestIstioCodes: each code of istioctl analyze, now or in earlier versions, which
// testdata/istio_codes.txt lists, is reported
// with Istio's name, or docs/analyze.md says that it is not.
func TestIstioCodes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/istio_codes.txt")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for line := range strings.Lines(string(text)) {
		code, name, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			t.Fatalf("line %q has no name", line)
		}
		names[code] = name
	}
	left := leftOut(t)
	for code, name := range names {
		kind := codes.KindOf(codes.Code(code))
		switch reported, listed := kind.Code != "", slices.Contains(left, code); {
		case reported == listed:
			t.Errorf("%s %s: reported: %v, in the table of codes that are not reported: %v", code, name, reported, listed)
		case reported && kind.Name != name:
			t.Errorf("%s is %s, want %s", code, kind.Name, name)
		}
	}
	for _, k := range codes.Kinds() {
		if strings.HasPrefix(string(k.Code), "IST") && names[string(k.Code)] == "" {
			t.Errorf("%s is no code of Istio", k.Code)
		}
	}
}

// leftOut returns the codes in the first column of the table in docs/analyze.md.
func leftOut(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| codes | why |\n")
	table, _, _ = strings.Cut(table, "\n- ")
	var out []string
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		if len(cells) < 4 {
			t.Fatalf("row %q", row)
		}
		for _, m := range regexp.MustCompile(`IST(\d{4})(?: to IST(\d{4}))?`).FindAllStringSubmatch(cells[1], -1) {
			first, _ := strconv.Atoi(m[1])
			last, _ := strconv.Atoi(m[2])
			for n := first; n <= max(first, last); n++ {
				out = append(out, fmt.Sprintf("IST%04d", n))
			}
		}
	}
	return out
}
