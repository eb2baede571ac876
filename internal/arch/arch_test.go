// Package arch holds the code to docs/architecture.md.
package arch

import (
	"bytes"
	"cmp"
	"errors"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "github.com/meshctl/meshctl/"
)

// layer is a layer of packages, such as 2, and a part of it, such as 2.1, which is above 2 and below 3.
type layer struct{ number, part int }

func (l layer) compare(other layer) int {
	return cmp.Or(cmp.Compare(l.number, other.number), cmp.Compare(l.part, other.part))
}

// rules are the tables of docs/architecture.md.
type rules struct {
	layer   map[string]layer    // package → layer
	imports map[string][]string // import → packages that may have it
}

func readRules(t *testing.T) rules {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	r := rules{layer: map[string]layer{}, imports: map[string][]string{}}
	row := regexp.MustCompile("^\\| `([^`]+)` \\| ([0-9]+)(?:\\.([0-9]+))? \\|")
	rule := regexp.MustCompile("^\\| `([^`]+)` \\| (.*) \\|$")
	quoted := regexp.MustCompile("`[^`]+`")
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if m := row.FindStringSubmatch(line); m != nil {
			if _, twice := r.layer[m[1]]; twice {
				t.Errorf("docs/architecture.md has two rows for %s", m[1])
			}
			number, _ := strconv.Atoi(m[2])
			part, _ := strconv.Atoi(m[3])
			r.layer[m[1]] = layer{number, part}
		} else if m := rule.FindStringSubmatch(line); m != nil {
			packages := []string{}
			for _, q := range quoted.FindAllString(m[2], -1) {
				packages = append(packages, strings.Trim(q, "`"))
			}
			r.imports[m[1]] = packages
		}
	}
	if len(r.layer) == 0 || len(r.imports) == 0 {
		t.Fatal("docs/architecture.md has no table of packages or no table of import rules")
	}
	return r
}

// packages returns the packages of the module by path, without test/ and hidden folders.
func packages(t *testing.T) map[string]*build.Package {
	t.Helper()
	found := map[string]*build.Package{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		name := entry.Name()
		if path != root && (name == "testdata" || name == "test" || name == "tools" || strings.HasPrefix(name, ".")) {
			return fs.SkipDir
		}
		pkg, err := build.ImportDir(path, 0)
		if none := (&build.NoGoError{}); errors.As(err, &none) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(pkg.GoFiles) == 0 {
			return nil // tests alone
		}
		rel, err := filepath.Rel(root, path)
		found[filepath.ToSlash(rel)] = pkg
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestLayers: every package has a row in docs/architecture.md, and imports only packages
// of lower layers.
func TestLayers(t *testing.T) {
	t.Parallel()
	r := readRules(t)
	found := packages(t)
	for _, pkg := range slices.Sorted(maps.Keys(r.layer)) {
		if found[pkg] == nil {
			t.Errorf("docs/architecture.md has a row for %s, which does not exist", pkg)
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(found)) {
		is, known := r.layer[pkg]
		if !known {
			t.Errorf("docs/architecture.md has no row for %s: add one with a layer and a job", pkg)
			continue
		}
		for path, places := range found[pkg].ImportPos {
			to, ours := strings.CutPrefix(path, module)
			if toLayer, known := r.layer[to]; ours && known && toLayer.compare(is) >= 0 {
				t.Errorf("%v: %s (layer %v) imports %s (layer %v), want a lower layer", places[0], pkg, is, to, toLayer)
			}
		}
	}
}

// TestImportRules: only the packages of the table import the modules of the table.
func TestImportRules(t *testing.T) {
	t.Parallel()
	r := readRules(t)
	for pkg, built := range packages(t) {
		for path, places := range built.ImportPos {
			rule := "" // the longest that matches
			for module := range r.imports {
				if (path == module || strings.HasPrefix(path, module+"/")) && len(module) > len(rule) {
					rule = module
				}
			}
			may := func(allowed string) bool {
				parent, below := strings.CutSuffix(allowed, "/...")
				return pkg == parent || below && strings.HasPrefix(pkg, parent+"/")
			}
			if allowed := r.imports[rule]; rule != "" && !slices.ContainsFunc(allowed, may) {
				t.Errorf("%v: %s imports %s, which only %q may import", places[0], pkg, path, allowed)
			}
		}
	}
}

// TestLinked: the program links all of the Envoy API. It does not link large indirect
// dependencies: the kinds and clients of all of Kubernetes, and packages for tests.
func TestLinked(t *testing.T) {
	t.Parallel()
	linked := goList(t, "-deps", "./cmd/meshctl")
	fat := regexp.MustCompile(`(?m)^(k8s\.io/client-go/(kubernetes|informers|listers|applyconfigurations|discovery|testing|gentype|` +
		`tools/leaderelection)|k8s\.io/kube-openapi/pkg/validation|github\.com/google/gnostic-models|testing$).*`)
	for _, path := range fat.FindAllString(linked, -1) {
		t.Errorf("cmd/meshctl links %s", path)
	}
	if !strings.Contains(linked, "k8s.io/client-go/rest\n") {
		t.Error("cmd/meshctl does not link client-go: this test looks at the wrong thing")
	}
	for line := range strings.Lines(goList(t, "github.com/envoyproxy/go-control-plane/envoy/...")) {
		if strings.HasSuffix(line, "/v3\n") && !strings.Contains("\n"+linked, "\n"+line) {
			t.Errorf("not linked: import %s in internal/xdswire/protos/protos.go", strings.TrimSpace(line))
		}
	}
}

// goList returns the packages that go list prints, one a line.
func goList(t *testing.T, args ...string) string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestModules: docs/rationale.md has a reason for each direct module.
func TestModules(t *testing.T) {
	t.Parallel()
	inMod := matches(t, "go.mod", `(?m)^\t(\S+) v\S+$`) // lines with a comment are indirect
	reasons := matches(t, "docs/rationale.md", "(?m)^\\| `([^`]+)` \\| .+ \\|$")
	for _, m := range inMod {
		if !slices.Contains(reasons, m) {
			t.Errorf("go.mod requires %s, but docs/rationale.md has no reason for it", m)
		}
	}
	for _, m := range reasons {
		if !slices.Contains(inMod, m) {
			t.Errorf("docs/rationale.md has a reason for %s, which go.mod does not require", m)
		}
	}
}

// TestPagesNameFilesThatExist: the path of a Go file on a page begins below the root, internal or
// internal/server. A word such as <kind> stands for any name.
func TestPagesNameFilesThatExist(t *testing.T) {
	t.Parallel()
	for _, page := range []string{"CONTRIBUTING.md", "docs/architecture.md"} {
		for _, path := range matches(t, page, "`([^` ]+/[^` ]+\\.go)`") {
			pattern := regexp.MustCompile("<[^>]+>").ReplaceAllString(path, "*")
			if !slices.ContainsFunc([]string{"", "internal", "internal/server"}, func(folder string) bool {
				files, err := filepath.Glob(filepath.Join(root, folder, pattern))
				return err == nil && len(files) > 0
			}) {
				t.Errorf("%s: there is no file %s below the root, internal or internal/server", page, path)
			}
		}
	}
}

// matches returns the matches of the group of expr in the file.
func matches(t *testing.T, file, expr string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, m := range regexp.MustCompile(expr).FindAllStringSubmatch(string(text), -1) {
		found = append(found, m[1])
	}
	if len(found) == 0 {
		t.Fatalf("%s has nothing that matches %s", file, expr)
	}
	return found
}

// TestClients: HTTP and TLS clients are made in internal/dial only.
func TestClients(t *testing.T) {
	t.Parallel()
	made := []string{"http.Client", "http.Transport"} // as composite literals
	used := []string{
		"http.DefaultClient", "http.DefaultTransport", "http.Get", "http.Head", "http.Post", "http.PostForm",
		"tls.Client", "tls.Dial", "tls.DialWithDialer", "tls.Dialer",
	}
	inspect(t, func(pkg string, node ast.Node) string {
		if pkg == "internal/dial" {
			return ""
		}
		switch node := node.(type) {
		case *ast.CompositeLit:
			name := selector(node.Type)
			if slices.Contains(made, name) || name == "tls.Config" && hasField(node, "RootCAs", "ServerName", "InsecureSkipVerify") {
				return name + ": clients are made in internal/dial"
			}
		case *ast.SelectorExpr:
			if name := selector(node); slices.Contains(used, name) {
				return name + ": clients are made in internal/dial"
			}
		}
		return ""
	})
}

// TestDefaultServeMux: no server uses http.DefaultServeMux, on which net/http/pprof
// registers profiles.
func TestDefaultServeMux(t *testing.T) {
	t.Parallel()
	used := []string{
		"http.DefaultServeMux", "http.Handle", "http.HandleFunc",
		"http.ListenAndServe", "http.ListenAndServeTLS", "http.Serve", "http.ServeTLS",
	}
	inspect(t, func(_ string, node ast.Node) string {
		switch node := node.(type) {
		case *ast.CompositeLit:
			if selector(node.Type) == "http.Server" && !hasField(node, "Handler") {
				return "http.Server without a Handler serves http.DefaultServeMux"
			}
		case *ast.SelectorExpr:
			if name := selector(node); slices.Contains(used, name) {
				return name + " serves or fills http.DefaultServeMux"
			}
		}
		return ""
	})
}

// inspect reports the faults that find returns for the nodes of all packages.
func inspect(t *testing.T, find func(pkg string, node ast.Node) (fault string)) {
	t.Helper()
	for path, pkg := range packages(t) {
		for _, name := range pkg.GoFiles {
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, filepath.Join(pkg.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(node ast.Node) bool {
				if fault := find(path, node); fault != "" {
					t.Errorf("%v: %s", files.Position(node.Pos()), fault)
				}
				return true
			})
		}
	}
}

// hasField reports whether a composite literal sets one of the fields.
func hasField(lit *ast.CompositeLit, names ...string) bool {
	return slices.ContainsFunc(lit.Elts, func(elt ast.Expr) bool {
		pair, ok := elt.(*ast.KeyValueExpr)
		if !ok {
			return false
		}
		key, ok := pair.Key.(*ast.Ident)
		return ok && slices.Contains(names, key.Name)
	})
}

// selector returns pkg.Name for a selector expression, and nothing for others.
func selector(expr ast.Expr) string {
	if sel, ok := expr.(*ast.SelectorExpr); ok {
		if pkg, ok := sel.X.(*ast.Ident); ok {
			return pkg.Name + "." + sel.Sel.Name
		}
	}
	return ""
}

// maxPackageLines bounds the lines of a package, without its tests: what a reader can oversee.
const maxPackageLines = 6000

func TestSizeOfPackages(t *testing.T) {
	t.Parallel()
	for name, pkg := range packages(t) {
		lines := 0
		for _, file := range pkg.GoFiles {
			text, err := os.ReadFile(filepath.Join(pkg.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			lines += bytes.Count(text, []byte("\n"))
		}
		if lines > maxPackageLines {
			t.Errorf("%s has %d lines, want at most %d: move a part to a package of its own", name, lines, maxPackageLines)
		}
	}
}
