// Package docs runs the commands of the pages as readers type them: each page in one
// shell, from an empty directory, with a real Envoy and real Kubernetes APIs.
package docs

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/test/envoy"
	"github.com/meshctl/meshctl/test/harness"
	"github.com/meshctl/meshctl/test/kube"
)

const repository = "../.."

// insideVar is set in the test process that has a network of its own.
const insideVar = "MESHCTL_TEST_DOCS_TOOLS"

// notRunFile lists the blocks that do not run, with the reasons.
const notRunFile = "testdata/not-run.txt"

var (
	tools  string // the directory with the programs that pages use
	update = flag.Bool("update", false, "write "+notRunFile)
)

// TestMain runs the tests in a network namespace of their own, as the pages use the
// ports that meshctl and Envoy have by default.
func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if tools = os.Getenv(insideVar); tools != "" {
		if err := harness.LoopbackUp(); err != nil {
			fmt.Fprintln(os.Stderr, "bring loopback up:", err)
			return 1
		}
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "docs-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	if _, err := harness.Build(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cache, err := exec.Command("go", "env", "GOCACHE").Output() // pages use go, at a home of their own
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code, err := harness.InOwnNetwork(insideVar+"="+dir, "GOCACHE="+strings.TrimSpace(string(cache)))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// TestPages runs every page.
func TestPages(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Envoy and Kubernetes")
	}
	link(t, "kubectl", filepath.Join(kube.Bin(t), "kubectl"))
	link(t, "envoy", envoy.Path(t))
	for _, name := range []string{"curl", "jq", "openssl", "python3"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("pages use %s: %v", name, err)
		}
	}
	byWorld := map[string][]*page{}
	for _, p := range pages(t) {
		if slices.ContainsFunc(p.blocks, func(b block) bool { return b.notRun == "" }) {
			byWorld[p.world] = append(byWorld[p.world], p)
		}
	}
	for name, pages := range byWorld {
		t.Run(name, func(t *testing.T) {
			w, ok := worlds[name]
			if !ok {
				t.Fatalf("%s: there is no world %q", pages[0].name, name)
			}
			var from place
			if w.once {
				from = w.start(t)
			}
			for _, p := range pages {
				t.Run(p.name, func(t *testing.T) {
					if !w.once {
						from = w.start(t)
					}
					p.run(t, from)
				})
			}
		})
	}
}

// link puts a program on the PATH of pages.
func link(t *testing.T, name, path string) {
	t.Helper()
	if err := os.Symlink(path, filepath.Join(tools, name)); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
}

// TestDemoPrintsCommandsThatRun runs what meshctl demo prints for another terminal.
func TestDemoPrintsCommandsThatRun(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Envoy")
	}
	link(t, "envoy", envoy.Path(t))
	(&page{name: "meshctl demo", blocks: []block{
		{text: "meshctl demo", inBack: true, until: `grep -q "Answers of each second" $out`},
		{text: `sed -n '/^What to try/,/^Answers of/s/^    //p' $out | sed 's/^tail -f/tail -n 9/' > printed
[ $(wc -l < printed) -ge 10 ]
. ./printed
`},
	}}).run(t, place{})
}

// TestMakeTargetsExist holds the pages to the Makefile, whose targets they do not run.
func TestMakeTargetsExist(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile(filepath.Join(repository, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllStringSubmatch(string(makefile), -1) {
		targets[m[1]] = true
	}
	named := regexp.MustCompile("(?m)(?:^|`|&& )make ([a-z0-9-]+)(?: ([a-z0-9-]+))?")
	for _, name := range pageNames(t) {
		text, err := os.ReadFile(filepath.Join(repository, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			for _, target := range m[1:] {
				if target != "" && !targets[target] {
					t.Errorf("%s: the Makefile has no target %s: %s", name, target, m[0])
				}
			}
		}
	}
}

// TestBlocksThatDoNotRun: testdata/not-run.txt lists the blocks of pages that do not run.
// -update writes it.
func TestBlocksThatDoNotRun(t *testing.T) {
	t.Parallel()
	var list strings.Builder
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			if b.notRun != "" {
				first, _, _ := strings.Cut(b.text, "\n")
				fmt.Fprintf(&list, "%s: %s\n\t%s\n", p.name, b.notRun, first)
			}
		}
	}
	t.Logf("blocks that do not run:\n%s", &list)
	if *update {
		if err := os.WriteFile(notRunFile, []byte(list.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(notRunFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), list.String()); diff != "" {
		t.Errorf("%s (-want +got), rewrite it with -update:\n%s", notRunFile, diff)
	}
}
