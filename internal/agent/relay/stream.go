package relay

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
	minRetry = time.Second
	maxRetry = 30 * time.Second
	// lastReport bounds the wait, at the end, until the control plane has taken the
	// last health report.
	lastReport = time.Second
	maxRoots   = 1000
)

// Stream is the agent's own xDS stream. It receives the roots of the mesh (PCDS) and
// reports the health of the workload. All fields but Roots or Health are needed.
type Stream struct {
	Call     Call
	Node     mesh.NodeID
	Metadata map[string]any
	// Roots is called with all roots of the mesh at each change. nil subscribes to none.
	Roots func([]*x509.Certificate) error
	// Health receives, at each change, the problem of the workload, or "" when it is
	// healthy. nil reports nothing.
	Health <-chan string
	Log    *slog.Logger
	Rand   *rand.Rand
	Now    func() time.Time
}

// Run keeps a stream open until ctx ends, and returns nil. It opens a stream that ended
// again, with a backoff, and repeats the last health report on it. A report that Health
// holds when ctx ends is still sent.
func (s *Stream) Run(ctx context.Context) error {
	var last *string // the last health report
	wait := minRetry
	for {
		opened := s.Now()
		err := s.Call(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
			return s.converse(ctx, conn, &last)
		})
		if s.Now().Sub(opened) > wait {
			wait = minRetry
		}
		if ctx.Err() == nil {
			s.Log.Warn("the agent has no stream to the control plane at the moment: known roots stay, health is reported later", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait/2 + time.Duration(s.Rand.Float64()*float64(wait/2))):
		}
		wait = min(2*wait, maxRetry)
	}
}

// conversation is one opened stream. Only the goroutine that made it sends.
type conversation struct {
	*Stream
	stream    discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	responses <-chan response // closed after the first with an error
	accepted  string          // version of the roots
}

type response struct {
	*discoveryv3.DiscoveryResponse
	err error
}

// converse opens a stream and keeps it until the stream or ctx ends. last points to the
// last health report, nil for none, and is kept up to date.
func (s *Stream) converse(ctx context.Context, conn grpc.ClientConnInterface, last **string) error {
	streaming, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	opening := context.AfterFunc(ctx, cancel)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(streaming)
	if err != nil {
		return err
	}
	if !opening() {
		return ctx.Err()
	}
	defer context.AfterFunc(ctx, func() {
		select {
		case <-streaming.Done():
		case <-time.After(lastReport):
			cancel()
		}
	})()
	responses := make(chan response)
	go receive(streaming, stream, responses)
	c := &conversation{Stream: s, stream: stream, responses: responses}
	err = c.begin(*last)
	for err == nil {
		select {
		case r, open := <-responses:
			if !open {
				return nil
			}
			if err = r.err; err == nil {
				err = c.take(r.DiscoveryResponse)
			}
		case problem := <-s.Health:
			*last = &problem
			err = c.report(problem)
		case <-ctx.Done():
			return c.end()
		}
	}
	return err
}

// receive passes on responses until the stream ends.
func receive(ctx context.Context, stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient, responses chan<- response) {
	defer close(responses)
	for {
		r, err := stream.Recv()
		select {
		case responses <- response{r, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// begin sends the node and the last health report. The control plane takes health only
// after a request: for the roots, or for nothing.
func (c *conversation) begin(last *string) error {
	metadata, err := structpb.NewStruct(c.Metadata)
	if err != nil {
		return fmt.Errorf("node metadata: %w", err)
	}
	first := &discoveryv3.DiscoveryRequest{
		Node: &corev3.Node{Id: c.Node.String(), Metadata: metadata}, TypeUrl: xdswire.ExtensionType,
	}
	if c.Roots != nil {
		first.TypeUrl = xdswire.ProxyConfigType
	}
	if err := c.send(first); err != nil || last == nil {
		return err
	}
	return c.report(*last)
}

func (c *conversation) report(problem string) error {
	r := &discoveryv3.DiscoveryRequest{TypeUrl: xdswire.HealthType}
	if problem != "" {
		r.ErrorDetail = &rpcstatus.Status{Code: int32(codes.Internal), Message: problem}
	}
	return c.send(r)
}

func (c *conversation) send(r *discoveryv3.DiscoveryRequest) error {
	if err := c.stream.Send(r); err == nil {
		return nil
	}
	for r := range c.responses { // the last one has the cause
		if r.err != nil {
			return r.err
		}
	}
	return nil
}

// take uses a response, and accepts or refuses it.
func (c *conversation) take(r *discoveryv3.DiscoveryResponse) error {
	reply := &discoveryv3.DiscoveryRequest{
		TypeUrl: r.GetTypeUrl(), VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce(),
	}
	if r.GetTypeUrl() != xdswire.ProxyConfigType || c.Roots == nil {
		return c.send(reply)
	}
	roots, err := rootsOf(r.GetResources())
	if err != nil {
		c.Log.Error("the roots from the control plane cannot be used, the known roots stay", "error", err)
		reply.VersionInfo = c.accepted
		reply.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
		return c.send(reply)
	}
	if err := c.Roots(roots); err != nil {
		return fmt.Errorf("use the roots: %w", err)
	}
	c.accepted = r.GetVersionInfo()
	c.Log.Info("received roots from the control plane", "roots", len(roots))
	return c.send(reply)
}

// end sends the last health report and waits until the control plane has taken it.
func (c *conversation) end() error {
	select {
	case problem := <-c.Health:
		if err := c.report(problem); err != nil {
			return err
		}
	default:
	}
	if err := c.stream.CloseSend(); err != nil {
		return err
	}
	for range c.responses { // the control plane ends the stream when it has taken everything
		continue
	}
	return nil
}

// rootsOf returns the roots in a PCDS response.
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
