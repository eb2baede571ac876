// Package replicas asks control planes, of meshctl or of Istio, for status pages
// over xDS: by Istio's debug types, on their port with TLS.
package replicas

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/internal/xdswire"
)

const (
	// nodeID and generator are the values that Istio's tools send.
	nodeID    = "debug~0.0.0.0~istioctl~cluster.local"
	generator = "event"
	synczType = xdswire.DebugType + "/syncz"
	// proxiesPage is meshctl's page with more than syncz has.
	proxiesPage = "xds/proxies"
	// maxAnswer bounds one response, in bytes.
	maxAnswer = 256 << 20
)

// XDSConfig configures an XDSClient. The caller proves itself by Token, by a
// certificate in TLS, or by both.
type XDSConfig struct {
	Address string // host:port
	TLS     *tls.Config
	Token   string
	// Timeout bounds a whole call of Page or Proxies. Proxies may send two requests.
	Timeout time.Duration
	Now     func() time.Time
}

// XDSClient reads status pages of one control plane, of meshctl or Istio, by Istio's
// debug types on the port with TLS. It is safe for concurrent use.
type XDSClient struct {
	cfg  XDSConfig
	conn *grpc.ClientConn
}

// NewXDS returns a client. It does not connect yet.
func NewXDS(cfg XDSConfig) (*XDSClient, error) {
	if _, _, err := net.SplitHostPort(cfg.Address); err != nil {
		return nil, fmt.Errorf("%q: want host:port", cfg.Address)
	}
	conn, err := dial.GRPC("passthrough:"+cfg.Address, cfg.TLS, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return nil, fmt.Errorf("%q: %w", cfg.Address, err)
	}
	return &XDSClient{cfg, conn}, nil
}

// Close ends the connection.
func (c *XDSClient) Close() { _ = c.conn.Close() } // it only fails when it is closed

// Page returns the body of a status page, by the path and query after /debug/ over
// HTTP. Control planes, also Istio's, return the text of an error for a page that they
// do not have.
func (c *XDSClient) Page(ctx context.Context, page string) ([]byte, error) {
	answer, err := c.ask(ctx, xdswire.DebugType, page)
	if err != nil {
		return nil, err
	}
	if n := len(answer.GetResources()); n != 1 {
		return nil, fmt.Errorf("answered with %d pages, want 1", n)
	}
	return answer.GetResources()[0].GetValue(), nil
}

// Proxies returns the state of the proxies. It asks for the page of meshctl, and for
// syncz if the control plane is not meshctl's or refuses the page.
func (c *XDSClient) Proxies(ctx context.Context) (*proxystatus.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	page, err := c.Page(ctx, proxiesPage)
	switch told := (*XDSError)(nil); {
	case err == nil:
		report := &proxystatus.Report{}
		if json.Unmarshal(page, report) == nil && report.Proxies != nil {
			return report, nil
		}
	case !errors.As(err, &told) || told.final():
		return nil, err
	}
	answer, err := c.ask(ctx, synczType)
	if err != nil {
		return nil, err
	}
	return reportOf(answer, c.cfg.Now())
}

// ask sends one request on its own stream, as Istio's tools do.
func (c *XDSClient) ask(ctx context.Context, typeURL string, names ...string) (*discoveryv3.DiscoveryResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	if c.cfg.Token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.cfg.Token)
	}
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(c.conn).StreamAggregatedResources(ctx)
	if err != nil {
		return nil, &XDSError{status.Convert(err)}
	}
	_ = stream.Send(&discoveryv3.DiscoveryRequest{ // Recv returns why it failed
		Node: &corev3.Node{Id: nodeID, Metadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			"GENERATOR": structpb.NewStringValue(generator),
		}}},
		TypeUrl: typeURL, ResourceNames: names,
	})
	answer, err := stream.Recv()
	if err != nil {
		return nil, &XDSError{status.Convert(err)}
	}
	return answer, nil
}

// XDSError is the reason why a control plane did not answer.
type XDSError struct{ status *status.Status }

// Error returns the reason, and what to do about it.
func (e *XDSError) Error() string {
	text := e.status.Message()
	switch e.status.Code() {
	case codes.Unauthenticated:
		return text + "; it wants the token or the certificate of an identity of the mesh"
	case codes.PermissionDenied:
		return text + "; identities of the system namespace may see all"
	case codes.Unavailable:
		// gRPC adds the address around the reason.
		text = strings.TrimSuffix(strings.TrimPrefix(text, `connection error: desc = "`), `"`)
	case codes.DeadlineExceeded:
		text = "no answer in time"
	}
	return text
}

// Untrusted reports whether the certificate of the control plane was not accepted.
func (e *XDSError) Untrusted() bool {
	return e.status.Code() == codes.Unavailable && strings.Contains(e.status.Message(), "failed to verify certificate")
}

// final reports whether another request would fail as well.
func (e *XDSError) final() bool {
	return slices.Contains([]codes.Code{codes.Unauthenticated, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled}, e.status.Code())
}
