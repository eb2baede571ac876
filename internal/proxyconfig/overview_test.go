package proxyconfig

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/meshctl/meshctl/internal/mesh"
)

// overviewLines are the tables of an overview, an empty line behind each.
func overviewLines(t testing.TB, o *Overview, verbose bool) []string {
	t.Helper()
	var out []string
	for _, part := range o.Parts(verbose, dumpTime) {
		out = append(out, tableLines(t, part.Table)...)
	}
	return out
}

func TestOverviewEqualsIstios(t *testing.T) {
	t.Parallel()
	text := must[[]byte](t)(io.ReadAll(testdata(t, "c1-sleep.all.txt")))
	// Istio writes cluster/ also before names in the second column.
	want := lines(string(regexp.MustCompile(`(?m)^(cluster/\S+ +)cluster/(\S+)`).ReplaceAll(text, []byte("$1$2        "))))
	overview := must[*Overview](t)(ReadOverview(testdata(t, configDump), OverviewFilter{}))
	got := overviewLines(t, overview, true)
	slices.Sort(want) // the order of routes differs on purpose, see TestRouteOrder
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]*MissingError{assignmentSection.missing()}, overview.Missing); diff != "" {
		t.Error("missing:", diff)
	}
}

// TestOverviewOrder: each table has the order of the command for it alone.
func TestOverviewOrder(t *testing.T) {
	t.Parallel()
	o := must[*Overview](t)(ReadOverview(testdata(t, configDump), OverviewFilter{}))
	want := &Overview{
		Bootstrap: *must[*Bootstrap](t)(ReadBootstrap(testdata(t, configDump))),
		Clusters:  must[[]Cluster](t)(ReadClusters(testdata(t, configDump), ClusterFilter{}, false)),
		Listeners: must[[]Listener](t)(ReadListeners(testdata(t, configDump), ListenerFilter{}, false)),
		Routes:    must[[]Route](t)(ReadRoutes(testdata(t, configDump), RouteFilter{}, false)),
		Secrets:   must[*Secrets](t)(ReadSecrets(testdata(t, configDump))).Items,
	}
	for _, verbose := range []bool{false, true} {
		if diff := cmp.Diff(overviewLines(t, want, verbose), overviewLines(t, o, verbose)); diff != "" {
			t.Error(diff)
		}
	}
}

const assignmentsDump = "envoy.eds.json"

func TestOverviewFilter(t *testing.T) {
	t.Parallel()
	// One dump of both: the configs of the second follow the first.
	both := must[[]byte](t)(io.ReadAll(testdata(t, configDump)))
	both = bytes.TrimSuffix(both, []byte("\n ]\n}\n"))
	both = append(append(both, ','), bytes.TrimPrefix(must[[]byte](t)(io.ReadAll(testdata(t, assignmentsDump))), []byte("{\n \"configs\": ["))...)
	for name, tc := range map[string]struct {
		filter OverviewFilter
		want   string // first cells; all rows of a table for *
	}{
		"fqdn":      {OverviewFilter{Clusters: ClusterFilter{FQDN: "helloworld.sample"}}, "cluster/outbound|5000||helloworld.sample.svc.cluster.local listener/* route/* secret/* endpoint/10.0.0.1:5000 endpoint/10.0.0.2:5000,[fd00::2]:5000 endpoint/192.168.1.242:15443"},
		"port":      {OverviewFilter{Clusters: ClusterFilter{Port: 7000}, Listeners: ListenerFilter{Port: 7000}}, "cluster/outbound|7000||echo.sample.svc.cluster.local listener/10.97.114.72_7000 route/* secret/*"},
		"direction": {OverviewFilter{Clusters: ClusterFilter{Direction: mesh.Inbound}}, "listener/* route/* secret/*"},
		"subset":    {OverviewFilter{Clusters: ClusterFilter{Subset: "v1"}}, "listener/* route/* secret/*"},
		"address":   {OverviewFilter{Listeners: ListenerFilter{Address: "FD00::2"}}, "cluster/* route/* secret/* endpoint/10.0.0.2:5000,[fd00::2]:5000"},
		"type":      {OverviewFilter{Listeners: ListenerFilter{Type: ListenerUnknown}}, "cluster/* route/* secret/* endpoint/*"},
		"name":      {OverviewFilter{Routes: RouteFilter{Name: "5000"}}, "cluster/* listener/* route/5000 secret/* endpoint/*"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := overviewLines(t, must[*Overview](t)(ReadOverview(bytes.NewReader(both), OverviewFilter{})), false)
			var want []string
			for cell := range strings.FieldsSeq(tc.want) {
				kind, every := strings.CutSuffix(cell, "*")
				if !every {
					want = append(want, cell)
					continue
				}
				n := len(want)
				for _, line := range all {
					if strings.HasPrefix(line, kind) {
						want = append(want, strings.Fields(line)[0])
					}
				}
				if len(want) == n {
					t.Fatalf("there is no %s", cell)
				}
			}
			var got []string
			for _, line := range overviewLines(t, must[*Overview](t)(ReadOverview(bytes.NewReader(both), tc.filter)), false) {
				if cell, _, _ := strings.Cut(line, " "); strings.Contains(cell, "/") {
					got = append(got, cell)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestDumpEqualsProtoJSON(t *testing.T) {
	t.Parallel()
	dump := new(adminv3.ConfigDump)
	if err := protojson.Unmarshal(must[[]byte](t)(io.ReadAll(testdata(t, configDump))), dump); err != nil {
		t.Fatal(err)
	}
	want := parsed(t, must[[]byte](t)(protojson.Marshal(dump)))
	got := must[*DumpResource](t)(ReadDump(testdata(t, configDump)))
	if diff := cmp.Diff(want, written(t, got)); diff != "" {
		t.Error(diff)
	}
	section := want.(map[string]any)["configs"].([]any)[0].(map[string]any)
	delete(section, "@type")
	bootstrap := must[*Bootstrap](t)(ReadBootstrap(testdata(t, configDump)))
	if diff := cmp.Diff(any(section), written(t, bootstrap.Resource)); diff != "" {
		t.Error(diff)
	}
}

// TestDumpReadsBack: a written dump can be read like Envoy's.
func TestDumpReadsBack(t *testing.T) {
	t.Parallel()
	for _, file := range []string{configDump, assignmentsDump} {
		before := must[*Overview](t)(ReadOverview(testdata(t, file), OverviewFilter{}))
		text := must[[]byte](t)(json.Marshal(written(t, must[*DumpResource](t)(ReadDump(testdata(t, file))))))
		after := must[*Overview](t)(ReadOverview(bytes.NewReader(text), OverviewFilter{}))
		if diff := cmp.Diff(overviewLines(t, before, true), overviewLines(t, after, true)); diff != "" {
			t.Errorf("%s: %s", file, diff)
		}
	}
}

func TestVersions(t *testing.T) {
	t.Parallel()
	for node, want := range map[string][]string{
		`{}`: {""},
		`{"metadata": {"ISTIO_VERSION": 5, "ISTIO_PROXY_SHA": {}}, "user_agent_version": "1.2"}`: {"Envoy Version: 1.2", ""},
		`{"metadata": {"ISTIO_VERSION": "1.30.0", "ISTIO_PROXY_SHA": "istio-proxy:4c2e"}, "userAgentBuildVersion":
		  {"version": {"majorNumber": 1, "minorNumber": 40, "patch": 2}, "metadata": {"build.label": "dev", "revision.status": "Modified", "ssl.version": "BoringSSL-FIPS"}}}`: {
			"Istio Version:       1.30.0",
			"Istio Proxy Version: 4c2e",
			"Envoy Version:       1.40.2-dev/Modified/unknown/BoringSSL-FIPS",
			"",
		},
	} {
		dump := fmt.Sprintf(`{"configs": [{"@type": %q, "bootstrap": {"node": %s}}]}`, bootstrapSection.typeURL, node)
		bootstrap := must[*Bootstrap](t)(ReadBootstrap(strings.NewReader(dump)))
		if diff := cmp.Diff(want, tableLines(t, BootstrapTable(bootstrap))); diff != "" {
			t.Error(diff)
		}
	}
}

func TestAssignments(t *testing.T) {
	t.Parallel()
	const hello = "outbound|5000||helloworld.sample.svc.cluster.local"
	all := must[[]Assignment](t)(ReadAssignments(testdata(t, assignmentsDump), EndpointFilter{}, false))
	want := []string{
		"NAME                             STATUS        LOCALITY              CLUSTER",
		"10.0.0.1:5000                    HEALTHY       region1/zone-a/s1     " + hello,
		"10.0.0.2:5000,[fd00::2]:5000     UNHEALTHY     region1/zone-a/s1     " + hello,
		"192.168.1.242:15443              UNHEALTHY     region2               " + hello,
		"envoy://conn/e1                  HEALTHY                             int",
		"./x                              HEALTHY                             xds",
		"",
	}
	if diff := cmp.Diff(want, tableLines(t, AssignmentTable(all, false))); diff != "" {
		t.Error(diff)
	}
	for name, tc := range map[string]struct {
		filter EndpointFilter
		want   []string // first addresses
	}{
		"cluster":                 {EndpointFilter{Cluster: strings.ToUpper(hello)}, []string{"10.0.0.1", "10.0.0.2", "192.168.1.242"}},
		"part of a cluster":       {EndpointFilter{Cluster: "helloworld.sample.svc.cluster.local"}, nil},
		"address":                 {EndpointFilter{Address: "10.0.0.1"}, []string{"10.0.0.1"}},
		"additional address":      {EndpointFilter{Address: "fd00::2", Port: 5000}, []string{"10.0.0.2"}},
		"port of another address": {EndpointFilter{Address: "fd00::2", Port: 15443}, nil},
		"port":                    {EndpointFilter{Port: 15443}, []string{"192.168.1.242"}},
		"status":                  {EndpointFilter{Status: "unhealthy"}, []string{"10.0.0.2", "192.168.1.242"}},
		"path":                    {EndpointFilter{Address: "unix://./x"}, []string{"unix://./x"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found := must[[]Assignment](t)(ReadAssignments(testdata(t, assignmentsDump), tc.filter, true))
			var got []string
			for _, a := range found {
				for _, e := range a.Endpoints {
					got = append(got, e.Addresses[0].Host)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if resources := Resources(found); (len(resources) == 0) != (len(tc.want) == 0) {
				t.Errorf("%d resources for %d endpoints", len(resources), len(got))
			}
		})
	}
}

func TestAssignmentsEqualProtoJSON(t *testing.T) {
	t.Parallel()
	dump := new(adminv3.ConfigDump)
	if err := protojson.Unmarshal(must[[]byte](t)(io.ReadAll(testdata(t, assignmentsDump))), dump); err != nil {
		t.Fatal(err)
	}
	var want struct {
		Configs []struct {
			StaticEndpointConfigs []struct{ EndpointConfig map[string]any }
		}
	}
	if err := json.Unmarshal(must[[]byte](t)(protojson.Marshal(dump)), &want); err != nil {
		t.Fatal(err)
	}
	var withEndpoints []any
	for _, c := range want.Configs[0].StaticEndpointConfigs {
		if c.EndpointConfig["endpoints"] != nil {
			withEndpoints = append(withEndpoints, c.EndpointConfig)
		}
	}
	got := must[[]Assignment](t)(ReadAssignments(testdata(t, assignmentsDump), EndpointFilter{}, true))
	compareUnordered(t, "assignments", withEndpoints, written(t, Resources(got)))
}

// TestDumpIsRedacted: secrets are redacted in every section, and unknown values that may be
// secret are omitted.
func TestDumpIsRedacted(t *testing.T) {
	t.Parallel()
	secret := `{"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret", "tls_certificate": {"private_key": {"inline_string": "hunter2"}}}`
	bootstrap := `{"static_resources": {"secrets": [{"tls_certificate": {"private_key": {"inline_string": "hunter2"}}}],
		"clusters": [{"load_assignment": {}, "transport_socket": {"typed_config": {"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
		"common_tls_context": {"tls_certificates": [{"private_key": {"inline_string": "hunter2"}}]}}}}]}}`
	dump := fmt.Sprintf(`{"configs": [{"@type": %q, "bootstrap": %s}, {"@type": %q, "static_secrets": [{"name": "s", "secret": %s}]}]}`,
		bootstrapSection.typeURL, bootstrap, secretSection.typeURL, secret)
	whole := must[*DumpResource](t)(ReadDump(strings.NewReader(dump)))
	if bytes.Contains(whole.Configs, []byte("hunter2")) || bytes.Count(whole.Configs, []byte(redacted)) != 3 {
		t.Errorf("keys are not redacted: %s", whole.Configs)
	}
	b := must[*Bootstrap](t)(ReadBootstrap(strings.NewReader(dump)))
	if text := b.Resource.Bootstrap; bytes.Contains(text, []byte("hunter2")) || bytes.Count(text, []byte(redacted)) != 2 {
		t.Errorf("keys are not redacted: %s", text)
	}
	late := fmt.Sprintf(`{"configs": [{"@type": %q, "static_secrets": [{"secret": {"tls_certificate": {"private_key": {"inline_string": "hunter2"}}, "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"}}]}]}`, secretSection.typeURL)
	if got, err := ReadDump(strings.NewReader(late)); err == nil || !strings.Contains(err.Error(), `/configs/0/static_secrets/0/secret does not begin with "@type"`) {
		t.Errorf("got %v, %v, want an error", got, err)
	}
}
