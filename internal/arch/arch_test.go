// Package arch holds the code to docs/architecture.md.
package arch

import (
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

// rules is what the tables of docs/architecture.md say.
type rules struct {
	layer  map[string]int      // room → layer
	fences map[string][]string // import → rooms that may have it
}

func readRules(t *testing.T) rules {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	r := rules{layer: map[string]int{}, fences: map[string][]string{}}
	room := regexp.MustCompile("^\\| ([0-9]) \\| `([^`]+)` \\|")
	fence := regexp.MustCompile("^\\| `([^`]+)` \\| (.*) \\|$")
	quoted := regexp.MustCompile("`[^`]+`")
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if m := room.FindStringSubmatch(line); m != nil {
			r.layer[m[2]], _ = strconv.Atoi(m[1])
		} else if m := fence.FindStringSubmatch(line); m != nil {
			rooms := []string{}
			for _, q := range quoted.FindAllString(m[2], -1) {
				rooms = append(rooms, strings.Trim(q, "`"))
			}
			r.fences[m[1]] = rooms
		}
	}
	if len(r.layer) == 0 || len(r.fences) == 0 {
		t.Fatal("docs/architecture.md has no table of rooms or of fences")
	}
	return r
}

// packages returns the packages of the module by path, those below test/ and
// hidden folders left out.
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

func TestRooms(t *testing.T) {
	t.Parallel()
	r := readRules(t)
	found := packages(t)
	for _, room := range slices.Sorted(maps.Keys(r.layer)) {
		if found[room] == nil {
			t.Errorf("docs/architecture.md has the room %s, which is not there", room)
		}
	}
	for _, room := range slices.Sorted(maps.Keys(found)) {
		layer, known := r.layer[room]
		if !known {
			t.Errorf("%s is no room of docs/architecture.md: give it a layer and a job", room)
			continue
		}
		for path, places := range found[room].ImportPos {
			to, ours := strings.CutPrefix(path, module)
			toLayer, known := r.layer[to]
			switch {
			case !ours:
			case !known:
				t.Errorf("%v: %s imports %s, which is no room of docs/architecture.md", places[0], room, to)
			case toLayer >= layer:
				t.Errorf("%v: %s (layer %d) imports %s (layer %d): imports go down only", places[0], room, layer, to, toLayer)
			}
		}
	}
}

func TestFences(t *testing.T) {
	t.Parallel()
	r := readRules(t)
	for room, pkg := range packages(t) {
		for path, places := range pkg.ImportPos {
			for fenced, rooms := range r.fences {
				if (path == fenced || strings.HasPrefix(path, fenced+"/")) && !slices.Contains(rooms, room) {
					t.Errorf("%v: %s imports %s, which is for %q alone", places[0], room, path, rooms)
				}
			}
		}
	}
}

// TestLinked keeps out of the program what nobody imports but others would
// bring along: kinds and clients of all of Kubernetes, and what only tests need.
func TestLinked(t *testing.T) {
	t.Parallel()
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/meshctl")
	list.Dir = root
	linked, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	fat := regexp.MustCompile(`(?m)^(k8s\.io/client-go/(kubernetes|informers|listers|applyconfigurations|discovery|testing|gentype|` +
		`tools/leaderelection)|k8s\.io/kube-openapi/pkg/validation|github\.com/google/gnostic-models|testing$).*`)
	for _, path := range fat.FindAllString(string(linked), -1) {
		t.Errorf("cmd/meshctl links %s", path)
	}
	if !strings.Contains(string(linked), "k8s.io/client-go/rest\n") {
		t.Error("cmd/meshctl does not link client-go: this test looks at the wrong thing")
	}
}

// TestModules wants a reason in docs/rationale.md for each direct module.
func TestModules(t *testing.T) {
	t.Parallel()
	inMod := matches(t, "go.mod", `(?m)^\t(\S+) v\S+$`) // lines with a comment are indirect
	reasons := matches(t, "docs/rationale.md", "(?m)^\\| `([^`]+)` \\| .+ \\|$")
	for _, m := range inMod {
		if !slices.Contains(reasons, m) {
			t.Errorf("go.mod requires %s, but docs/rationale.md does not say why", m)
		}
	}
	for _, m := range reasons {
		if !slices.Contains(inMod, m) {
			t.Errorf("docs/rationale.md has a reason for %s, which go.mod does not require", m)
		}
	}
}

// matches returns what the group of expr matches in the file.
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
