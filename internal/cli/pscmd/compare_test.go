package pscmd

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli/pccmd"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/replicas"
)

// TestStreamsOf finds the streams of a proxy on two replicas, and of a proxy without ADS.
func TestStreamsOf(t *testing.T) {
	t.Parallel()
	proxy := func(stream, name, namespace string, age int) proxystatus.Proxy {
		return proxystatus.Proxy{Name: name + "." + namespace, Namespace: namespace, Stream: stream, Connected: time.Unix(1_700_000_000-int64(age), 0)}
	}
	reports := []proxystatus.Report{
		{Replica: "a", Proxies: []proxystatus.Proxy{proxy("web.apps-1", "web", "apps", 10), proxy("web.apps-2", "web", "apps", 20), proxy("v1.web.apps-9", "v1.web", "apps", 20)}},
		{Replica: "b", Proxies: []proxystatus.Proxy{proxy("web.apps-7", "web", "apps", 5), proxy("web.shop-8", "web", "shop", 1)}},
		{Replica: "c", Error: "no answer"},
	}
	found := []*replicas.Replica{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	for name, want := range map[string]string{
		"web.apps":   "b/web.apps-7 a/web.apps-1 a/web.apps-2 ",
		"web.apps-2": "a/web.apps-2 ",
		"web.shop":   "b/web.shop-8 ",
		"v1.web":     "a/v1.web.apps-9 ",
		"web":        `"web" may be web.shop or web.apps: name one of them`,
		"we.shop":    "no proxy \"we.shop\" is connected, near are: web.shop\nc: no answer",
	} {
		o := Options{proxy: name}
		streams, err := o.streamsOf(reports, found)
		got := ""
		for _, s := range streams {
			got += s.replica.Name + "/" + s.Stream + " "
		}
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestProxyOfSeveralClusters: a name in several clusters needs --cluster, and a replica that
// cannot distinguish the proxies is refused.
func TestProxyOfSeveralClusters(t *testing.T) {
	t.Parallel()
	proxy := func(stream, cluster string) proxystatus.Proxy {
		return proxystatus.Proxy{Name: "web.apps", Namespace: "apps", Stream: stream, Cluster: cluster}
	}
	found := []*replicas.Replica{{Name: "a"}, {Name: "b"}}
	for name, tc := range map[string]struct {
		a, b          []proxystatus.Proxy
		proxy, asked  string
		want, unclear string
	}{
		"not named":          {[]proxystatus.Proxy{proxy("web.apps-1", "c1"), proxy("web.apps-2", "c2")}, nil, "web.apps", "", "web.apps is in clusters c1 c2: name one with --cluster", ""},
		"at two replicas":    {[]proxystatus.Proxy{proxy("web.apps-1", "c1")}, []proxystatus.Proxy{proxy("web.apps-1", "")}, "web.apps-1", "", "web.apps-1 is in clusters (unknown) c1: name one with --cluster", ""},
		"named":              {[]proxystatus.Proxy{proxy("web.apps-1", "c1"), proxy("web.apps-2", "c2")}, nil, "web.apps", "c2", "", ""},
		"a stream":           {[]proxystatus.Proxy{proxy("web.apps-1", "c1"), proxy("web.apps-2", "c2")}, nil, "web.apps-2", "", "", ""},
		"without streams":    {[]proxystatus.Proxy{proxy("", "c1"), proxy("", "c2")}, nil, "web.apps", "c2", "", "a has web.apps in several clusters"},
		"each at its own":    {[]proxystatus.Proxy{proxy("", "c1")}, []proxystatus.Proxy{proxy("", "c2")}, "web.apps", "c2", "", ""},
		"in no such cluster": {[]proxystatus.Proxy{proxy("", "c1")}, nil, "web.apps", "c3", `no proxy "web.apps" is connected in cluster c3: looked at 1 proxy of control planes a, b`, ""},
	} {
		o := Options{proxy: tc.proxy, Cluster: tc.asked}
		reports := []proxystatus.Report{{Replica: "a", Proxies: tc.a}, {Replica: "b", Proxies: tc.b}}
		streams, err := o.streamsOf(reports, found)
		if fmt.Sprint(err) != cmp.Or(tc.want, "<nil>") {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
		if err != nil {
			continue
		}
		if len(streams) != 1 || streams[0].Cluster != "c2" {
			t.Errorf("%s: streams %+v", name, streams)
		}
		if err := unnamable(reports, streams); (err == nil) != (tc.unclear == "") || err != nil && !strings.Contains(err.Error(), tc.unclear) {
			t.Errorf("%s: %v, want %s", name, err, tc.unclear)
		}
	}
}

// TestWriteDifference: differences cannot control a terminal.
func TestWriteDifference(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	pccmd.WriteDifference(&text, "Istiod", "Envoy", "Routes", proxyconfig.Difference{Name: "a\x1b", Only: proxyconfig.B, NoteB: "said b\x1b"})
	pccmd.WriteDifference(&text, "x", "y", "Routes", proxyconfig.Difference{Name: "c", NoteA: "said d", NoteB: "said e", Diff: "@@ -1 +1 @@\n-\u202e\n+f\n"})
	want := `Only in Envoy Routes: a\x1b (Envoy said b\x1b)
--- x Routes: c
+++ y Routes: c (x said d) (y said e)
@@ -1 +1 @@
-\u202e
+f
`
	if text.String() != want {
		t.Errorf("got\n%s\nwant\n%s", text.String(), want)
	}
}

// TestCompareHeldOfARefusal: refused versions are not part of the comparison.
func TestCompareHeldOfARefusal(t *testing.T) {
	t.Parallel()
	read := func(besides string) *proxyconfig.Dynamic {
		t.Helper()
		const listener = `{"name": "l", "active_state": {"listener": {"@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": "l"}}`
		d, err := proxyconfig.ReadDynamic(strings.NewReader(`{"configs": [
			{"@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump"},
			{"@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump", "dynamic_listeners": [`+listener+besides+`]}]}`), proxyconfig.Selection{Types: proxyconfig.SentTypes()})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	const refused = `, "error_state": {"details": "no good"}}`
	all, err := compareHeld(t.Context(), read("}"), read(refused+`, {"name": "m"`+refused))
	if err != nil || len(all) != 3 {
		t.Fatalf("%v, %v", all, err)
	}
	for _, c := range all {
		if !c.Match || !c.Comparison.Match || len(c.Differences)+len(c.Comparison.Differences) > 0 {
			t.Errorf("%+v", c)
		}
	}
}
