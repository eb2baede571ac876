package server

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestForwardedCertificate: only a gateway at a trusted address may forward the certificate
// of its client. The gateway connects over TLS without a certificate of its own.
func TestForwardedCertificate(t *testing.T) {
	t.Parallel()
	web := "By=spiffe://cluster.local/ns/edge/sa/gateway;Hash=ab;URI=spiffe://cluster.local/ns/apps/sa/web"
	for name, tc := range map[string]struct {
		trusted, header string
		want            codes.Code
	}{
		"from the range":          {"127.0.0.0/8", web, codes.OK},
		"from outside of it":      {"10.0.0.0/8", web, codes.Unauthenticated},
		"nobody is trusted":       {"", web, codes.Unauthenticated},
		"without the header":      {"127.0.0.0/8", "", codes.Unauthenticated},
		"of another trust domain": {"127.0.0.0/8", "URI=spiffe://b.example/ns/apps/sa/web", codes.PermissionDenied},
		"of another namespace":    {"127.0.0.0/8", "URI=spiffe://cluster.local/ns/other/sa/web", codes.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, func(c *Config) {
				if tc.trusted != "" {
					c.XFCCSources = []netip.Prefix{netip.MustParsePrefix(tc.trusted)}
				}
			})
			err := forwarded(t, s, tc.header, node(t, webNode, nil))
			if status.Code(err) != tc.want {
				t.Errorf("error is %v, want %s", err, tc.want)
			}
		})
	}
}

// forwarded asks for configuration without credentials, with a gateway's header about its
// client. It returns nil if it was answered.
func forwarded(t *testing.T, s *Server, header string, as *corev3.Node) error {
	t.Helper()
	cfg := clientTLS(t, s)
	cfg.Certificates = nil
	conn, err := grpc.NewClient(s.secure.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(cfg)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx := t.Context()
	if header != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-forwarded-client-cert", header)
	}
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	// io.EOF: the stream has ended already, and Recv returns why.
	if err := stream.Send(&discoveryv3.DiscoveryRequest{Node: as, TypeUrl: xdswire.ClusterType}); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("send: %w", err)
	}
	_, err = stream.Recv()
	return err
}
