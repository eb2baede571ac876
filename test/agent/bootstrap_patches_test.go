package agent

import (
	"strings"
	"sync/atomic"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/harness"
)

// patching is a control plane with a patch of the bootstrap. It is away for the first streams of
// the agent.
type patching struct {
	controlPlane
	patch   *anypb.Any
	away    int64
	streams atomic.Int64
	answers chan *discoveryv3.DiscoveryRequest
}

func newPatching(t *testing.T, away int64, patch string) *patching {
	t.Helper()
	p := &patching{patch: &anypb.Any{}, away: away, answers: make(chan *discoveryv3.DiscoveryRequest, 10)}
	if err := protojson.Unmarshal([]byte(`{"@type": "`+xdswire.BootstrapType+`", `+patch), p.patch); err != nil {
		t.Fatal(err)
	}
	return p
}

// StreamAggregatedResources sends the patch. Envoy's stream is the other one.
func (p *patching) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	if p.streams.Add(1) <= p.away {
		return status.Error(codes.Unavailable, "server is not ready")
	}
	p.notePeer(stream.Context())
	for {
		r, err := stream.Recv()
		switch {
		case err != nil:
			return nil
		case r.GetResponseNonce() != "":
			p.answers <- r
		case r.GetTypeUrl() == xdswire.BootstrapType:
			if err := stream.Send(&discoveryv3.DiscoveryResponse{TypeUrl: r.GetTypeUrl(), VersionInfo: "1", Nonce: "n", Resources: []*anypb.Any{p.patch}}); err != nil {
				return err
			}
		}
	}
}

// TestBootstrapPatches: the agent waits until the control plane has come, and starts Envoy with the
// patches of the bootstrap.
func TestBootstrapPatches(t *testing.T) {
	for _, direct := range []string{"false", "true"} {
		t.Run("no-relay="+direct, func(t *testing.T) {
			ca := certstest.NewIstioCA(t)
			plane := newPatching(t, 2, `"stats_flush_interval": "3s", "static_resources": {"clusters": [{"name": "patched", "connect_timeout": "1s"}]}}`)
			ca.Serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, plane) })
			flags := flagsFor(t, ca, harness.ShortDir(t))
			flags.NoRelay = direct
			a := start(t, flags, "BOOTSTRAP_XDS_AGENT=true")
			a.waitReady(t)
			if r := <-plane.answers; r.GetErrorDetail() != nil || r.GetVersionInfo() != "1" {
				t.Errorf("the agent answers the patch with %v, want an ACK", r)
			}
			if got, want := plane.peerURI(), certstest.Identity().String(); got != want {
				t.Errorf("the control plane saw %q, want the workload's certificate of %q", got, want)
			}
			if dump := a.get(t, 15000, "/config_dump?mask=bootstrap"); !strings.Contains(dump, `"stats_flush_interval": "3s"`) {
				t.Errorf("the bootstrap of Envoy lacks the patch: %s", dump)
			}
			if clusters := a.get(t, 15000, "/clusters"); !strings.Contains(clusters, "patched::") {
				t.Errorf("Envoy lacks the cluster of the patch: %s", clusters)
			}
		})
	}
}

// TestRefusedBootstrapPatch: the agent refuses a patch of a part that it needs itself, and starts no Envoy.
func TestRefusedBootstrapPatch(t *testing.T) {
	ca := certstest.NewIstioCA(t)
	plane := newPatching(t, 0, `"node": {"id": "other"}}`)
	ca.Serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, plane) })
	const want = "patches of the bootstrap from the control plane: node belongs to the agent"
	err := start(t, flagsFor(t, ca, harness.ShortDir(t)), "BOOTSTRAP_XDS_AGENT=true").ended(t)
	if err == nil || !strings.Contains(err.Error(), want) || !strings.HasSuffix(err.Error(), ": BOOTSTRAP_XDS_AGENT=false") {
		t.Errorf("agent ended with %v", err)
	}
	if r := <-plane.answers; !strings.Contains(r.GetErrorDetail().GetMessage(), want) || r.GetVersionInfo() != "" {
		t.Errorf("the agent answers the patch with %v, want a NACK", r)
	}
}
