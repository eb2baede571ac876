// Package corpus reads the cases of the corpus for tests. A case is a file
// testdata/<area>/<case>.in.yaml with the objects that show one behavior:
//
//	# A statement about the behavior.
//	# show: PROXY TYPE NAME [PATH]...
//
// Each line with show selects resources of a proxy for the golden file: those of a type
// (as in expectations of meshctl render) whose names match a pattern, whole or the values
// at JSONPaths. The type table selects rows of the tables of meshctl pc all. A proxy with
// the type names has an agent that answers DNS. A line "# cluster: NAME" starts the objects of another cluster than c1.
//
// The objects of testdata/base.yaml are in c1 of every case, except those that the case
// defines itself.
package corpus

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/load"
	"github.com/meshctl/meshctl/internal/server/render"
)

// Case is a case of the corpus.
type Case struct {
	Name  string // area/case
	File  string
	Shows []Show
	// clusters are in the order of the file, and the first is c1.
	clusters []cluster
}

// Show selects resources for the golden file.
type Show struct {
	Proxy, Type, Name string
	Paths             []string
}

type cluster struct {
	name    string
	objects []byte
}

const suffix = ".in.yaml"

// Cases reads all cases below a directory, sorted by name.
func Cases(dir string) ([]*Case, error) {
	base, err := os.ReadFile(filepath.Join(dir, "base.yaml"))
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*", "*"+suffix))
	if err != nil {
		return nil, err
	}
	var out []*Case
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		c := &Case{Name: strings.TrimSuffix(filepath.ToSlash(strings.TrimPrefix(file, dir+string(filepath.Separator))), suffix), File: file}
		if err := c.parse(data, base); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		out = append(out, c)
	}
	return out, nil
}

func (c *Case) parse(data, base []byte) error {
	c.clusters = []cluster{{name: "c1"}}
	stated := false
	for line := range bytes.Lines(data) {
		text := strings.TrimSpace(string(line))
		if show, ok := strings.CutPrefix(text, "# show: "); ok {
			words := strings.Fields(show)
			if len(words) < 3 || words[1] != "table" && !slices.Contains(render.Types(), words[1]) {
				return fmt.Errorf("%q: want a proxy, a type, a name and maybe paths", show)
			}
			c.Shows = append(c.Shows, Show{words[0], words[1], words[2], words[3:]})
			continue
		}
		if name, ok := strings.CutPrefix(text, "# cluster: "); ok {
			c.clusters = append(c.clusters, cluster{name: name})
			continue
		}
		stated = stated || strings.HasPrefix(text, "# ")
		last := &c.clusters[len(c.clusters)-1]
		last.objects = append(last.objects, line...)
	}
	switch {
	case !stated:
		return fmt.Errorf("it has no comment that states the behavior")
	case len(c.Shows) == 0:
		return fmt.Errorf("it shows nothing")
	}
	own := map[string]bool{}
	for _, doc := range documents(c.clusters[0].objects) {
		own[identity(doc)] = true
	}
	for _, doc := range documents(base) {
		if !own[identity(doc)] {
			c.clusters[0].objects = append(append(c.clusters[0].objects, "\n---\n"...), doc...)
		}
	}
	return nil
}

func documents(data []byte) [][]byte { return bytes.Split(data, []byte("\n---\n")) }

// identity returns kind, namespace and name of a document, empty if it has none.
func identity(doc []byte) string {
	var o struct {
		Kind     string
		Metadata struct{ Namespace, Name string }
	}
	if yaml.Unmarshal(doc, &o) != nil {
		return ""
	}
	return o.Kind + " " + o.Metadata.Namespace + "/" + o.Metadata.Name
}

// Write writes the objects into a directory for each cluster, mesh.yaml in each.
func (c *Case) Write(root string) ([]load.Cluster, error) {
	var out []load.Cluster
	for _, cl := range c.clusters {
		dir := filepath.Join(root, cl.name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, "mesh.yaml"), cl.objects, 0o600); err != nil {
			return nil, err
		}
		out = append(out, load.Cluster{ID: mesh.ClusterID(cl.name), Dirs: []string{dir}})
	}
	return out, nil
}
