package analyze_test

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3" // of examples
	_ "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/load"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/dir"
)

var update = flag.Bool("update", false, "rewrite docs/analyze.md")

// TestCodes: the example of each code gives one finding of that code, and the mended example
// gives none.
func TestCodes(t *testing.T) {
	t.Parallel()
	for _, k := range codes.Kinds() {
		t.Run(string(k.Code), func(t *testing.T) {
			t.Parallel()
			example(t, k.Code)
		})
	}
}

// example checks the example of a code. It returns the finding, and the files of both forms.
func example(t *testing.T, code codes.Code) (finding analyze.Report, broken, mended []load.Cluster) {
	t.Helper()
	broken, mended = clusters(t, code, ""), clusters(t, code, ".mended")
	if code == codes.Unreadable { // an example has no room for so many documents
		broken = []load.Cluster{{ID: "east", Files: []load.File{{Name: "large.yaml", Text: bytes.Repeat([]byte("{}\n---\n"), dir.MaxDocuments+1)}}}}
		mended = []load.Cluster{{ID: "east"}}
	}
	options := analyze.Options{Now: time.Now()}
	if code == codes.ClusterNotLinked { // no file has the remote secrets
		broken, mended = twoClusters(t), twoClusters(t)
		options.Links = func(mesh.ClusterID) []mesh.ClusterID { return []mesh.ClusterID{"west"} }
	}
	if code == codes.KeySetNotFetched { // only the control plane fetches them
		options.KeySet = func(_ mesh.ClusterID, source snapshot.KeySource) (string, bool) {
			if source.URL == "https://acounts.example.com/keys" {
				return "lookup acounts.example.com: no such host", false
			}
			return "", false
		}
	}
	if left := checkWith(t, mended, options); len(left) > 0 {
		t.Fatalf("mended, but found %s", texts(left))
	}
	if code == codes.ClusterNotLinked {
		options.Links = func(id mesh.ClusterID) []mesh.ClusterID {
			return map[mesh.ClusterID][]mesh.ClusterID{"east": {}, "west": {"east"}}[id]
		}
	}
	found := checkWith(t, broken, options)
	if len(found) != 1 || found[0].Code != code {
		t.Fatalf("found %s", texts(found))
	}
	return analyze.Reports(found)[0], broken, mended
}

// clusters returns the files of an example: CODE.yaml of the cluster east, and CODE.west.yaml
// of another one.
func clusters(t *testing.T, code codes.Code, form string) []load.Cluster {
	t.Helper()
	var out []load.Cluster
	for _, c := range []struct {
		id    mesh.ClusterID
		infix string
	}{{"east", ""}, {"west", ".west"}} {
		name := string(code) + form + c.infix + ".yaml"
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if errors.Is(err, fs.ErrNotExist) && (c.id == "west" || code == codes.Unreadable || code == codes.ClusterNotLinked) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, load.Cluster{ID: c.id, Files: []load.File{{Name: name, Text: text}}})
	}
	return out
}

// check returns the findings. $CERTIFICATE and $KEY in files stand for a certificate and its
// key, $SHOP for a certificate of the same key for shop.example.com.
func check(t *testing.T, of []load.Cluster) []analyze.Finding {
	t.Helper()
	return checkWith(t, of, analyze.Options{Now: time.Now()})
}

func checkWith(t *testing.T, of []load.Cluster, o analyze.Options) []analyze.Finding {
	t.Helper()
	clusters := slices.Clone(of)
	for i := range clusters {
		clusters[i].Files = slices.Clone(clusters[i].Files)
		for j := range clusters[i].Files {
			f := &clusters[i].Files[j]
			if bytes.Contains(f.Text, []byte("$KEY")) {
				ca := certstest.NewRoot(t)
				key, err := certs.EncodeKey(ca.Key)
				if err != nil {
					t.Fatal(err)
				}
				shop, err := ca.SignNames(ca.Key.Public(), certs.LeafSpec{DNSNames: []string{"shop.example.com"}, TTL: 60 * 24 * time.Hour}, time.Now(), rand.Reader)
				if err != nil {
					t.Fatal(err)
				}
				f.Text = []byte(strings.NewReplacer("$SHOP", strconv.Quote(string(certs.EncodeCerts(shop))), "$CERTIFICATE", strconv.Quote(string(certs.EncodeCerts(ca.Cert))), "$KEY", strconv.Quote(string(key))).Replace(string(f.Text)))
			}
		}
	}
	m, views := meshOf(t, clusters)
	return analyze.Sort(append(analyze.CheckClusters(views, o), analyze.OfFiles(m.Files)...))
}

// meshOf reads clusters, and returns the mesh as each of them sees it.
func meshOf(t *testing.T, clusters []load.Cluster) (*load.Mesh, []*registry.Contents) {
	t.Helper()
	m, err := load.Read(t.Context(), load.Config{Clusters: clusters, Now: time.Now, Analysis: true})
	if err != nil {
		t.Fatal(err)
	}
	views, err := m.Views(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return m, views
}

func texts(findings []analyze.Finding) string {
	var out strings.Builder
	for _, r := range analyze.Reports(findings) {
		fmt.Fprintf(&out, "\n%s %s", r.Reference, r)
	}
	return out.String()
}

const page = "../../../docs/analyze.md"

// TestPage: docs/analyze.md describes each code, with its example.
func TestPage(t *testing.T) {
	t.Parallel()
	var want strings.Builder
	for _, k := range codes.Kinds() {
		fmt.Fprintf(&want, "### %s\n\n%s: `%s`. %s\n\n**Fix.** %s\n\n", k.Code, k.Level, k.Name, k.Cause, k.Fix)
		found, broken, mended := example(t, k.Code)
		if k.Code == codes.Unreadable || k.Code == codes.ClusterNotLinked {
			continue
		}
		fmt.Fprintf(&want, "```text\n%s: %s\n```\n\n", cmp.Or(found.Origin, "the mesh"), found.Text())
		want.WriteString("```diff\n" + changeOf(broken, mended) + "```\n\n")
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- codes -->\n", "<!-- end -->\n"
	head, rest, ok := strings.Cut(string(text), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no lines %q and %q", page, begin, end)
	}
	now := head + begin + "\n" + want.String() + end + tail
	if now == string(text) {
		return
	}
	if !*update {
		t.Fatalf("%s is out of date: run go test ./internal/server/analyze -update\n%s", page, output.UnifiedDiff(string(text), now))
	}
	if err := os.WriteFile(page, []byte(now), 0o600); err != nil {
		t.Fatal(err)
	}
}

// changeOf returns the changes that mend an example, without their line numbers.
func changeOf(broken, mended []load.Cluster) string {
	var out strings.Builder
	for i := range broken {
		diff := output.UnifiedDiff(string(broken[i].Files[0].Text), string(mended[i].Files[0].Text))
		for line := range strings.Lines(diff) {
			if !strings.HasPrefix(line, "@@") && strings.TrimSpace(line) != "" {
				out.WriteString(line)
			}
		}
	}
	return out.String()
}
