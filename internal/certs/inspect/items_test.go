package inspect

import (
	"bytes"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/output"
)

var update = flag.Bool("update", false, "rewrite golden files")

// material has a CA that openssl made, a revocation list, a request and tokens.
func material(t *testing.T) *Contents {
	t.Helper()
	m, err := (&Loader{}).Load(t.Context(), []string{"../verify/testdata/openssl/good", "testdata/others.pem"})
	if err != nil {
		t.Fatal(err)
	}
	m.Tokens = []Token{
		{Place: "remote.yaml: Secret a/b, c2, user c2", Name: "system:serviceaccount:istio-system:reader", Expires: now.Add(36 * time.Hour)},
		{Place: "remote.yaml: Secret a/b, c2, user c2", Name: "legacy\nuser \"x\""},
		{Place: "remote.yaml: Secret a/b, c3, user c3", Name: "c3", Fault: "not a JWT in compact form"},
	}
	m.Sets = append(m.Sets, verify.Set{Place: "gone.yaml", Files: []verify.File{{Place: "gone.yaml", Unreadable: "permission denied"}}})
	return m
}

// now is later than the creation of the files in testdata.
var now = time.Date(2026, 12, 24, 18, 0, 0, 0, time.UTC)

func golden(t *testing.T, name string, write func(io.Writer) error) string {
	t.Helper()
	var got bytes.Buffer
	if err := write(&got); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, got.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("%s: %s", name, diff)
	}
	return got.String()
}

func TestInspectGolden(t *testing.T) {
	t.Parallel()
	entries := List(material(t), nil, now)
	golden(t, "inspect.table", ItemTable(entries, false).Write)
	golden(t, "inspect.wide", ItemTable(entries, true).Write)
	golden(t, "inspect.json", func(w io.Writer) error { return output.Write(w, output.FormatJSON, entries) })
	text := golden(t, "inspect.text", func(w io.Writer) error { return WriteText(w, entries) })
	if strings.Contains(text, "PRIVATE KEY") {
		t.Error("a private key is shown")
	}
}

func TestExpiryGolden(t *testing.T) {
	t.Parallel()
	endings := Expiry(material(t), 30*24*time.Hour, now)
	if got := Failed(endings); got != 5 {
		t.Errorf("%d failed, want 5", got)
	}
	golden(t, "expiry.table", EndingTable(endings).Write)
	golden(t, "expiry.json", func(w io.Writer) error { return output.Write(w, output.FormatJSON, endings) })
	junit := golden(t, "expiry.junit", func(w io.Writer) error { return WriteJUnit(w, endings) })
	if n := strings.Count(junit, "<failure "); n != 5 {
		t.Errorf("%d failures in the JUnit report", n)
	}
	metrics := golden(t, "expiry.openmetrics", func(w io.Writer) error { return WriteOpenMetrics(w, endings) })
	checkOpenMetrics(t, metrics)
}

// checkOpenMetrics checks the parts of the format that WriteOpenMetrics uses.
func checkOpenMetrics(t *testing.T, text string) {
	t.Helper()
	lines := strings.Split(text, "\n")
	if len(lines) < 2 || lines[len(lines)-2] != "# EOF" || lines[len(lines)-1] != "" {
		t.Fatalf("the text does not end in # EOF:\n%s", text)
	}
	family, seen := "", map[string]bool{}
	for _, line := range lines[:len(lines)-2] {
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			family, _, _ = strings.Cut(rest, " ")
			continue
		}
		if strings.HasPrefix(line, "# ") {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		series, value := line[:i], line[i+1:]
		if !strings.HasPrefix(series, family) || seen[series] {
			t.Errorf("line %q is outside its family or there twice", line)
		}
		seen[series] = true
		if _, err := strconv.ParseFloat(value, 64); err != nil {
			t.Errorf("line %q: %v", line, err)
		}
	}
}

func TestState(t *testing.T) {
	t.Parallel()
	const within = time.Hour
	for _, tc := range []struct {
		left time.Duration
		want string
		days int
	}{
		{-time.Second, StateExpired, -1},
		{0, StateDue, 0},
		{within - 1, StateDue, 0},
		{within, StateOK, 0},
		{25 * time.Hour, StateOK, 1},
		{-25 * time.Hour, StateExpired, -2},
	} {
		var item Item
		item.until(now.Add(tc.left), now)
		state := stateOf(item, within, now)
		if state != tc.want || *item.DaysLeft != tc.days {
			t.Errorf("%v left: %s, %d days, want %s, %d", tc.left, state, *item.DaysLeft, tc.want, tc.days)
		}
	}
	if got := stateOf(Item{Kind: KindToken}, within, now); got != StateOK {
		t.Errorf("without an end: got %s", got)
	}
}

func TestChain(t *testing.T) {
	t.Parallel()
	m, err := (&Loader{}).Load(t.Context(), []string{"../verify/testdata/openssl/good/cert-chain.pem"})
	if err != nil {
		t.Fatal(err)
	}
	m.Sets[0].Place = "127.0.0.1:15012" // as if a server showed it
	for file, want := range map[string]string{"good": "ok", "sha1": "unknown authority"} {
		data, err := os.ReadFile("../verify/testdata/openssl/" + file + "/root-cert.pem")
		if err != nil {
			t.Fatal(err)
		}
		roots, err := certs.ParseCerts(data)
		if err != nil {
			t.Fatal(err)
		}
		entries := List(m, roots, now)
		if !strings.Contains(entries[0].Chain, want) || entries[1].Chain != "" {
			t.Errorf("roots of %s: %q and %q, want %q and nothing", file, entries[0].Chain, entries[1].Chain, want)
		}
	}
}
