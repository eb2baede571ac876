package render_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/structpb"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/server/render"
	"github.com/meshctl/meshctl/internal/server/render/corpus"
	_ "github.com/meshctl/meshctl/internal/xdswire/protos" // of EnvoyFilters
)

var update = flag.Bool("update", false, "rewrite golden files and remove those that no case asks for")

// TestCorpus renders each case of the corpus and compares what it shows with the golden
// file beside it. The package corpus describes the form of a case.
func TestCorpus(t *testing.T) {
	cases, err := corpus.Cases("testdata")
	if err != nil {
		t.Fatal(err)
	}
	wanted := map[string]bool{}
	for _, c := range cases {
		golden := strings.TrimSuffix(c.File, ".in.yaml") + ".out.yaml"
		wanted[golden] = true
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			compareGolden(t, golden, rendered(t, c))
		})
	}
	goldens, err := filepath.Glob("testdata/*/*.out.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range goldens {
		if wanted[g] {
			continue
		}
		if !*update {
			t.Errorf("%s belongs to no case", g)
		} else if err := os.Remove(g); err != nil {
			t.Fatal(err)
		}
	}
}

func compareGolden(t *testing.T, golden string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatalf("%v (run with -update)", err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s differs (-want +got), run with -update if that is right:\n%s", golden, d)
	}
}

// rendered returns what a case shows, and the warnings.
func rendered(t *testing.T, c *corpus.Case) []byte {
	t.Helper()
	root := t.TempDir()
	clusters, err := c.Write(root)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	m, err := render.Read(t.Context(), render.Config{
		Clusters: clusters, SystemNamespace: "istio-system", SocketDir: "/run", Now: time.Now,
		Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})),
	})
	if err != nil {
		t.Fatal(err)
	}
	proxies := map[string]*render.Proxy{}
	var out bytes.Buffer
	for _, s := range c.Shows {
		if proxies[s.Proxy] == nil {
			node, err := m.Node(s.Proxy, "")
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(c.Shows, func(o corpus.Show) bool { return o.Proxy == s.Proxy && o.Type == "names" }) {
				node.Metadata.Fields["DNS_CAPTURE"] = structpb.NewStringValue("true")
			}
			if proxies[s.Proxy], err = m.Proxy(node); err != nil {
				t.Fatalf("%v\n%s", err, log.String())
			}
		}
		show(t, &out, proxies[s.Proxy], s)
	}
	for line := range strings.Lines(strings.ReplaceAll(log.String(), root+"/", "")) {
		fmt.Fprintf(&out, "# %s", line)
	}
	return out.Bytes()
}

// show prints the resources that a line of a case selects.
func show(t *testing.T, out *bytes.Buffer, p *render.Proxy, s corpus.Show) {
	t.Helper()
	if s.Type == "table" {
		showTable(t, out, p, s)
		return
	}
	r, err := p.Resources()
	if err != nil {
		t.Fatal(err)
	}
	none := true
	for _, resource := range r.Of(s.Type) {
		if ok, err := path.Match(escaped(s.Name), escaped(resource.Name)); err != nil {
			t.Fatal(err)
		} else if !ok {
			continue
		}
		none = false
		text, err := resource.MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var v map[string]any
		if err := json.Unmarshal(text, &v); err != nil {
			t.Fatal(err)
		}
		delete(v, "@type")
		fmt.Fprintf(out, "--- # %s %s %s\n", s.Proxy, s.Type, resource.Name)
		var shown any = v
		if len(s.Paths) > 0 {
			parts := map[string]any{}
			for _, path := range s.Paths {
				found, err := output.Find(path, v)
				if err != nil {
					t.Fatal(err)
				}
				parts[path] = found
				if len(found) == 1 {
					parts[path] = found[0]
				}
			}
			shown = parts
		}
		y, err := yaml.Marshal(shown)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(y)
	}
	if none {
		fmt.Fprintf(out, "--- # %s %s %s: none\n", s.Proxy, s.Type, s.Name)
	}
}

// escaped replaces slashes, which path.Match treats as separators.
func escaped(name string) string { return strings.ReplaceAll(name, "/", "\x00") }

// showTable prints the rows of a table whose first cells match.
func showTable(t *testing.T, out *bytes.Buffer, p *render.Proxy, s corpus.Show) {
	t.Helper()
	dump, err := p.ConfigDump()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(dump)
	if err != nil {
		t.Fatal(err)
	}
	overview, err := proxyconfig.ReadOverview(bytes.NewReader(text), proxyconfig.OverviewFilter{})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(out, "--- # %s table %s\n", s.Proxy, s.Name)
	for _, part := range overview.Parts(true, time.Now()) {
		rows := part.Table.Rows[:0]
		for _, row := range part.Table.Rows {
			if ok, err := path.Match(escaped(s.Name), escaped(row[0])); err != nil {
				t.Fatal(err)
			} else if ok {
				rows = append(rows, row)
			}
		}
		if part.Table.Rows = rows; len(rows) == 0 {
			continue
		}
		var table bytes.Buffer
		if err := part.Table.Write(&table); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(table.String()) {
			fmt.Fprintln(out, strings.TrimRight("# "+line, " \n"))
		}
	}
}
