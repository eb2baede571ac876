package proxyconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

// readers read a dump of each kind and drop the result.
var readers = map[string]func(io.Reader) error{
	"endpoints":        func(r io.Reader) error { _, err := ReadEndpoints(r, EndpointFilter{}); return err },
	"cluster statuses": func(r io.Reader) error { _, err := ReadClusterStatuses(r, EndpointFilter{}); return err },
	"clusters":         func(r io.Reader) error { _, err := ReadClusters(r, ClusterFilter{}, true); return err },
	"listeners":        func(r io.Reader) error { _, err := ReadListeners(r, ListenerFilter{}, true); return err },
	"routes":           func(r io.Reader) error { _, err := ReadRoutes(r, RouteFilter{}, true); return err },
	"secrets":          func(r io.Reader) error { _, err := ReadSecrets(r); return err },
	"dynamic":          func(r io.Reader) error { _, err := ReadDynamic(r, Selection{Types: DynamicTypes()}); return err },
	"extensions":       func(r io.Reader) error { _, err := ReadExtensions(r); return err },
	"bootstrap":        func(r io.Reader) error { _, err := ReadBootstrap(r); return err },
	"assignments":      func(r io.Reader) error { _, err := ReadAssignments(r, EndpointFilter{}, true); return err },
	"overview":         func(r io.Reader) error { _, err := ReadOverview(r, OverviewFilter{}); return err },
	"dump":             func(r io.Reader) error { _, err := ReadDump(r); return err },
}

// TestBadDumps: the error names the fault and its place.
func TestBadDumps(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("[", 1_000_000)
	listeners := func(l string) string {
		return fmt.Sprintf(`{"configs": [{"@type": %q, "static_listeners": [{"listener": %s}]}]}`, listenerSection.typeURL, l)
	}
	tests := map[string]struct{ reader, dump, want string }{
		"empty":             {"clusters", " \n", "the dump is empty"},
		"text of /clusters": {"endpoints", "a::observability_name::a\na::default_priority::max_connections::1024\n", "this is the text of /clusters: want the JSON of /clusters?format=json"},
		"truncated":         {"clusters", `{"configs": [{"@ty`, "the dump is truncated: it ends after 18 bytes"},
		"truncated hosts":   {"endpoints", `{"cluster_statuses": [{"name": "a", "host_statuses": [`, "the dump is truncated: it ends after 54 bytes"},
		"no JSON":           {"routes", "no stats", "the dump is not valid JSON: "},
		"an array":          {"routes", "[]", "the document is an array, want an object"},
		"NaN":               {"endpoints", `{"cluster_statuses": [{"name": "a", "weight": NaN}]}`, "the dump is not valid JSON: "},
		"invalid UTF-8":     {"endpoints", "{\"cluster_statuses\": [{\"name\": \"\xff\"}]}", "the dump is not valid JSON: "},
		"twice the same":    {"endpoints", `{"cluster_statuses": [], "cluster_statuses": []}`, "the dump is not valid JSON: "},
		"more behind":       {"endpoints", `{"cluster_statuses": []} {}`, "there is something behind the end of the dump"},
		"deep":              {"endpoints", `{"cluster_statuses": [{"name": "a", "x": ` + deep, "the dump is not valid JSON: "},
		"deep, kept":        {"cluster statuses", `{"cluster_statuses": [{"name": "a", "x": ` + deep, "the dump is not valid JSON: "},
		"deep, skipped":     {"clusters", `{"configs": [{"@type": "x", "y": ` + deep, "the dump is not valid JSON: "},
		"config dump":       {"endpoints", `{"configs": []}`, "this is a config dump, endpoints are read from /clusters?format=json"},
		"clusters":          {"listeners", `{"cluster_statuses": []}`, "this is the output of /clusters, listeners are read from /config_dump"},
		"clusters for eds":  {"assignments", `{"cluster_statuses": []}`, "this is the output of /clusters, endpoint assignments are read from /config_dump?include_eds"},
		"something else":    {"secrets", `{"stats": []}`, `this is no dump of Envoy: it has no "configs" but "stats"`},
		"no section":        {"secrets", `{"configs": [{"@type": "x"}]}`, "config dump has no configuration type type.googleapis.com/envoy.admin.v3.SecretsConfigDump"},
		"masked for ecds":   {"extensions", `{"configs": [{"@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump"}]}`, "config dump has no configuration type type.googleapis.com/envoy.admin.v3.EcdsConfigDump: "},
		"no extensions":     {"extensions", `{"configs": []}`, "config dump has no configuration type type.googleapis.com/envoy.admin.v3.EcdsConfigDump"},
		"nothing masked":    {"routes", `{}`, "config dump has no configuration type type.googleapis.com/envoy.admin.v3.RoutesConfigDump"},
		"no type":           {"routes", `{"configs": [{"a": 1, "@type": "x"}]}`, `/configs/0 does not begin with "@type"`},
		"type is a number":  {"routes", `{"configs": [{"@type": 5}]}`, "/configs/0/@type is a number, want a string"},
		"no list":           {"routes", `{"configs": 5}`, "/configs is a number, want an array"},
		"no clusters":       {"clusters", fmt.Sprintf(`{"configs": [{"@type": %q}]}`, clusterSection.typeURL), "no clusters found"},
		"no listeners":      {"listeners", fmt.Sprintf(`{"configs": [{"@type": %q}]}`, listenerSection.typeURL), "no listeners found"},
		"no bootstrap":      {"bootstrap", fmt.Sprintf(`{"configs": [{"@type": %q, "last_updated": "2026-11-21T16:11:42.205Z"}]}`, bootstrapSection.typeURL), "no bootstrap found"},
		"bootstrap masked":  {"bootstrap", `{"configs": []}`, "config dump has no configuration type type.googleapis.com/envoy.admin.v3.BootstrapConfigDump: a mask left it out"},
		"no assignments":    {"assignments", `{"configs": []}`, "config dump has no configuration type type.googleapis.com/envoy.admin.v3.EndpointsConfigDump: a dump of /config_dump?include_eds has it"},
		"nothing to show":   {"overview", `{"configs": [{"@type": "x"}]}`, "config dump has no configuration of a type that is shown"},
		"all masked":        {"dump", `{}`, "config dump has no configuration of a type that is shown"},
		"no configs":        {"dump", `{"configs": {}}`, "/configs is an object, want an array"},
		"type not first":    {"dump", `{"configs": [{"a": 1, "@type": "x"}]}`, `/configs/0 does not begin with "@type"`},
		"truncated dump":    {"dump", `{"configs": [{"@type": "x"`, "the dump is truncated: it ends after 26 bytes"},
		"cut before":        {"dump", `{"configs":`, "the dump is truncated: it ends after 11 bytes"},
		"clusters for all":  {"overview", `{"cluster_statuses": []}`, "this is the output of /clusters, clusters, listeners, routes, secrets and endpoint assignments are read from /config_dump?include_eds"},
		"bad port":          {"assignments", fmt.Sprintf(`{"configs": [{"@type": %q, "static_endpoint_configs": [{"endpoint_config": {"endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"socket_address": {"port_value": -1}}}}]}]}}]}]}`, assignmentSection.typeURL), "/configs/0/static_endpoint_configs/0/endpoint_config: json: "},
		"no routes":         {"routes", fmt.Sprintf(`{"configs": [{"@type": %q}]}`, routeSection.typeURL), "no routes found"},
		"name is a number":  {"clusters", clustersOf(`{"name": 5}`), "/configs/0/dynamic_active_clusters/0/cluster: json: "},
		"port out of range": {
			"endpoints", `{"cluster_statuses": [{"host_statuses": [{"address": {"socket_address": {"port_value": -1}}}]}]}`,
			"json: ", // the rest of these texts varies from process to process on purpose
		},
		"another type": {
			"listeners", listeners(`{"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "a"}`),
			"/configs/0/static_listeners/0/listener: it is a envoy.config.cluster.v3.Cluster, want envoy.config.listener.v3.Listener",
		},
		"wrong shape": {"listeners", listeners(`{"name": ["a"]}`), "/configs/0/static_listeners/0/listener: decode envoy.config.listener.v3.Listener: "},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := readers[tc.reader](strings.NewReader(tc.dump))
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("%s: error %v, want %s", tc.reader, err, tc.want)
			}
			if err != nil && len(err.Error()) > 500 {
				t.Errorf("error has %d bytes", len(err.Error()))
			}
		})
	}
}

// TestReadErrorsReachTheCaller: the error of the reader is in the error returned.
func TestReadErrorsReachTheCaller(t *testing.T) {
	t.Parallel()
	errDisk := errors.New("disk on fire")
	for name, read := range readers {
		r := io.MultiReader(strings.NewReader(`{"x": [`), iotest.ErrReader(errDisk))
		if err := read(r); !errors.Is(err, errDisk) {
			t.Errorf("%s: error %v, want %v", name, err, errDisk)
		}
	}
}

// TestTruncatedAnywhere: every prefix of a dump is an error, none a shorter result.
func TestTruncatedAnywhere(t *testing.T) {
	t.Parallel()
	dump := must[[]byte](t)(io.ReadAll(testdata(t, clustersDump)))
	dump = bytes.TrimSpace(dump)
	for i := 1; i < len(dump); i += 31 {
		err := readers["endpoints"](bytes.NewReader(dump[:i]))
		if err == nil || !strings.Contains(err.Error(), "truncated") {
			t.Fatalf("the first %d bytes: error %v, want one that says truncated", i, err)
		}
	}
}

// endless is a dump of one resource without an end.
type endless struct{ head io.Reader }

func (e *endless) Read(p []byte) (int, error) {
	n, err := e.head.Read(p)
	if errors.Is(err, io.EOF) {
		for i := range p {
			p[i] = 'x'
		}
		return len(p), nil
	}
	return n, err
}

// TestHugeResource: the size of a resource is bounded.
func TestHugeResource(t *testing.T) {
	t.Parallel()
	head := fmt.Sprintf(`{"configs": [{"@type": %q, "static_clusters": [{"cluster": {"name": "`, clusterSection.typeURL)
	err := readers["clusters"](&endless{strings.NewReader(head)})
	if !errors.Is(err, errResourceSize) {
		t.Errorf("error %v, want %v", err, errResourceSize)
	}
}

// TestExcludedIsNotHeld: reading 15 MB of endpoints that the filter excludes
// allocates little.
func TestExcludedIsNotHeld(t *testing.T) {
	host := `{"address": {"socket_address": {"address": "10.0.0.1", "port_value": 80}}}`
	hosts := strings.Repeat(host+",", 1000)
	parts := []io.Reader{strings.NewReader(`{"cluster_statuses": [{"name": "other", "host_statuses": [`)}
	for range 200 {
		parts = append(parts, strings.NewReader(hosts))
	}
	parts = append(parts, strings.NewReader(host+`]}]}`))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := must[[]Endpoint](t)(ReadEndpoints(io.MultiReader(parts...), EndpointFilter{Cluster: "wanted"}))
	runtime.ReadMemStats(&after)
	if len(got) != 0 {
		t.Errorf("%d endpoints, want none", len(got))
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 2<<20 {
		t.Errorf("%d bytes were allocated, want at most 2 MiB", n)
	}
}
