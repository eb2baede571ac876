// Package trustbundle follows the roots of the mesh, as the control plane tells of
// them (PCDS).
package trustbundle

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

const (
	maxRoots = 1000
	minRetry = time.Second
	maxRetry = 30 * time.Second
)

// Config says whose roots are followed. All fields are needed.
type Config struct {
	// Call makes a call to the control plane as the workload.
	Call     func(context.Context, func(context.Context, grpc.ClientConnInterface) error) error
	Node     mesh.NodeID
	Metadata map[string]any
	// Use is told of the roots, of all each time.
	Use  func([]*x509.Certificate) error
	Log  *slog.Logger
	Rand *rand.Rand
}

// Run follows the roots until ctx ends. A stream that ends is opened again, after
// a while that grows with failures. It returns nil.
func (c *Config) Run(ctx context.Context) error {
	wait := minRetry
	for {
		told := false
		err := c.Call(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
			return c.follow(ctx, conn, &told)
		})
		if told {
			wait = minRetry
		}
		if ctx.Err() == nil {
			c.Log.Warn("the control plane does not tell of roots at the moment, those that are known stay", "error", err)
		}
		timer := time.NewTimer(wait/2 + time.Duration(c.Rand.Float64()*float64(wait/2)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		wait = min(2*wait, maxRetry)
	}
}

// follow reads one stream until it ends. told is set when roots came.
func (c *Config) follow(ctx context.Context, conn grpc.ClientConnInterface, told *bool) error {
	metadata, err := structpb.NewStruct(c.Metadata)
	if err != nil {
		return fmt.Errorf("node metadata: %w", err)
	}
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	request := &discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: c.Node.String(), Metadata: metadata}, TypeUrl: xdswire.ProxyConfigType,
	}
	accepted := ""
	for {
		if err := stream.Send(request); err != nil {
			_, err = stream.Recv() // which says why
			return err
		}
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		request = &discoveryv3.DiscoveryRequest{
			TypeUrl: xdswire.ProxyConfigType, VersionInfo: accepted, ResponseNonce: answer.GetNonce(),
		}
		roots, err := rootsOf(answer.GetResources())
		if err != nil {
			c.Log.Error("the control plane's roots cannot be used, those that are known stay", "error", err)
			request.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
			continue
		}
		if err := c.Use(roots); err != nil {
			return fmt.Errorf("use the roots: %w", err)
		}
		*told, accepted = true, answer.GetVersionInfo()
		request.VersionInfo = accepted
		c.Log.Info("the control plane told of roots", "roots", len(roots))
	}
}

// rootsOf takes the roots out of an answer.
func rootsOf(resources []*anypb.Any) ([]*x509.Certificate, error) {
	if len(resources) == 0 {
		return nil, errors.New("there are none")
	}
	var m meshv1alpha1.ProxyConfig
	if err := resources[0].UnmarshalTo(&m); err != nil {
		return nil, err
	}
	var roots []*x509.Certificate
	for i, text := range m.GetCaCertificatesPem() {
		parsed, err := certs.ParseCerts([]byte(text))
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", i+1, err)
		}
		for _, r := range parsed {
			if !r.BasicConstraintsValid || !r.IsCA {
				return nil, fmt.Errorf("certificate %d, %s, is no CA's", i+1, r.Subject)
			}
		}
		if roots = append(roots, parsed...); len(roots) > maxRoots {
			return nil, fmt.Errorf("there are more than %d", maxRoots)
		}
	}
	if len(roots) == 0 {
		return nil, errors.New("there are none")
	}
	return roots, nil
}
