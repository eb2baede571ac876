package proxyconfig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// dynamicDump is a config dump with these members of the three sections.
func dynamicDump(clusters, listeners, routes string) string {
	return fmt.Sprintf(`{"configs": [
{"@type": "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump", "bootstrap": {"node": {"id": "sidecar~10.0.0.1~web-1.apps~apps.svc.cluster.local"}}},
{"@type": %q %s}, {"@type": %q %s}, {"@type": %q %s}]}`, clusterSection.typeURL, clusters, listenerSection.typeURL, listeners, routeSection.typeURL, routes)
}

func readDynamic(t *testing.T, dump string) *Dynamic {
	t.Helper()
	d, err := ReadDynamic(strings.NewReader(dump), Selection{Types: SentTypes()})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func compare(t *testing.T, a, b *Dynamic, types ...string) []Comparison {
	t.Helper()
	all, err := Compare(t.Context(), a, b, types)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

const clusterType = `"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster"`

func TestCompare(t *testing.T) {
	t.Parallel()
	cluster := func(fields string) string {
		return `, "dynamic_active_clusters": [{"version_info": "1", "cluster": {` + clusterType + `, ` + fields + `}}]`
	}
	listener := func(state string) string {
		return `, "dynamic_listeners": [{"name": "l", ` + state + `}]`
	}
	const l = `{"listener": {"@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": "l"}, "last_updated": "2026-05-04T03:02:01.5Z"}`
	one := Holding{Count: 1}
	at := time.Date(2026, 5, 4, 3, 2, 1, 5e8, time.UTC)
	for name, tc := range map[string]struct {
		a, b string
		want []Comparison // those that are not empty
	}{
		"spelled in other ways": {
			dynamicDump(strings.ReplaceAll(cluster(`"name": "a", "connectTimeout": "1.500s", "type": "EDS", "maxRequestsPerConnection": 5`), "dynamic_active_clusters", "dynamicActiveClusters"), "", ""),
			dynamicDump(cluster(`"type": "EDS", "connect_timeout": "1.5s", "max_requests_per_connection": 5.0, "name": "a"`), "", ""),
			[]Comparison{{Type: "CDS", Match: true, A: one, B: one}},
		},
		"another value": {
			dynamicDump(cluster(`"name": "a", "connectTimeout": "2s"`), "", ""), dynamicDump(cluster(`"name": "a", "connect_timeout": "3s"`), "", ""),
			[]Comparison{{Type: "CDS", A: one, B: one, Differences: []Difference{{
				Name: "a", Diff: "@@ -1,5 +1,5 @@\n {\n   " + clusterType + ",\n   \"name\": \"a\",\n-  \"connectTimeout\": \"2s\"\n+  \"connectTimeout\": \"3s\"\n }\n",
			}}}},
		},
		"what this build does not know": {
			dynamicDump(cluster(`"name": "a", "fresh": {"x": 1, "y": 2}`), "", ""), dynamicDump(cluster(`"fresh": {"y": 2, "x": 1.0}, "name": "a"`), "", ""),
			[]Comparison{{Type: "CDS", Match: true, A: one, B: one}},
		},
		"an unknown extension with another value": {
			dynamicDump(cluster(`"name": "a", "transport_socket": {"name": "s", "typed_config": {"@type": "type.googleapis.com/own.Socket", "x": 1}}`), "", ""),
			dynamicDump(cluster(`"name": "a", "transport_socket": {"name": "s", "typed_config": {"@type": "type.googleapis.com/own.Socket", "x": 2}}`), "", ""),
			[]Comparison{{Type: "CDS", A: one, B: one, Differences: []Difference{{Name: "a"}}}},
		},
		"static ones, and names that one side has": {
			dynamicDump(cluster(`"name": "a"`), "", ""),
			dynamicDump(cluster(`"name": "b"`)+`, "static_clusters": [{"cluster": {`+clusterType+`, "name": "c"}}]`, "", ""),
			[]Comparison{{Type: "CDS", A: one, B: one, Differences: []Difference{{Name: "a", Only: A}, {Name: "b", Only: B}}}},
		},
		"warming, the first time": {
			dynamicDump(cluster(`"name": "a"`), listener(`"active_state": `+l), ""),
			dynamicDump(strings.ReplaceAll(cluster(`"name": "a"`), "active", "warming"), listener(`"warming_state": `+l), ""),
			[]Comparison{
				{Type: "CDS", A: one, Differences: []Difference{{Name: "a", Only: A, NoteB: "is warming a version"}}},
				{Type: "LDS", A: Holding{1, at}, Differences: []Difference{{Name: "l", Only: A, NoteB: "is warming a version"}}},
			},
		},
		"warming another one": {
			dynamicDump(cluster(`"name": "a"`), "", ""),
			dynamicDump(cluster(`"name": "a", "type": "EDS"`)+strings.ReplaceAll(cluster(`"name": "a"`), "active", "warming"), "", ""),
			[]Comparison{{Type: "CDS", A: one, B: one, Differences: []Difference{{Name: "a", NoteB: "is warming a version"}}}},
		},
		"refused": {
			dynamicDump("", listener(`"active_state": `+l), ""),
			dynamicDump("", listener(`"error_state": {"details": "no good"}`), ""),
			[]Comparison{{Type: "LDS", A: Holding{1, at}, Differences: []Difference{{Name: "l", Only: A, NoteB: "refused a version: no good"}}}},
		},
		"refused or warming, with the same in use": {
			dynamicDump(cluster(`"name": "a"`), listener(`"active_state": `+l+`, "error_state": {"details": "no good"}`), ""),
			dynamicDump(cluster(`"name": "a"`)+strings.ReplaceAll(cluster(`"name": "a"`), "active", "warming"), listener(`"active_state": `+l), ""),
			[]Comparison{
				{Type: "CDS", A: one, B: one, Differences: []Difference{{Name: "a", NoteB: "is warming a version", Noted: true}}},
				{Type: "LDS", A: Holding{1, at}, B: Holding{1, at}, Differences: []Difference{{Name: "l", NoteA: "refused a version: no good", Noted: true}}},
			},
		},
		"refused and warming, the first time on both": {
			dynamicDump("", listener(`"error_state": {"details": "no good"}`), ""), dynamicDump("", listener(`"warming_state": `+l), ""),
			[]Comparison{{Type: "LDS", Differences: []Difference{{Name: "l", NoteA: "refused a version: no good", NoteB: "is warming a version", Noted: true}}}},
		},
		"warming, the first time on one": {
			dynamicDump("", "", ""), dynamicDump("", listener(`"warming_state": `+l), ""),
			[]Comparison{{Type: "LDS", Differences: []Difference{{Name: "l", Only: B, NoteB: "is warming a version", Noted: true}}}},
		},
		"refused on both alike": {
			dynamicDump("", listener(`"active_state": `+l+`, "error_state": {"details": "no good"}`), ""),
			dynamicDump("", listener(`"active_state": `+l+`, "error_state": {"details": "no good"}`), ""),
			[]Comparison{{Type: "LDS", Match: true, A: Holding{1, at}, B: Holding{1, at}}},
		},
		"when it was loaded": {
			dynamicDump("", listener(`"active_state": `+l), ""), dynamicDump("", listener(`"active_state": `+l), ""),
			[]Comparison{{Type: "LDS", Match: true, A: Holding{1, at}, B: Holding{1, at}}},
		},
	} {
		var got []Comparison
		for _, c := range compare(t, readDynamic(t, tc.a), readDynamic(t, tc.b), SentTypes()...) {
			c.Title, c.Names = "", 0
			if len(c.Differences) == 0 {
				c.Differences = nil
			}
			for i := range c.Differences { // not all are spelled out
				if c.Differences[i].Diff != "" && c.Type == "CDS" && name != "another value" {
					c.Differences[i].Diff = ""
				}
			}
			if c.A.Count+c.B.Count+len(c.Differences) > 0 {
				got = append(got, c)
			}
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestCompareCaptured: the dump of a real Envoy equals itself, and differs from a dump
// without some resources.
func TestCompareCaptured(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/c1-sleep.config.json")
	if err != nil {
		t.Fatal(err)
	}
	d := readDynamic(t, string(text))
	if d.Proxy != "sleep.sample" {
		t.Errorf("it is of %q", d.Proxy)
	}
	for _, c := range compare(t, d, d, SentTypes()...) {
		if !c.Match || c.A.Count == 0 || c.A.Updated.IsZero() {
			t.Errorf("%+v", c)
		}
	}
	changed := readDynamic(t, strings.Replace(string(text), `"connect_timeout": "10s"`, `"connect_timeout": "11s"`, 1))
	if c := compare(t, d, changed, SentTypes()...)[0]; c.Match || len(c.Differences) != 1 || !strings.Contains(c.Differences[0].Diff, "+  \"connectTimeout\": \"11s\"") {
		t.Errorf("%+v", c)
	}
}

func TestReadDynamicErrors(t *testing.T) {
	t.Parallel()
	noListeners := strings.ReplaceAll(dynamicDump("", "", ""), listenerSection.typeURL, "x")
	for dump, want := range map[string]string{
		`{"cluster_statuses": []}`: "this is the output of /clusters, clusters, listeners and routes are read from /config_dump",
		noListeners:                "config dump has no configuration type " + listenerSection.typeURL,
		dynamicDump(`, "dynamic_active_clusters": [{"cluster": 5}]`, "", ""): "/configs/1/dynamic_active_clusters/0: ",
		dynamicDump("", `, "dynamic_listeners": {}`, ""):                     "/configs/2/dynamic_listeners is an object, want an array",
	} {
		if _, err := ReadDynamic(strings.NewReader(dump), Selection{Types: SentTypes()}); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.80s: error %v, want %s", dump, err, want)
		}
	}
	// Envoy has no section for routes before it has any.
	if _, err := ReadDynamic(strings.NewReader(strings.ReplaceAll(dynamicDump("", "", ""), routeSection.typeURL, "x")), Selection{Types: SentTypes()}); err != nil {
		t.Error(err)
	}
}

// TestCompareRedacted: secrets are compared but not shown. Values that Envoy redacted
// count as equal.
func TestCompareRedacted(t *testing.T) {
	t.Parallel()
	cluster := func(key, rest string) *Dynamic {
		t.Helper()
		return readDynamic(t, dynamicDump(`, "dynamic_active_clusters": [{"cluster": {`+clusterType+`, "name": "a", `+rest+` "transport_socket": {"name": "s", "typed_config": {
			"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext", "common_tls_context": {"tls_certificates": [{
			"certificate_chain": {"inline_string": "x"}, "private_key": `+key+`}]}}}}}]`, "", ""))
	}
	const pem = "-----BEGIN PRIVATE KEY-----\\nMIGH%s\\n-----END PRIVATE KEY-----"
	key := func(n string) string { return fmt.Sprintf(`{"inline_string": "`+pem+`"}`, n) }
	for name, tc := range map[string]struct {
		a, b string
		rest string
		want []Difference
	}{
		"the same":            {key("1"), key("1"), "", nil},
		"the same, otherwise": {key("1"), strings.ReplaceAll(key("1"), "inline_string", "inlineString"), "", nil},
		"another":             {key("1"), key("2"), "", []Difference{{Name: "a", Redacted: true}}},
		"bytes":               {`{"inline_bytes": "YWE="}`, `{"inline_bytes": "YWI="}`, "", []Difference{{Name: "a", Redacted: true}}},
		"redacted by A":       {`{"inline_string": "[redacted]"}`, key("2"), "", nil},
		"bytes, by B":         {`{"inline_bytes": "YWE="}`, `{"inline_bytes": "W3JlZGFjdGVkXQ=="}`, "", nil},
		"in another PEM": {
			key("1"), key("1"), `"alt_stat_name": ` + fmt.Sprintf(`"`+pem+`",`, "3"), []Difference{{Name: "a", Redacted: true}},
		},
	} {
		rest := strings.Replace(tc.rest, "MIGH3", "MIGH4", 1)
		c := compare(t, cluster(tc.a, tc.rest), cluster(tc.b, rest), "CDS")[0]
		if diff := cmp.Diff(tc.want, c.Differences, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	c := compare(t, cluster(key("1"), `"type": "EDS",`), cluster(key("2"), ""), "CDS")[0]
	if text := fmt.Sprintf("%+v", c.Differences); !strings.Contains(text, `"EDS"`) || strings.Contains(text, "MIGH") {
		t.Error(text)
	}
}

// TestCompareErrors: errors name the dump and the resource.
func TestCompareErrors(t *testing.T) {
	t.Parallel()
	read := func(socket string) *Dynamic {
		t.Helper()
		return readDynamic(t, dynamicDump(`, "dynamic_active_clusters": [{"cluster": {`+clusterType+`, "name": "a", "transport_socket": {"typed_config": {`+socket+`}}}}]`, "", ""))
	}
	a, b := read(``), read(`"x": 1, "@type": "y"`)
	a.From, b.From = "a.json", "b.json"
	_, err := Compare(t.Context(), a, b, SentTypes())
	if want := `clusters "a": b.json: convert to proto JSON: /transport_socket/typed_config does not begin with "@type"`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := Compare(ended, a, a, SentTypes()); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
