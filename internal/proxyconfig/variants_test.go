package proxyconfig

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	matcherv3 "github.com/cncf/xds/go/xds/type/matcher/v3"
	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	udpproxyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/udp/udp_proxy/v3"
	gocmp "github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// variants returns a message once with each field of a oneof, by the names of the fields.
func variants(of proto.Message, oneof protoreflect.Name) map[string]proto.Message {
	out := map[string]proto.Message{}
	fields := of.ProtoReflect().Descriptor().Oneofs().ByName(oneof).Fields()
	for i := range fields.Len() {
		m := of.ProtoReflect().New()
		set(m, fields.Get(i), 6)
		out[string(fields.Get(i).Name())] = m.Interface()
	}
	return out
}

// set gives a field some value, and a list two.
func set(m protoreflect.Message, f protoreflect.FieldDescriptor, depth int) {
	one := func() protoreflect.Value {
		switch {
		case f.Message() != nil:
			value := m.NewField(f)
			if f.IsList() {
				value = value.List().NewElement()
			}
			fill(value.Message(), depth)
			return value
		case f.Kind() == protoreflect.StringKind:
			return protoreflect.ValueOfString(string(f.Name()))
		case f.Kind() == protoreflect.Uint32Kind:
			return protoreflect.ValueOfUint32(7)
		case f.Kind() == protoreflect.BoolKind:
			return protoreflect.ValueOfBool(true)
		case f.Kind() == protoreflect.EnumKind:
			return protoreflect.ValueOfEnum(1)
		}
		return m.NewField(f)
	}
	switch {
	case f.IsMap() && f.MapValue().Message() != nil:
		value := m.Mutable(f).Map().NewValue()
		fill(value.Message(), depth)
		m.Mutable(f).Map().Set(protoreflect.ValueOfString("key").MapKey(), value)
	case f.IsMap():
	case f.IsList():
		m.Mutable(f).List().Append(one())
		m.Mutable(f).List().Append(one())
	default:
		m.Set(f, one())
	}
}

// contents holds the contents of messages that would otherwise contain each other without end.
var contents = []proto.Message{
	&matcherv3.Matcher{OnNoMatch: action},
	action,
	&matcherv3.Matcher_MatcherList_Predicate{MatchType: &matcherv3.Matcher_MatcherList_Predicate_SinglePredicate_{
		SinglePredicate: &matcherv3.Matcher_MatcherList_Predicate_SinglePredicate{
			Input: &xdscorev3.TypedExtensionConfig{Name: "port"},
			Matcher: &matcherv3.Matcher_MatcherList_Predicate_SinglePredicate_ValueMatch{
				ValueMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: "80"}},
			},
		},
	}},
	&routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
	&anypb.Any{},
	&structpb.Struct{},
	&structpb.Value{Kind: &structpb.Value_BoolValue{}},
}

// fill sets the fields of a message, of a oneof the first one.
func fill(m protoreflect.Message, depth int) {
	for _, c := range contents {
		if c.ProtoReflect().Descriptor() == m.Descriptor() {
			proto.Merge(m.Interface(), c)
			return
		}
	}
	if depth == 0 {
		return
	}
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		if o := f.ContainingOneof(); o != nil && o.Fields().Get(0) != f {
			continue
		}
		if f.Kind() == protoreflect.StringKind || f.Message() != nil || f.Kind() == protoreflect.Uint32Kind {
			set(m, f, depth-1)
		}
	}
}

func as[M proto.Message](t *testing.T, m proto.Message) M {
	t.Helper()
	out, ok := m.(M)
	if !ok {
		t.Fatalf("%T", m)
	}
	return out
}

// TestEveryVariantHasARow: whatever field of a oneof an Envoy uses, the row of the table says
// something that a person can read, and something else for each field.
func TestEveryVariantHasARow(t *testing.T) {
	t.Parallel()
	listenerRow := func(l *listenerv3.Listener) string {
		row := NewListener(l)
		return strings.Join(ListenerTable([]Listener{row}, true, false).Rows[0], " ")
	}
	filtered := func(config proto.Message) string {
		packed, err := anypb.New(config)
		if err != nil {
			t.Fatal(err)
		}
		return listenerRow(&listenerv3.Listener{Address: port80, FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{
			{ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed}},
		}}}})
	}
	routes := func(vh *routev3.VirtualHost) string {
		r := NewRoute(&routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{vh}})
		return strings.Join(RouteTable([]Route{r}, true).Rows[0], " ")
	}
	matcher := func(m *matcherv3.Matcher) string { return routes(&routev3.VirtualHost{Name: "a", Matcher: m}) }
	predicate := func(p *matcherv3.Matcher_MatcherList_Predicate) string {
		return matcher(&matcherv3.Matcher{MatcherType: &matcherv3.Matcher_MatcherList_{MatcherList: &matcherv3.Matcher_MatcherList{
			Matchers: []*matcherv3.Matcher_MatcherList_FieldMatcher{{Predicate: p, OnMatch: action}},
		}}})
	}
	single := func(p *matcherv3.Matcher_MatcherList_Predicate_SinglePredicate) string {
		return predicate(&matcherv3.Matcher_MatcherList_Predicate{MatchType: &matcherv3.Matcher_MatcherList_Predicate_SinglePredicate_{SinglePredicate: p}})
	}
	endpoints := func(l *endpointv3.LocalityLbEndpoints) string {
		return assignmentRow(t, &endpointv3.ClusterLoadAssignment{ClusterName: "c", Endpoints: []*endpointv3.LocalityLbEndpoints{l}})
	}
	address := func(a *corev3.Address) string {
		e := &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: a}}}
		return listenerRow(&listenerv3.Listener{Address: a}) + " " + endpoints(&endpointv3.LocalityLbEndpoints{LbEndpoints: []*endpointv3.LbEndpoint{e}})
	}
	for _, c := range []struct {
		of      proto.Message
		oneof   protoreflect.Name
		row     func(proto.Message) string
		filters bool // the row must have a destination
	}{
		{&corev3.Address{}, "address", func(m proto.Message) string { return address(as[*corev3.Address](t, m)) }, false},
		{&corev3.SocketAddress{}, "port_specifier", func(m proto.Message) string {
			a := as[*corev3.SocketAddress](t, m)
			a.Address = "10.0.0.1"
			return address(&corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: a}})
		}, false},
		{&corev3.EnvoyInternalAddress{}, "address_name_specifier", func(m proto.Message) string {
			return address(&corev3.Address{Address: &corev3.Address_EnvoyInternalAddress{EnvoyInternalAddress: as[*corev3.EnvoyInternalAddress](t, m)}})
		}, false},
		{&listenerv3.Listener{}, "listener_specifier", func(m proto.Message) string {
			l := as[*listenerv3.Listener](t, m)
			l.Name = "connect"
			return listenerRow(l)
		}, false},
		{&hcmv3.HttpConnectionManager{}, "route_specifier", filtered, true},
		{&tcpproxyv3.TcpProxy{}, "cluster_specifier", filtered, true},
		{&udpproxyv3.UdpProxyConfig{}, "route_specifier", func(m proto.Message) string {
			packed, err := anypb.New(m)
			if err != nil {
				t.Fatal(err)
			}
			return listenerRow(&listenerv3.Listener{Address: port80, ListenerFilters: []*listenerv3.ListenerFilter{{ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: packed}}}})
		}, false},
		{&routev3.RouteMatch{}, "path_specifier", func(m proto.Message) string {
			return routes(&routev3.VirtualHost{Name: "a", Routes: []*routev3.Route{{Match: as[*routev3.RouteMatch](t, m)}}})
		}, false},
		{&routev3.Route{}, "action", func(m proto.Message) string {
			r := as[*routev3.Route](t, m)
			r.Match = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
			return routes(&routev3.VirtualHost{Name: string(r.ProtoReflect().WhichOneof(r.ProtoReflect().Descriptor().Oneofs().ByName("action")).Name()), Routes: []*routev3.Route{r}})
		}, false},
		{&matcherv3.Matcher{}, "matcher_type", func(m proto.Message) string { return matcher(as[*matcherv3.Matcher](t, m)) }, false},
		{&matcherv3.Matcher_OnMatch{}, "on_match", func(m proto.Message) string {
			return matcher(&matcherv3.Matcher{OnNoMatch: as[*matcherv3.Matcher_OnMatch](t, m)})
		}, false},
		{&matcherv3.Matcher_MatcherTree{}, "tree_type", func(m proto.Message) string {
			return matcher(&matcherv3.Matcher{MatcherType: &matcherv3.Matcher_MatcherTree_{MatcherTree: as[*matcherv3.Matcher_MatcherTree](t, m)}})
		}, false},
		{&matcherv3.Matcher_MatcherList_Predicate{}, "match_type", func(m proto.Message) string {
			return predicate(as[*matcherv3.Matcher_MatcherList_Predicate](t, m))
		}, false},
		{&matcherv3.Matcher_MatcherList_Predicate_SinglePredicate{}, "matcher", func(m proto.Message) string {
			return single(as[*matcherv3.Matcher_MatcherList_Predicate_SinglePredicate](t, m))
		}, false},
		{&matcherv3.StringMatcher{}, "match_pattern", func(m proto.Message) string {
			value := &matcherv3.Matcher_MatcherList_Predicate_SinglePredicate_ValueMatch{ValueMatch: as[*matcherv3.StringMatcher](t, m)}
			return single(&matcherv3.Matcher_MatcherList_Predicate_SinglePredicate{Matcher: value})
		}, false},
		{&endpointv3.LbEndpoint{}, "host_identifier", func(m proto.Message) string {
			return endpoints(&endpointv3.LocalityLbEndpoints{LbEndpoints: []*endpointv3.LbEndpoint{as[*endpointv3.LbEndpoint](t, m)}})
		}, false},
		{&endpointv3.LocalityLbEndpoints{}, "lb_config", func(m proto.Message) string { return endpoints(as[*endpointv3.LocalityLbEndpoints](t, m)) }, false},
		{&clusterv3.Cluster{}, "cluster_discovery_type", func(m proto.Message) string {
			c := as[*clusterv3.Cluster](t, m)
			c.Name = "c"
			return clusterRow(t, c)
		}, false},
	} {
		seen := map[string]string{}
		for name, m := range variants(c.of, c.oneof) {
			what := fmt.Sprintf("%s of %s", name, c.of.ProtoReflect().Descriptor().FullName())
			row := c.row(m)
			if strings.Contains(strings.ToLower(row), "unknown") || c.filters && strings.Contains(row, noDestination) {
				t.Errorf("%s: %s", what, row)
			}
			if other := seen[row]; other != "" {
				t.Errorf("%s has the row of %s: %s", what, other, row)
			}
			seen[row] = what
		}
	}
}

var (
	port80 = &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "10.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 80},
	}}}
	action = &matcherv3.Matcher_OnMatch{OnMatch: &matcherv3.Matcher_OnMatch_Action{}}
)

// dumpOf returns a config dump with one section.
func dumpOf(t *testing.T, section proto.Message) *bytes.Reader {
	t.Helper()
	packed, err := anypb.New(section)
	if err != nil {
		t.Fatal(err)
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(&adminv3.ConfigDump{Configs: []*anypb.Any{packed}})
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(text)
}

func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	out, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func assignmentRow(t *testing.T, a *endpointv3.ClusterLoadAssignment) string {
	t.Helper()
	dump := &adminv3.EndpointsConfigDump{StaticEndpointConfigs: []*adminv3.EndpointsConfigDump_StaticEndpointConfig{{EndpointConfig: packed(t, a)}}}
	found := must[[]Assignment](t)(ReadAssignments(dumpOf(t, dump), EndpointFilter{}, false))
	if len(found) == 0 {
		return "unknown: no row"
	}
	return AssignmentTable(found, false).Rows[0][0]
}

func clusterRow(t *testing.T, c *clusterv3.Cluster) string {
	t.Helper()
	dump := &adminv3.ClustersConfigDump{StaticClusters: []*adminv3.ClustersConfigDump_StaticCluster{{Cluster: packed(t, c)}}}
	return strings.Join(ClusterTable(must[[]Cluster](t)(ReadClusters(dumpOf(t, dump), ClusterFilter{}, false)), false).Rows[0], " ")
}

// TestEveryDiscoveryTypeHasARow: the row of a cluster has the name of its discovery type.
func TestEveryDiscoveryTypeHasARow(t *testing.T) {
	t.Parallel()
	for number, name := range clusterv3.Cluster_DiscoveryType_name {
		c := &clusterv3.Cluster{Name: "c", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_DiscoveryType(number)}}
		if row := clusterRow(t, c); !strings.Contains(row, name) {
			t.Errorf("%s: %s", name, row)
		}
	}
}

// TestEveryStateHasARow: each list of a section, and each state of a dynamic listener, has a row
// that says more than the row of another one.
func TestEveryStateHasARow(t *testing.T) {
	t.Parallel()
	states := map[string]int{}
	fields := (&adminv3.ListenersConfigDump_DynamicListener{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if f.Message() == nil {
			continue
		}
		l := &adminv3.ListenersConfigDump_DynamicListener{Name: "a"}
		set(l.ProtoReflect(), f, 1)
		for _, state := range []*adminv3.ListenersConfigDump_DynamicListenerState{l.ActiveState, l.WarmingState, l.DrainingState} {
			if state != nil {
				state.Listener = packed(t, &listenerv3.Listener{Name: "a", Address: port80})
			}
		}
		dump := &adminv3.ListenersConfigDump{DynamicListeners: []*adminv3.ListenersConfigDump_DynamicListener{l}}
		rows := must[[]Listener](t)(ReadListeners(dumpOf(t, dump), ListenerFilter{}, false))
		for _, verbose := range []bool{true, false} {
			table := ListenerTable(rows, verbose, false).Rows
			if len(table) != 1 || states[fmt.Sprint(table)] > 0 {
				t.Errorf("%s: %v", f.Name(), table)
			}
			states[fmt.Sprint(table)]++
		}
	}
	lists := (&adminv3.ClustersConfigDump{}).ProtoReflect().Descriptor().Fields()
	for i := range lists.Len() {
		if !lists.Get(i).IsList() {
			continue
		}
		dump := &adminv3.ClustersConfigDump{}
		set(dump.ProtoReflect(), lists.Get(i), 1)
		for _, c := range append(dump.GetDynamicActiveClusters(), dump.GetDynamicWarmingClusters()...) {
			c.Cluster = packed(t, &clusterv3.Cluster{Name: "c"})
		}
		for _, c := range dump.GetStaticClusters() {
			c.Cluster = packed(t, &clusterv3.Cluster{Name: "c"})
		}
		if rows := must[[]Cluster](t)(ReadClusters(dumpOf(t, dump), ClusterFilter{}, false)); len(rows) != 2 { // see set
			t.Errorf("%s: %v", lists.Get(i).Name(), rows)
		}
	}
}

// TestRejectedOnce: a listener that Envoy refused twice for one reason has one row, beside the row of
// its active version. An inline virtual host with a matcher has its conditions.
func TestRejectedOnce(t *testing.T) {
	t.Parallel()
	web := &listenerv3.Listener{Name: "a", Address: port80}
	failed := func(why string) *adminv3.UpdateFailureState {
		return &adminv3.UpdateFailureState{FailedConfiguration: packed(t, web), Details: why}
	}
	inline := &hcmv3.HttpConnectionManager{RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
		VirtualHosts: []*routev3.VirtualHost{{Domains: []string{"*"}, Matcher: &matcherv3.Matcher{OnNoMatch: action}}},
	}}}
	active := &listenerv3.Listener{Name: "a", Address: port80, FilterChains: []*listenerv3.FilterChain{{
		Filters: []*listenerv3.Filter{{ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: packed(t, inline)}}},
	}}}
	dump := &adminv3.ListenersConfigDump{DynamicListeners: []*adminv3.ListenersConfigDump_DynamicListener{
		{Name: "a", ActiveState: &adminv3.ListenersConfigDump_DynamicListenerState{Listener: packed(t, active)}, ErrorState: failed("no\n port")},
		{Name: "a", ErrorState: failed("no port")},
		{Name: "a", ErrorState: failed("other")},
	}}
	rows := must[[]Listener](t)(ReadListeners(dumpOf(t, dump), ListenerFilter{}, true))
	want := []string{
		"10.0.0.1 80 ALL Inline Route: otherwise", "10.0.0.1 80 - rejected: no port", "10.0.0.1 80 - rejected: other",
	}
	var got []string
	for _, row := range ListenerTable(rows, true, false).Rows {
		got = append(got, strings.Join(row, " "))
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if n := len(Resources(rows)); n != 1 {
		t.Errorf("%d resources, want the active one", n)
	}
}
