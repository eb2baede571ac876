package xds

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	clusterservice "github.com/envoyproxy/go-control-plane/envoy/service/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointservice "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extensionservice "github.com/envoyproxy/go-control-plane/envoy/service/extension/v3"
	listenerservice "github.com/envoyproxy/go-control-plane/envoy/service/listener/v3"
	routeservice "github.com/envoyproxy/go-control-plane/envoy/service/route/v3"
	secretservice "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/xdswire"
)

type (
	sotwStream  = discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	deltaStream = discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
)

// opened converts the type of a generated stream to the type of ADS.
func opened[S any, T any](open func(context.Context, ...grpc.CallOption) (S, error), as func(S) T) func(context.Context) (T, error) {
	return func(ctx context.Context) (T, error) {
		s, err := open(ctx)
		return as(s), err
	}
}

// api is the generated client of one service.
type api struct {
	sotw  func(context.Context) (sotwStream, error)
	delta func(context.Context) (deltaStream, error)
	fetch func(context.Context) error
}

func apis(conn *grpc.ClientConn) map[string]api {
	req := &discoveryv3.DiscoveryRequest{}
	cds := clusterservice.NewClusterDiscoveryServiceClient(conn)
	eds := endpointservice.NewEndpointDiscoveryServiceClient(conn)
	lds := listenerservice.NewListenerDiscoveryServiceClient(conn)
	rds := routeservice.NewRouteDiscoveryServiceClient(conn)
	sds := secretservice.NewSecretDiscoveryServiceClient(conn)
	ecds := extensionservice.NewExtensionConfigDiscoveryServiceClient(conn)
	return map[string]api{
		"CDS": {
			opened(cds.StreamClusters, func(s clusterservice.ClusterDiscoveryService_StreamClustersClient) sotwStream { return s }),
			opened(cds.DeltaClusters, func(s clusterservice.ClusterDiscoveryService_DeltaClustersClient) deltaStream { return s }),
			func(ctx context.Context) error { _, err := cds.FetchClusters(ctx, req); return err },
		},
		"EDS": {
			opened(eds.StreamEndpoints, func(s endpointservice.EndpointDiscoveryService_StreamEndpointsClient) sotwStream { return s }),
			opened(eds.DeltaEndpoints, func(s endpointservice.EndpointDiscoveryService_DeltaEndpointsClient) deltaStream { return s }),
			func(ctx context.Context) error { _, err := eds.FetchEndpoints(ctx, req); return err },
		},
		"LDS": {
			opened(lds.StreamListeners, func(s listenerservice.ListenerDiscoveryService_StreamListenersClient) sotwStream { return s }),
			opened(lds.DeltaListeners, func(s listenerservice.ListenerDiscoveryService_DeltaListenersClient) deltaStream { return s }),
			func(ctx context.Context) error { _, err := lds.FetchListeners(ctx, req); return err },
		},
		"RDS": {
			opened(rds.StreamRoutes, func(s routeservice.RouteDiscoveryService_StreamRoutesClient) sotwStream { return s }),
			opened(rds.DeltaRoutes, func(s routeservice.RouteDiscoveryService_DeltaRoutesClient) deltaStream { return s }),
			func(ctx context.Context) error { _, err := rds.FetchRoutes(ctx, req); return err },
		},
		"SDS": {
			opened(sds.StreamSecrets, func(s secretservice.SecretDiscoveryService_StreamSecretsClient) sotwStream { return s }),
			opened(sds.DeltaSecrets, func(s secretservice.SecretDiscoveryService_DeltaSecretsClient) deltaStream { return s }),
			func(ctx context.Context) error { _, err := sds.FetchSecrets(ctx, req); return err },
		},
		"ECDS": {
			opened(ecds.StreamExtensionConfigs, func(s extensionservice.ExtensionConfigDiscoveryService_StreamExtensionConfigsClient) sotwStream {
				return s
			}),
			opened(ecds.DeltaExtensionConfigs, func(s extensionservice.ExtensionConfigDiscoveryService_DeltaExtensionConfigsClient) deltaStream {
				return s
			}),
			func(ctx context.Context) error { _, err := ecds.FetchExtensionConfigs(ctx, req); return err },
		},
	}
}

// connectSeparately opens a stream of the service of one type.
func (b *testServer) connectSeparately(conn *grpc.ClientConn, v xdswire.Variant, node, typ string) *client {
	b.t.Helper()
	c := newClient(b.t, v, node)
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	b.t.Cleanup(cancel)
	service := apis(conn)[typ]
	var err error
	if v == xdswire.Delta {
		c.delta, err = service.delta(ctx)
	} else {
		c.sotw, err = service.sotw(ctx)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	go c.receive()
	return c
}

// allTypes returns a mesh with resources of every type, some of them in the proxy's own
// views.
func allTypes() *testMesh {
	w := small().set("CDS", "p", "own", "own:1").set("EDS", "p", "own", "own:1").set("RDS", "shared", "r2", "r2:1")
	return w.set("SDS", "shared", "s", "s:1").set("ECDS", "shared", "x", "x:1")
}

var namesOfTypes = map[string][]string{
	"CDS": nil, "EDS": {"a", "b", "own"}, "LDS": nil, "RDS": {"r", "r2"}, "SDS": {"s"}, "ECDS": {"x"},
}

// serveEverything makes the hub serve all types, including those that other tests do
// not use.
func serveEverything(c *Config, _ *Access) {
	c.Generator = generatorOf(xdswire.SecretType, xdswire.ExtensionType)
}

func TestSeparateStreamsEndAsADS(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, allTypes(), serveEverything)
		conn := b.dial()
		ads := b.connect(v, "p")
		held := map[string]map[string]map[string]string{"ADS": {}, "separate": {}}
		follow := func(how string, c *client, typ string) {
			t.Helper()
			r := c.recv()
			if r.typ != typ {
				t.Fatalf("%s: got %s, want %s", how, r.typ, typ)
			}
			c.ack(r)
			has := held[how][typ]
			if has == nil || v == xdswire.SotW && (typ == "CDS" || typ == "LDS") {
				has = make(map[string]string)
			}
			maps.Copy(has, r.resources)
			for _, name := range r.removed {
				delete(has, name)
			}
			held[how][typ] = has
		}
		order := []string{"CDS", "EDS", "LDS", "RDS", "SDS", "ECDS"}
		separate := make(map[string]*client)
		for _, typ := range order {
			ads.subscribe(typ, namesOfTypes[typ]...)
			follow("ADS", ads, typ)
			separate[typ] = b.connectSeparately(conn, v, "p", typ)
			separate[typ].subscribe(typ, namesOfTypes[typ]...)
			follow("separate", separate[typ], typ)
		}
		for _, typ := range order {
			name := map[string]string{"CDS": "b", "EDS": "b", "LDS": "l", "RDS": "r", "SDS": "s", "ECDS": "x"}[typ]
			b.mesh.set(typ, "shared", name, name+":2")
		}
		b.mesh.set("CDS", "shared", "a", "").set("CDS", "p", "own", "own:2").set("LDS", "shared", "l2", "l2:1")
		// Types whose ACK is still under way would come later than their order.
		b.eventually("all ACKs", func() bool {
			return !slices.ContainsFunc(b.hub.Proxies(), func(p history.Proxy) bool {
				for _, t := range p.Types {
					if t.Acked != t.Sent {
						return true
					}
				}
				return false
			})
		})
		b.push()
		for _, typ := range []string{"CDS", "EDS", "ECDS", "LDS", "RDS", "SDS"} { // extensions before listeners
			follow("ADS", ads, typ)
			follow("separate", separate[typ], typ)
		}
		if v == xdswire.Delta {
			follow("ADS", ads, "CDS") // the removal
		}
		if diff := cmp.Diff(held["ADS"], held["separate"]); diff != "" {
			t.Errorf("separate streams end otherwise than ADS (-ADS +separate):\n%s", diff)
		}
		if got := contents(held["separate"]["CDS"]); got != "b=b:2 own=own:2" {
			t.Errorf("clusters %s", got)
		}
		checkPages(t, b, ads, separate)
	})
}

// checkPages checks the streams on status pages: one of ADS and one of each type.
func checkPages(t *testing.T, b *testServer, ads *client, separate map[string]*client) {
	t.Helper()
	accepted := func() bool {
		for _, p := range b.hub.Proxies() {
			for _, st := range p.Types {
				if st.Acked == "" || st.Acked != st.Sent {
					return false
				}
			}
		}
		return true
	}
	b.eventually("all ACKs", accepted)
	ids := make(map[string]string) // stream id by its types
	versions := make(map[string]string)
	for _, p := range b.hub.Proxies() {
		types := slices.Sorted(maps.Keys(p.Types))
		ids[strings.Join(types, " ")] = p.ID
		for _, typ := range types {
			if v := versions[typ]; v != "" && v != p.Types[typ].Acked {
				t.Errorf("%s: version %s, elsewhere %s", typ, p.Types[typ].Acked, v)
			}
			versions[typ] = p.Types[typ].Acked
		}
	}
	want := map[string]string{
		"CDS ECDS EDS LDS RDS SDS": "p.ns-1",
		"CDS":                      "p.ns-2", "EDS": "p.ns-3", "LDS": "p.ns-4", "RDS": "p.ns-5", "SDS": "p.ns-6", "ECDS": "p.ns-7",
	}
	if diff := cmp.Diff(want, ids); diff != "" {
		t.Errorf("streams on the status page (-want +got):\n%s", diff)
	}
	histories := b.hub.History().History("p.ns")
	if len(histories) != len(want) {
		t.Errorf("the history of the proxy has %d streams, want %d", len(histories), len(want))
	}
	for _, h := range histories {
		for _, push := range h.Pushes {
			if h.Stream != "p.ns-1" && ids[push.Type] != h.Stream {
				t.Errorf("stream %s was sent %s", h.Stream, push.Type)
			}
		}
	}
	ads.cancel()
	for _, c := range separate {
		c.cancel()
	}
	b.eventually("all streams to go", func() bool { return len(b.hub.Proxies()) == 0 })
}

func TestSeparateStreamHasOneType(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, allTypes(), serveEverything)
		conn := b.dial()
		types := slices.Sorted(maps.Keys(namesOfTypes))
		for i, typ := range types {
			other := types[(i+1)%len(types)]
			c := b.connectSeparately(conn, v, "p", typ)
			c.implied = true // requests have no type URL
			c.subscribe(typ, namesOfTypes[typ]...)
			c.ack(c.recv())
			c.implied = false
			c.subscribe(other, "a")
			s := c.status()
			if s.Code() != codes.InvalidArgument || !strings.Contains(s.Message(), urlOf(typ)) || !strings.Contains(s.Message(), urlOf(other)) {
				t.Errorf("%s asked for on a stream for %s: got %v", other, typ, s)
			}
			first := b.connectSeparately(conn, v, "p", typ)
			first.subscribe(other, "a")
			if s := first.status(); s.Code() != codes.InvalidArgument {
				t.Errorf("%s asked for first on a stream for %s: got %v", other, typ, s)
			}
		}
		if n, want := b.metric("meshctl_xds_rejected_streams_total", ""), float64(2*len(types)); n != want {
			t.Errorf("%v streams counted as refused, want %v", n, want)
		}
	})
}

func TestFetchIsNotServed(t *testing.T) {
	b := startServer(t, small())
	for typ, service := range apis(b.dial()) {
		if err := service.fetch(t.Context()); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: got %v, want Unimplemented", typ, err)
		}
	}
}

func TestSeparateStreamsAuthenticate(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small(), func(_ *Config, a *Access) {
			a.Authenticate = func(context.Context) (mesh.Caller, error) { return mesh.Caller{}, errors.New("no credentials") }
		})
		conn := b.dial()
		for typ := range namesOfTypes {
			c := b.connectSeparately(conn, v, "p", typ)
			c.subscribe(typ)
			if s := c.status(); s.Code() != codes.Unauthenticated {
				t.Errorf("%s: got %v, want Unauthenticated", typ, s)
			}
		}
	})
}
