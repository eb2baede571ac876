package proxyconfig

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// TestUnordered: all lists and fields exist.
func TestUnordered(t *testing.T) {
	t.Parallel()
	for name, fields := range unordered() {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		list, ok := d.(protoreflect.FieldDescriptor)
		if !ok || !list.IsList() || (list.Message() == nil) != (len(fields) == 0) {
			t.Errorf("%s is a %v, with fields %v", name, d, fields)
			continue
		}
		for _, f := range fields {
			if list.Message().Fields().ByName(f) == nil {
				t.Errorf("%s has no %s", list.Message().FullName(), f)
			}
		}
	}
}

// comparable is a dump with one resource of each type, with the lists of which
// Envoy takes the order for nothing in one of two orders.
func comparable(turned bool) string {
	list := func(items ...string) string {
		if turned {
			items[0], items[1] = items[1], items[0]
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	const manager = `{"name": "hcm", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		"stat_prefix": "s", "route_config": {"name": "inline", "virtual_hosts": %s}}}`
	hosts := list(
		fmt.Sprintf(`{"name": "x", "domains": %s, "routes": [{"name": "1"}, {"name": "2"}]}`, list(`"x"`, `"x:80"`)),
		fmt.Sprintf(`{"name": "y", "domains": %s}`, list(`"y"`, `"*.y"`)))
	chains := list(
		`{"filter_chain_match": {"prefix_ranges": `+list(`{"address_prefix": "10.0.0.0", "prefix_len": 8}`, `{"address_prefix": "10.0.0.0", "prefix_len": 9}`)+`}}`,
		`{"filter_chain_match": {"server_names": `+list(`"a"`, `"b"`)+`, "application_protocols": `+list(`"h2"`, `"http/1.1"`)+`}, "filters": [`+fmt.Sprintf(manager, hosts)+`]}`)
	endpoint := func(address string) string {
		return `{"endpoint": {"address": {"socket_address": {"address": "` + address + `", "port_value": 80}}}}`
	}
	localities := list(
		`{"locality": {"region": "r1"}, "lb_endpoints": `+list(endpoint("10.0.0.1"), endpoint("10.0.0.2"))+`}`,
		`{"locality": {"region": "r2"}, "priority": 1, "lb_endpoints": [`+endpoint("10.0.0.3")+`]}`)
	dump := dynamicDump(
		`, "dynamic_active_clusters": [{"cluster": {`+clusterType+`, "name": "c"}}]`,
		`, "dynamic_listeners": [{"name": "l", "active_state": {"listener": {"@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": "l", "filter_chains": `+chains+`}}}]`,
		`, "dynamic_route_configs": [{"route_config": {"@type": "type.googleapis.com/envoy.config.route.v3.RouteConfiguration", "name": "r", "virtual_hosts": `+hosts+`}}]`)
	return strings.TrimSuffix(dump, "]}") + `, {"@type": "type.googleapis.com/envoy.admin.v3.EcdsConfigDump", "ecds_filters": [
		{"ecds_filter": {"@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig", "name": "e", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"}}}]},
	{"@type": "type.googleapis.com/envoy.admin.v3.EndpointsConfigDump", "dynamic_endpoint_configs": [
		{"endpoint_config": {"@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", "cluster_name": "c", "endpoints": ` + localities + `}}]}]}`
}

// TestCompareOrder: the order counts for routes, and not for unordered lists.
func TestCompareOrder(t *testing.T) {
	t.Parallel()
	all := Selection{Types: DynamicTypes()}
	read := func(dump string) *Dynamic {
		d, err := ReadDynamic(strings.NewReader(dump), all)
		if err != nil {
			t.Fatalf("%v:\n%s", err, dump)
		}
		return d
	}
	one, other := comparable(false), comparable(true)
	if one == other {
		t.Fatal("nothing is in another order")
	}
	one = strings.ReplaceAll(one, "\n", "")
	counts := func(a, b string) (out []string) {
		for _, c := range compare(t, read(a), read(b), all.Types...) {
			out = append(out, fmt.Sprintf("%s %d %d %d", c.Title, c.A.Count, c.B.Count, len(c.Differences)))
		}
		return out
	}
	want := []string{"Clusters 1 1 0", "Listeners 1 1 0", "Routes 1 1 0", "Extensions 1 1 0", "Endpoints 1 1 0"}
	if diff := cmp.Diff(want, counts(one, other)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// The first match counts, in listeners as in route configurations.
	routes := strings.ReplaceAll(one, `[{"name": "1"}, {"name": "2"}]`, `[{"name": "2"}, {"name": "1"}]`)
	want[1], want[2] = "Listeners 1 1 1", "Routes 1 1 1"
	if diff := cmp.Diff(want, counts(one, routes)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for from, to := range map[string]string{"10.0.0.3": "10.0.0.4", `"prefix_len": 9`: `"prefix_len": 10`, "Lua": "Buffer", `"*.y"`: `"*.z"`} {
		if got := counts(one, strings.ReplaceAll(one, from, to)); !strings.Contains(fmt.Sprint(got), "1 1 1") {
			t.Errorf("%s for %s makes no difference: %v", to, from, got)
		}
	}
}

func TestSelection(t *testing.T) {
	t.Parallel()
	dump := comparable(false)
	count := func(s Selection) map[string]int {
		d, err := ReadDynamic(strings.NewReader(dump), s)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]int{}
		for name, held := range d.Types {
			out[name] = len(held.resources)
		}
		return out
	}
	for _, tc := range []struct {
		selected Selection
		want     map[string]int
	}{
		{Selection{Types: SentTypes()}, map[string]int{"CDS": 1, "LDS": 1, "RDS": 1}},
		{Selection{Types: []string{"EDS", "CDS"}, Names: []string{"C"}}, map[string]int{"CDS": 1, "EDS": 1}},
		{Selection{Types: DynamicTypes(), Names: []string{"e", "l*"}}, map[string]int{"CDS": 0, "LDS": 1, "RDS": 0, "ECDS": 1, "EDS": 0}},
	} {
		if diff := cmp.Diff(tc.want, count(tc.selected)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tc.selected, diff)
		}
	}
	// Sections outside of the selection may be missing.
	if _, err := ReadDynamic(strings.NewReader(`{"configs": [{"@type": "`+clusterSection.typeURL+`"}]}`), Selection{Types: []string{"CDS"}}); err != nil {
		t.Error(err)
	}
	_, err := ReadDynamic(strings.NewReader(dynamicDump("", "", "")), Selection{Types: []string{EDS}})
	if err == nil || !strings.Contains(err.Error(), "/config_dump?include_eds") {
		t.Errorf("error %v", err)
	}
}

func TestMatches(t *testing.T) {
	t.Parallel()
	const name = "outbound|5000|v1|helloworld.sample.svc.cluster.local"
	for pattern, want := range map[string]bool{
		"helloworld":        true,
		"HelloWorld":        true,
		"|5000|":            true,
		"outbound":          true,
		"hello.world":       false,
		"helloworld*":       false,
		"*helloworld*":      true,
		"outbound|*":        true,
		"outbound|*.local":  true,
		"*.local":           true,
		"*.loca":            false,
		"*":                 true,
		"**":                true,
		"out*5000*v1*.svc*": true,
		"out*v1*5000*":      false,
		"outbound|5000|v1|helloworld.sample.svc.cluster.local*local": false, // each letter once
		"outbound|?000|*": false,
	} {
		if got := matches(pattern, name); got != want {
			t.Errorf("%s: %t", pattern, got)
		}
	}
}

func TestAlike(t *testing.T) {
	t.Parallel()
	var own []ownAddress
	for _, ip := range []string{"10.0.0.1", "fd00::1", "10.0.0.1", "10.0.0.12"} {
		own = addOwn(own, netip.MustParseAddr(ip))
	}
	for text, want := range map[string]string{
		"10.0.0.1":              "own-ipv4",
		`"10.0.0.1_80"`:         `"own-ipv4_80"`,
		"10.0.0.1:80,10.0.0.1":  "own-ipv4:80,own-ipv4",
		"10.0.0.12 10.0.0.123":  "own-ipv4-2 10.0.0.123",
		"110.0.0.1 10.0.0.1.5":  "110.0.0.1 10.0.0.1.5",
		"[fd00::1]:80 fd00::1":  "[own-ipv6]:80 own-ipv6",
		"fd00::12 afd00::1":     "fd00::12 afd00::1",
		"fd00::1:2 10.0.0.2 _":  "fd00::1:2 10.0.0.2 _",
		"10.0.0.110.0.0.1 left": "10.0.0.110.0.0.1 left",
	} {
		if got := string(alike([]byte(text), own)); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// TestCompareAlike: two Envoys that differ only in their own addresses are equal.
func TestCompareAlike(t *testing.T) {
	t.Parallel()
	one := strings.ReplaceAll(comparable(false), `"l"`, `"10.0.0.1_80"`)
	other := strings.ReplaceAll(one, "~10.0.0.1~", "~10.0.0.2~")
	other = strings.ReplaceAll(other, "10.0.0.1_80", "10.0.0.2_80")
	for _, alike := range []bool{false, true} {
		selected := Selection{Types: DynamicTypes(), Alike: alike}
		var both [2]*Dynamic
		for i, dump := range []string{one, other} {
			var err error
			if both[i], err = ReadDynamic(strings.NewReader(dump), selected); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range compare(t, both[0], both[1], selected.Types...) {
			if want := alike || c.Type != "LDS"; c.Match != want {
				t.Errorf("alike %t: %+v", alike, c)
			}
		}
	}
	_, err := ReadDynamic(strings.NewReader(strings.ReplaceAll(one, "~10.0.0.1~", "~nobody~")), Selection{Types: DynamicTypes(), Alike: true})
	if err == nil || !strings.Contains(err.Error(), "what the Envoy's own addresses are") {
		t.Errorf("error %v", err)
	}
	others := strings.Replace(one, `"node": {"id": "sidecar~10.0.0.1~`, `"node": {"metadata": {"INSTANCE_IPS": "fd00::9, 10.0.0.1"}, "id": "sidecar~192.0.2.1~`, 1)
	d, err := ReadDynamic(strings.NewReader(others), Selection{Types: []string{"LDS"}, Alike: true})
	if err != nil || d.Types["LDS"].resources["own-ipv4-2_80"].raw == nil {
		t.Errorf("%v, %+v", err, d)
	}
}

// TestCompareAlikeDualStack: resources whose names have addresses of two families, or
// become equal, are all kept.
func TestCompareAlikeDualStack(t *testing.T) {
	t.Parallel()
	read := func(ipv4, ipv6 string, port int, names ...string) *Dynamic {
		t.Helper()
		listener := func(name string, port int) string {
			return fmt.Sprintf(`{"name": %q, "active_state": {"listener": {"@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "name": %[1]q,
				"address": {"socket_address": {"address": "x", "port_value": %d}}}}}`, name, port)
		}
		listeners := strings.Join([]string{listener(ipv4+"_80", port), listener(ipv6+"_80", 80), listener("own-ipv4_80", 5)}, ",")
		dump := dynamicDump("", `, "dynamic_listeners": [`+listeners+`]`, "")
		dump = strings.Replace(dump, `"node": {"id": "sidecar~10.0.0.1~`, fmt.Sprintf(`"node": {"metadata": {"INSTANCE_IPS": "%s,%s"}, "id": "sidecar~%[1]s~`, ipv4, ipv6), 1)
		d, err := ReadDynamic(strings.NewReader(dump), Selection{Types: []string{"LDS"}, Alike: true, Names: names})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, tc := range []struct {
		names []string
		port  int // of IPv4 in B
		want  Comparison
	}{
		{nil, 80, Comparison{Match: true, Names: 3, A: Holding{Count: 3}, B: Holding{Count: 3}}},
		{nil, 81, Comparison{Names: 3, A: Holding{Count: 3}, B: Holding{Count: 3}, Differences: []Difference{{Name: "own-ipv4_80"}}}},
		{[]string{"10.0.0.1_80"}, 81, Comparison{Names: 1, A: Holding{Count: 1}, B: Holding{Count: 1}, Differences: []Difference{{Name: "own-ipv4_80"}}}},
		{[]string{"10.0.0.2_80"}, 81, Comparison{Names: 1, A: Holding{Count: 1}, B: Holding{Count: 1}, Differences: []Difference{{Name: "own-ipv4_80"}}}},
		{[]string{"own-ipv6*"}, 81, Comparison{Match: true, Names: 1, A: Holding{Count: 1}, B: Holding{Count: 1}}},
	} {
		got := compare(t, read("10.0.0.1", "fd00::1", 80, tc.names...), read("10.0.0.2", "fd00::2", tc.port, tc.names...), "LDS")[0]
		for i := range got.Differences {
			got.Differences[i].Diff = ""
		}
		tc.want.Type, tc.want.Title = "LDS", "Listeners"
		if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("--name %q, port %d (-want +got):\n%s", tc.names, tc.port, diff)
		}
	}
}
