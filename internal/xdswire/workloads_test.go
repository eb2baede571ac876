package xdswire

import (
	"fmt"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
)

// TestWorkloadsOfIdentities: a described workload survives its encoding, and the answer for as many
// identities as a request may have is at most 400 KB.
func TestWorkloadsOfIdentities(t *testing.T) {
	t.Parallel()
	answer := &discoveryv3.DiscoveryResponse{}
	for i := range MaxWorkloads {
		name := fmt.Sprintf("recommendations-%d", i)
		identity := "spiffe://cluster.local/ns/production/sa/" + name
		want := mesh.WorkloadLabels{Name: name, Service: name, Revision: "v1", App: name, Version: "v1", Cluster: "cluster1"}
		if i == 0 {
			want.Version, want.Cluster = "", ""
		}
		body, err := EncodeWorkload(identity, want)
		if err != nil {
			t.Fatal(err)
		}
		if of, got, err := DecodeWorkload(body); err != nil || of != identity || got != want {
			t.Fatalf("%s %+v %v, want %+v", of, got, err, want)
		}
		answer.Resources = append(answer.Resources, body)
	}
	size := proto.Size(answer)
	t.Logf("%d identities: %d bytes", MaxWorkloads, size)
	if size > 400_000 {
		t.Errorf("%d bytes", size)
	}
}
