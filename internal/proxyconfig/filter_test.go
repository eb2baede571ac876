package proxyconfig

import (
	"fmt"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/mesh"
)

func TestEndpointFilter(t *testing.T) {
	t.Parallel()
	const hello = "outbound|5000||helloworld.sample.svc.cluster.local"
	tests := map[string]struct {
		filter EndpointFilter
		want   []string
	}{
		"cluster":           {EndpointFilter{Cluster: hello}, []string{"10.11.0.2:5000", "192.168.1.242:15443"}},
		"cluster, any case": {EndpointFilter{Cluster: strings.ToUpper(hello)}, []string{"10.11.0.2:5000", "192.168.1.242:15443"}},
		"part of a cluster": {EndpointFilter{Cluster: "helloworld.sample.svc.cluster.local"}, nil},
		"address":           {EndpointFilter{Address: "127.0.0.1"}, []string{"127.0.0.1:15100", "127.0.0.1:15120"}},
		"address and port":  {EndpointFilter{Address: "127.0.0.1:15120"}, []string{"127.0.0.1:15120"}},
		"two ports":         {EndpointFilter{Address: "127.0.0.1:15120", Port: 15100}, nil},
		"part of address":   {EndpointFilter{Address: "127.0.0"}, nil},
		"port":              {EndpointFilter{Port: 8080}, []string{"10.11.0.2:8080"}},
		"part of port":      {EndpointFilter{Port: 808}, nil},
		"path":              {EndpointFilter{Address: "unix://./etc/istio/proxy/XDS"}, []string{"unix://./etc/istio/proxy/XDS"}},
		"all of them":       {EndpointFilter{Cluster: hello, Address: "10.11.0.2", Port: 5000, Status: "healthy"}, []string{"10.11.0.2:5000"}},
		"status":            {EndpointFilter{Status: "UNHEALTHY"}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, e := range must[[]Endpoint](t)(ReadEndpoints(testdata(t, clustersDump), tc.filter)) {
				got = append(got, e.String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			// JSON holds the clusters of the same endpoints.
			statuses := must[[]jsontext.Value](t)(ReadClusterStatuses(testdata(t, clustersDump), tc.filter))
			if (len(statuses) == 0) != (len(tc.want) == 0) {
				t.Errorf("%d cluster statuses for %d endpoints", len(statuses), len(tc.want))
			}
		})
	}
}

func TestEndpointKinds(t *testing.T) {
	t.Parallel()
	const dump = `{"clusterStatuses": [
	 {"hostStatuses": [
	   {"address": {"socketAddress": {"portValue": 80, "address": "::1"}}, "healthStatus": {"edsHealthStatus": "DRAINING", "failedOutlierCheck": true}},
	   {"address": {"envoyInternalAddress": {"serverListenerName": "connect", "endpointId": "a"}}},
	   {"address": {"somethingNew": {"x": 1}}},
	   {}
	 ], "name": "c"},
	 {"name": "none"}
	]}`
	got := must[[]Endpoint](t)(ReadEndpoints(strings.NewReader(dump), EndpointFilter{}))
	want := []Endpoint{
		{Address: Address{"::1", 80}, Status: "DRAINING", Ejected: true, Cluster: "c"},
		{Address: Address{Host: "envoy://connect/a"}, Status: "UNKNOWN", Cluster: "c"},
		{Address: Address{Host: "unknown"}, Status: "UNKNOWN", Cluster: "c"},
		{Address: Address{Host: "unknown"}, Status: "UNKNOWN", Cluster: "c"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	lines := tableLines(t, EndpointTable(got, false))
	if want := "[::1]:80              DRAINING     FAILED            c"; lines[1] != want {
		t.Errorf("row %q, want %q", lines[1], want)
	}
	if got := must[[]Endpoint](t)(ReadEndpoints(strings.NewReader(dump), EndpointFilter{Address: "[::1]:80"})); len(got) != 1 {
		t.Errorf("[::1]:80 selects %v", got)
	}
	// The name comes last here, and still excludes its hosts.
	if got := must[[]Endpoint](t)(ReadEndpoints(strings.NewReader(dump), EndpointFilter{Cluster: "other"})); len(got) != 0 {
		t.Errorf("got %v, want none", got)
	}
}

func TestClusterFilter(t *testing.T) {
	t.Parallel()
	const (
		outbound = "outbound|80|v1|reviews.shop.svc.cluster.local"
		inbound  = "inbound|8080||"
		sni      = "outbound_.80_._.reviews.shop.svc.cluster.local"
	)
	tests := []struct {
		filter ClusterFilter
		name   string
		want   bool
	}{
		{ClusterFilter{}, outbound, true},
		{ClusterFilter{FQDN: "reviews.shop.svc.cluster.local"}, outbound, true},
		{ClusterFilter{FQDN: "Reviews.shop"}, outbound, true},
		{ClusterFilter{FQDN: "shop"}, outbound, true},
		{ClusterFilter{FQDN: "views"}, outbound, false},
		{ClusterFilter{FQDN: "outbound"}, outbound, false},
		{ClusterFilter{FQDN: "v1"}, outbound, false},
		{ClusterFilter{FQDN: outbound}, outbound, true},
		{ClusterFilter{FQDN: "reviews.shop"}, sni, true},
		{ClusterFilter{FQDN: "blackholecluster"}, mesh.BlackHoleCluster, true},
		{ClusterFilter{FQDN: "BlackHole"}, mesh.BlackHoleCluster, false},
		{ClusterFilter{Port: 80}, outbound, true},
		{ClusterFilter{Port: 80}, inbound, false},
		{ClusterFilter{Port: 80}, sni, true},
		{ClusterFilter{Port: 80}, mesh.BlackHoleCluster, false},
		{ClusterFilter{Subset: "v1"}, outbound, true},
		{ClusterFilter{Subset: "v"}, outbound, false},
		{ClusterFilter{Subset: "80"}, outbound, false},
		{ClusterFilter{Direction: mesh.Inbound}, inbound, true},
		{ClusterFilter{Direction: mesh.Inbound}, outbound, false},
		{ClusterFilter{Direction: mesh.Inbound}, mesh.InboundPassthroughCluster, false},
		{ClusterFilter{FQDN: "reviews", Port: 81}, outbound, false},
	}
	for _, tc := range tests {
		if got := tc.filter.matches(tc.name); got != tc.want {
			t.Errorf("%+v matches %q = %t, want %t", tc.filter, tc.name, got, tc.want)
		}
	}
}

func TestClusterRows(t *testing.T) {
	t.Parallel()
	dump := clustersOf(`
		{"name": "outbound|90||b.example"},
		{"name": "outbound|80|v2|b.example", "type": "EDS", "metadata": {"filter_metadata": {"istio": {"config": "/apis/networking.istio.io/v1/namespaces/shop/destination-rule/b"}}}},
		{"name": "outbound|80|v1|b.example", "metadata": {"filter_metadata": {"istio": {"config": "/apis/other/v1/namespaces/shop/x/b"}}}},
		{"name": "outbound|100||b.example", "metadata": {"filter_metadata": {"istio": {"config": "/apis/networking.istio.io/short"}}}},
		{"name": "inbound|90||", "type": "ORIGINAL_DST", "metadata": {"filterMetadata": {"istio": {"config": 5, "services": []}}}},
		{"name": "a", "clusterType": {"name": "envoy.clusters.redis"}}`)
	want := []string{
		"SERVICE FQDN     PORT     SUBSET     DIRECTION     TYPE                     DESTINATION RULE",
		"                 90       -          inbound       ORIGINAL_DST",
		"a                -        -          -             envoy.clusters.redis",
		"b.example        90       -          outbound      STATIC",
		"b.example        100      -          outbound      STATIC",
		"b.example        80       v1         outbound      STATIC                   <unknown>",
		"b.example        80       v2         outbound      EDS                      b.shop",
		"",
	}
	rows := must[[]Cluster](t)(ReadClusters(strings.NewReader(dump), ClusterFilter{}, false))
	if diff := cmp.Diff(want, tableLines(t, ClusterTable(rows, false))); diff != "" {
		t.Error(diff)
	}
}

// clustersOf is a config dump with these clusters, each a JSON object.
func clustersOf(clusters string) string {
	items := strings.Split(strings.TrimSpace(clusters), "\n")
	for i, c := range items {
		items[i] = fmt.Sprintf(`{"cluster": %s}`, strings.TrimSuffix(strings.TrimSpace(c), ","))
	}
	return fmt.Sprintf(`{"configs": [{"@type": %q, "dynamic_active_clusters": [%s]}]}`, clusterSection.typeURL, strings.Join(items, ","))
}

func TestListenerFilter(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		filter ListenerFilter
		want   string
	}{
		"port":                       {ListenerFilter{Port: 15021}, "0.0.0.0:15021 10.97.94.51:15021"},
		"address":                    {ListenerFilter{Address: "10.97.0.1"}, "10.97.0.1:443"},
		"additional address":         {ListenerFilter{Address: "::"}, "0.0.0.0:5000 0.0.0.0:8000"},
		"type":                       {ListenerFilter{Type: "http+tcp", Port: 8000}, "0.0.0.0:8000"},
		"black hole is no TCP proxy": {ListenerFilter{Type: ListenerUnknown}, ""},
		"all":                        {ListenerFilter{Port: 15021, Address: "10.97.94.51", Type: ListenerHTTPTCP}, "10.97.94.51:15021"},
		"nothing":                    {ListenerFilter{Port: 1}, ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, l := range must[[]Listener](t)(ReadListeners(testdata(t, configDump), tc.filter, false)) {
				got = append(got, fmt.Sprintf("%s:%d", l.Addresses[0], l.Port))
			}
			if got := strings.Join(got, " "); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// listener decodes a listener of proto JSON whose chains carry, by number,
// the given filters.
func listener(t *testing.T, text string) Listener {
	t.Helper()
	m := new(listenerv3.Listener)
	if err := decode([]byte(text), m); err != nil {
		t.Fatal(err)
	}
	return NewListener(m)
}

const (
	httpType = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
	tcpType  = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
)

func TestChains(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		chain string
		want  Chain
		kind  ListenerType
	}{
		"empty": {`{}`, Chain{"ALL", "Non-HTTP/Non-TCP"}, ListenerUnknown},
		"everything that is matched": {
			`{"filterChainMatch": {"serverNames": ["a", "b"], "transportProtocol": "tls", "applicationProtocols": ["istio-peer-exchange", "istio"],
			  "prefixRanges": [{"addressPrefix": "10.0.0.0", "prefixLen": 8}, {"addressPrefix": "::1", "prefixLen": 128}], "destinationPort": 80}}`,
			Chain{"SNI: a,b; Trans: tls; App: TCP TLS; Addr: 10.0.0.0/8,::1/128:80", "Non-HTTP/Non-TCP"},
			ListenerUnknown,
		},
		"tcp": {
			`{"filters": [{"name": "x", "typedConfig": {"@type": "` + tcpType + `", "cluster": "outbound|80||a"}}]}`,
			Chain{"ALL", "Cluster: outbound|80||a"},
			ListenerTCP,
		},
		"tcp, several clusters": {
			`{"filters": [{"name": "x", "typedConfig": {"@type": "` + tcpType + `", "weightedClusters": {"clusters": [{"name": "a", "weight": 1}, {"name": "b", "weight": 2}]}}}]}`,
			Chain{"ALL", "Cluster: a, b"},
			ListenerTCP,
		},
		"black hole": {
			`{"filters": [{"name": "x", "typedConfig": {"@type": "` + tcpType + `", "cluster": "BlackHoleCluster"}}]}`,
			Chain{"ALL", "Non-HTTP/Non-TCP"},
			ListenerUnknown,
		},
		"unknown extension before": {
			`{"filters": [{"name": "x", "typedConfig": {"@type": "type.googleapis.com/acme.Filter", "depth": {"a": [1]}}},
			  {"name": "y", "typedConfig": {"@type": "` + httpType + `", "rds": {"routeConfigName": "80"}}}]}`,
			Chain{"ALL", "Route: 80"},
			ListenerHTTP,
		},
		"scoped routes": {
			`{"filters": [{"name": "y", "typedConfig": {"@type": "` + httpType + `", "scopedRoutes": {"name": "s"}}}]}`,
			Chain{"ALL", "Scoped Routes: s"},
			ListenerHTTP,
		},
		"inline, one cluster": {
			`{"filters": [{"name": "y", "typedConfig": {"@type": "` + httpType + `", "routeConfig": {"virtualHosts": [
			  {"name": "v", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "inbound|80||"}}]}]}}}]}`,
			Chain{"ALL", "Cluster: inbound|80||"},
			ListenerHTTP,
		},
		"inline, several": {
			`{"filters": [{"name": "y", "typedConfig": {"@type": "` + httpType + `", "routeConfig": {"virtualHosts": [
			  {"name": "v", "domains": ["a", "b"], "routes": [{"match": {"prefix": "/x"}}, {"match": {"path": "/y"}}]},
			  {"name": "w", "domains": ["*"], "routes": [{"match": {"safeRegex": {"regex": ".*"}}}, {"match": {"pathSeparatedPrefix": "/z"}}]}]}}}]}`,
			Chain{"ALL", "Inline Route: a/b /x*, /y; regex .*, PathPrefix:/z"},
			ListenerHTTP,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := listener(t, `{"filterChains": [`+tc.chain+`]}`)
			if diff := cmp.Diff([]Chain{tc.want}, got.Chains); diff != "" {
				t.Error(diff)
			}
			if got.Type != tc.kind {
				t.Errorf("type %s, want %s", got.Type, tc.kind)
			}
		})
	}
}

// With more than twelve chains an unstable sort would reorder chains of one destination.
func TestChainOrderIsStable(t *testing.T) {
	t.Parallel()
	var chains, want []string
	for i := range 40 {
		chains = append(chains, fmt.Sprintf(`{"filterChainMatch": {"destinationPort": %d}}`, i+1))
		want = append(want, fmt.Sprintf("Addr: *:%d", i+1))
	}
	var got []string
	for _, c := range listener(t, `{"filterChains": [`+strings.Join(chains, ",")+`]}`).Chains {
		got = append(got, c.Match)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestShortDomains(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		in   []string
		want string
	}{
		"one":                 {[]string{"a:80"}, "a:80"},
		"none":                {nil, ""},
		"ports":               {[]string{"a", "a:80", "b"}, "a, b"},
		"long forms":          {[]string{"a.b.svc.cluster.local", "a.b.svc", "a.b", "10.0.0.1"}, "a.b, 10.0.0.1"},
		"long form alone":     {[]string{"a.b.svc.cluster.local", "10.0.0.1"}, "a.b.svc.cluster.local, 10.0.0.1"},
		"more than two":       {[]string{"a", "b", "c", "d"}, "a, b + 2 more..."},
		"IPv6":                {[]string{"a", "[2001:db8::1]", "[2001:db8::1]:80"}, "a, [2001:db8::1]"},
		"each one has a port": {[]string{"a:80", "b:80"}, "a:80, b:80"},
	}
	for name, tc := range tests {
		if got := shortDomains(tc.in); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestRouteRows(t *testing.T) {
	t.Parallel()
	m := new(routev3.RouteConfiguration)
	err := decode([]byte(`{"name": "80", "virtualHosts": [
		{"name": "empty", "domains": ["e"]},
		{"name": "allow_any", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "PassthroughCluster"}}]},
		{"name": "block_all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "directResponse": {"status": 502}}]},
		{"name": "a", "domains": ["a"], "routes": [{"match": {"path": "/p", "headers": [{"name": "x", "presentMatch": true}]},
		  "metadata": {"filterMetadata": {"istio": {"config": "/apis/networking.istio.io/v1/namespaces/ns/virtual-service/vs"}}}}]}
	]}`), m)
	if err != nil {
		t.Fatal(err)
	}
	want := []RouteEntry{
		{"empty", "e", "/*", "404"},
		{"block_all", "*", "/*", ""},
		{"a", "a", "/p", "vs.ns"},
	}
	if diff := cmp.Diff(want, NewRoute(m).Entries); diff != "" {
		t.Error(diff)
	}
}
