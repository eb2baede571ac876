package xdsgen_test

import (
	"bytes"
	"context"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3" // of EnvoyFilters, as the next ones
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/proxy_protocol/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/connection_limit/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

var update = flag.Bool("update", false, "rewrite golden files and remove those that no case asks for")

// TestGolden generates all resources of each proxy of each case. A case is a folder of
// testdata with a folder for each cluster (the first by name is the local one),
// proxies/<name>.json with xDS nodes, and golden/<proxy>.<type>.yaml with the resources
// by name.
func TestGolden(t *testing.T) {
	cases, err := filepath.Glob("testdata/*/proxies")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, proxies := range cases {
		dir := filepath.Dir(proxies)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			s := readSnapshot(t, dir)
			wanted := make(map[string]bool)
			nodes, err := filepath.Glob(filepath.Join(proxies, "*.json"))
			if err != nil {
				t.Fatal(err)
			}
			for _, file := range nodes {
				proxy := strings.TrimSuffix(filepath.Base(file), ".json")
				for typ, resources := range generate(t, s, readNode(t, file)) {
					if typ == xdswire.ProxyConfigType {
						continue // these meshes have no roots
					}
					golden := filepath.Join(dir, "golden", proxy+"."+strings.ToLower(xdswire.ShortType(typ))+".yaml")
					wanted[golden] = true
					compareGolden(t, golden, render(t, resources))
				}
			}
			removeStrays(t, filepath.Join(dir, "golden"), wanted)
		})
	}
}

func compareGolden(t *testing.T, golden string, got []byte) {
	t.Helper()
	if *update {
		if err := os.MkdirAll(filepath.Dir(golden), 0o755); err != nil {
			t.Fatal(err)
		}
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

func removeStrays(t *testing.T, dir string, wanted map[string]bool) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if wanted[f] {
			continue
		}
		if !*update {
			t.Errorf("%s belongs to no case", f)
		} else if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
}

// generate returns all resources of one proxy by type URL.
func generate(t testing.TB, s *snapshot.Snapshot, n proxy.Node) map[string][]*xdswire.Resource {
	t.Helper()
	out := make(map[string][]*xdswire.Resource)
	var enc xdswire.Encoder
	for typ, views := range xdsgen.Assign(s, n) {
		if views == (units.Views{}) {
			continue
		}
		out[typ] = nil
		for _, v := range views.List() {
			if v == nil {
				continue
			}
			first := len(out[typ])
			for key, u := range units.Units(v, s) {
				rs, err := u.Generate(&enc)
				if err != nil {
					t.Fatalf("%v of %s: %v", key, typ, err)
				}
				out[typ] = append(out[typ], rs...)
			}
			if j, ok := v.(units.Joined); ok {
				pieces := slices.Clone(out[typ][first:])
				slices.SortFunc(pieces, func(a, b *xdswire.Resource) int { return strings.Compare(a.Name, b.Name) })
				out[typ] = append(out[typ][:first], j.Join(&enc, xdswire.NewList(pieces...)))
			}
		}
		slices.SortFunc(out[typ], func(a, b *xdswire.Resource) int { return strings.Compare(a.Name, b.Name) })
		for i := 1; i < len(out[typ]); i++ {
			if out[typ][i].Name == out[typ][i-1].Name {
				t.Errorf("%s %s is generated twice", xdswire.ShortType(typ), out[typ][i].Name)
			}
		}
	}
	return out
}

// render prints resources as YAML, sorted by name, independent of protobuf's JSON
// printer, whose output varies on purpose.
func render(t testing.TB, resources []*xdswire.Resource) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, m := range checkRules(t, resources) {
		j, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		y, err := yaml.JSONToYAML(j)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("---\n")
		out.Write(y)
	}
	return out.Bytes()
}

// checkRules decodes resources and checks the rules of Envoy's API.
func checkRules(t testing.TB, resources []*xdswire.Resource) (out []proto.Message) {
	t.Helper()
	for _, r := range resources {
		a, err := r.Any()
		if err != nil {
			t.Fatal(err)
		}
		m, err := anypb.UnmarshalNew(a, proto.UnmarshalOptions{Resolver: resolver(t)})
		if err != nil {
			t.Fatal(err)
		}
		// The agent has the parts of a bootstrap that its patches may lack.
		if v, ok := m.(interface{ ValidateAll() error }); ok && a.GetTypeUrl() != xdswire.BootstrapType {
			if err := v.ValidateAll(); err != nil {
				t.Errorf("%s breaks Envoy's rules: %v", r.Name, err)
			}
		}
		out = append(out, m)
	}
	return out
}

func readNode(t testing.TB, file string) proxy.Node {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var n corev3.Node
	if err := protojson.Unmarshal(data, &n); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	node, err := proxy.ParseNode(&n, 1<<20)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return node
}

// readSnapshot reads the clusters of a case like the control plane.
func readSnapshot(t testing.TB, dir string) *snapshot.Snapshot {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var clusters []mesh.ClusterID
	var events []snapshot.Event
	for _, e := range entries {
		if !e.IsDir() || e.Name() == "proxies" || e.Name() == "golden" {
			continue
		}
		clusters = append(clusters, mesh.ClusterID(e.Name()))
		files, err := filepath.Glob(filepath.Join(dir, e.Name(), "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			events = append(events, readObjects(t, mesh.ClusterID(e.Name()), f)...)
		}
	}
	return build(t, clusters, events)
}

func build(t testing.TB, clusters []mesh.ClusterID, events []snapshot.Event) *snapshot.Snapshot {
	t.Helper()
	r := registry.New(registry.Config{
		Local: clusters[0], Clusters: clusters, SystemNamespace: mesh.DefaultSystemNamespace,
		Publish: func(*snapshot.Snapshot, *snapshot.Changes) {},
		Log:     slog.New(slog.NewTextHandler(t.Output(), nil)), Now: time.Now,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.Apply(events)
	for _, c := range clusters {
		r.Synced(c)
	}
	<-r.Ready()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return r.Current()
}

func readObjects(t testing.TB, cluster mesh.ClusterID, file string) []snapshot.Event {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return decodeObjects(t, cluster, file, data)
}

func decodeObjects(t testing.TB, cluster mesh.ClusterID, file string, data []byte) []snapshot.Event {
	t.Helper()
	conv := source.Converter{Cluster: cluster, SocketDir: "/run"}
	var out []snapshot.Event
	for chunk := range yamldoc.Split(data) {
		v, err := yamldoc.Parse(chunk)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		r, err := conv.Decode(v, snapshot.Place{File: file, Line: chunk.Line})
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if r.Object != nil {
			out = append(out, snapshot.Event{Key: r.Key, Object: r.Object})
		}
	}
	return out
}
