package routes

import (
	"fmt"
	"testing"
	"unique"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestEncodedVirtualHost compares the encoding of virtual hosts without a VirtualService with the
// message.
func TestEncodedVirtualHost(t *testing.T) {
	hosts := newVirtualHosts(new(xdswire.Encoder), 0)
	long := make([]string, 300)
	for i := range long {
		long[i] = fmt.Sprintf("name-%d.example.com", i)
	}
	for _, protocol := range []mesh.Protocol{mesh.HTTP, mesh.HTTP2} {
		for _, retries := range []snapshot.RetryPolicy{{}, {Off: true}, {SameHosts: true, Attempts: 7}} {
			for _, domains := range [][]string{{"*"}, {"a", "b.c"}, long} {
				k := &hostKey{
					service: &snapshot.MeshService{Host: "a.b.svc.cluster.local"},
					port:    &snapshot.ServicePort{Number: 8080, Protocol: protocol},
					client:  unique.Make(hostClient{retries: retries}),
				}
				part, err := hosts.encode(k, domains)
				if err != nil {
					t.Fatal(err)
				}
				var g wire.Generator
				want, got := &routev3.RouteConfiguration{}, new(routev3.RouteConfiguration)
				// The message has encoded parts.
				wire, err := xdswire.Marshal(&routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{encodeVirtualHost(&g, k, domains)}})
				if err != nil || g.Err != nil {
					t.Fatal(err, g.Err)
				}
				if err := proto.Unmarshal(wire, want); err != nil {
					t.Fatal(err)
				}
				if err := proto.Unmarshal(part.Wire(), got); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
					t.Errorf("%v, %+v, %d domains: the encoding differs from the message (-want +got):\n%s", protocol, retries, len(domains), diff)
				}
			}
		}
	}
}

// TestDomainsInLowerCase: Envoy compares domains without regard to case, so a list has each once.
func TestDomainsInLowerCase(t *testing.T) {
	k := &hostKey{service: &snapshot.MeshService{Host: "Shop.Example.COM", Entry: true}, client: unique.Make(hostClient{})}
	if diff := cmp.Diff([]string{"shop.example.com", "shop.example.com."}, k.appendDomains(nil)); diff != "" {
		t.Error(diff)
	}
}
