package proxyconfig

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/meshctl/meshctl/internal/output"
	_ "github.com/meshctl/meshctl/internal/xdswire/protos"
)

const (
	configDump   = "c1-sleep.config.json"
	clustersDump = "c1-sleep.clusters.json"
)

// dumpTime is when the secrets of the dump are judged, see testdata/README.md.
var dumpTime = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func testdata(t testing.TB, name string) *bytes.Reader {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(data)
}

func must[T any](t testing.TB) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// lines is text by lines without spaces at their ends.
func lines(text string) []string {
	out := strings.Split(text, "\n")
	for i := range out {
		out[i] = strings.TrimRight(out[i], " ")
	}
	return out
}

func tableLines(t testing.TB, table *output.Table) []string {
	t.Helper()
	var out bytes.Buffer
	if err := table.Write(&out); err != nil {
		t.Fatal(err)
	}
	return lines(out.String())
}

func TestTablesEqualIstios(t *testing.T) {
	t.Parallel()
	secrets := must[*Secrets](t)(ReadSecrets(testdata(t, configDump)))
	tests := []struct {
		file   string
		table  *output.Table
		sorted bool // the order differs on purpose
	}{
		{"c1-sleep.endpoint.txt", EndpointTable(must[[]Endpoint](t)(ReadEndpoints(testdata(t, clustersDump), EndpointFilter{})), false), false},
		{"c1-sleep.cluster.txt", ClusterTable(must[[]Cluster](t)(ReadClusters(testdata(t, configDump), ClusterFilter{}, false)), false), false},
		{"c1-sleep.listener.txt", ListenerTable(must[[]Listener](t)(ReadListeners(testdata(t, configDump), ListenerFilter{}, false)), true, false), false},
		{"c1-sleep.route.txt", RouteTable(must[[]Route](t)(ReadRoutes(testdata(t, configDump), RouteFilter{}, false)), true), true},
		{"c1-sleep.secret.txt", SecretTable(secrets.Items, dumpTime), false},
	}
	for _, tc := range tests {
		t.Run(tc.file, func(t *testing.T) {
			t.Parallel()
			want := lines(string(must[[]byte](t)(io.ReadAll(testdata(t, tc.file)))))
			got := tableLines(t, tc.table)
			if tc.sorted {
				slices.Sort(want)
				slices.Sort(got)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRouteOrder(t *testing.T) {
	t.Parallel()
	routes := must[[]Route](t)(ReadRoutes(testdata(t, configDump), RouteFilter{}, false))
	var got []string
	for _, r := range routes {
		got = append(got, r.Name)
	}
	want := []string{
		"5000", "8000", "istio-eastwestgateway.istio-system.svc.cluster.local:15021", // from RDS
		"", "", "InboundPassthroughCluster", "InboundPassthroughCluster", // inline
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestShortTables(t *testing.T) {
	t.Parallel()
	listeners := must[[]Listener](t)(ReadListeners(testdata(t, configDump), ListenerFilter{Port: 8000}, false))
	want := []string{"ADDRESSES  PORT TYPE", "0.0.0.0,:: 8000 HTTP+TCP", ""}
	if diff := cmp.Diff(want, tableLines(t, ListenerTable(listeners, false, false))); diff != "" {
		t.Error(diff)
	}
	routes := must[[]Route](t)(ReadRoutes(testdata(t, configDump), RouteFilter{Name: "5000"}, false))
	want = []string{"NAME     VIRTUAL HOSTS", "5000     2", ""}
	if diff := cmp.Diff(want, tableLines(t, RouteTable(routes, false))); diff != "" {
		t.Error(diff)
	}
}

func parsed(t testing.TB, text []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v: %.200q", err, text)
	}
	return v
}

func written(t testing.TB, v any) any {
	t.Helper()
	var out bytes.Buffer
	if err := output.Write(&out, output.FormatJSON, v); err != nil {
		t.Fatal(err)
	}
	return parsed(t, out.Bytes())
}

func TestSecretJSONEqualsIstios(t *testing.T) {
	t.Parallel()
	secrets := must[*Secrets](t)(ReadSecrets(testdata(t, configDump)))
	want := parsed(t, must[[]byte](t)(io.ReadAll(testdata(t, "c1-sleep.secret.json"))))
	if diff := cmp.Diff(want, written(t, secrets.Resource)); diff != "" {
		t.Error(diff)
	}
}

// TestResourcesEqualProtoJSON: our conversion, by message descriptions, equals the output
// of the protobuf library for the whole dump.
func TestResourcesEqualProtoJSON(t *testing.T) {
	t.Parallel()
	dump := new(adminv3.ConfigDump)
	if err := protojson.Unmarshal(must[[]byte](t)(io.ReadAll(testdata(t, configDump))), dump); err != nil {
		t.Fatal(err)
	}
	var want struct {
		Configs []struct {
			Type           string `json:"@type"`
			StaticClusters []struct{ Cluster any }
			Listeners      []struct {
				ActiveState struct{ Listener any }
			} `json:"dynamicListeners"`
			StaticListeners []struct{ Listener any }
			DynamicRoutes   []struct{ RouteConfig any } `json:"dynamicRouteConfigs"`
			StaticRoutes    []struct{ RouteConfig any } `json:"staticRouteConfigs"`
			ActiveClusters  []struct{ Cluster any }     `json:"dynamicActiveClusters"`
		}
	}
	if err := json.Unmarshal(must[[]byte](t)(protojson.Marshal(dump)), &want); err != nil {
		t.Fatal(err)
	}
	var clusters, listeners, routes []any
	for _, c := range want.Configs {
		for _, x := range slices.Concat(c.ActiveClusters, c.StaticClusters) {
			clusters = append(clusters, x.Cluster)
		}
		for _, x := range c.Listeners {
			listeners = append(listeners, x.ActiveState.Listener)
		}
		for _, x := range c.StaticListeners {
			listeners = append(listeners, x.Listener)
		}
		for _, x := range slices.Concat(c.DynamicRoutes, c.StaticRoutes) {
			routes = append(routes, x.RouteConfig)
		}
	}
	gotClusters := must[[]Cluster](t)(ReadClusters(testdata(t, configDump), ClusterFilter{}, true))
	gotListeners := must[[]Listener](t)(ReadListeners(testdata(t, configDump), ListenerFilter{}, true))
	gotRoutes := must[[]Route](t)(ReadRoutes(testdata(t, configDump), RouteFilter{}, true))
	compareUnordered(t, "clusters", clusters, written(t, Resources(gotClusters)))
	compareUnordered(t, "listeners", listeners, written(t, Resources(gotListeners)))
	compareUnordered(t, "routes", routes, written(t, Resources(gotRoutes)))
}

func TestClusterStatusesEqualProtoJSON(t *testing.T) {
	t.Parallel()
	dump := new(adminv3.Clusters)
	if err := protojson.Unmarshal(must[[]byte](t)(io.ReadAll(testdata(t, clustersDump))), dump); err != nil {
		t.Fatal(err)
	}
	var want struct{ ClusterStatuses []any }
	if err := json.Unmarshal(must[[]byte](t)(protojson.Marshal(dump)), &want); err != nil {
		t.Fatal(err)
	}
	withHosts := slices.DeleteFunc(want.ClusterStatuses, func(v any) bool { return v.(map[string]any)["hostStatuses"] == nil })
	got := must[[]jsontext.Value](t)(ReadClusterStatuses(testdata(t, clustersDump), EndpointFilter{}))
	compareUnordered(t, "cluster statuses", withHosts, written(t, got))
}

func compareUnordered(t *testing.T, what string, want []any, got any) {
	t.Helper()
	key := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	keys := func(items []any) []string {
		var out []string
		for _, v := range items {
			out = append(out, key(v))
		}
		slices.Sort(out)
		return out
	}
	if len(want) == 0 {
		t.Fatalf("no %s to compare with", what)
	}
	if diff := cmp.Diff(keys(want), keys(got.([]any))); diff != "" {
		t.Errorf("%s: %s", what, diff)
	}
}
