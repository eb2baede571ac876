package relay

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// lastReport bounds the wait, at the end, until the control plane has taken the last health
// report.
const lastReport = time.Second

// Stream is the agent's own xDS stream. It receives resources for handlers, where no stream
// of Envoy passes through a relay, and reports the health of the workload. All fields but
// Handlers or Health are needed.
type Stream struct {
	Call     Call
	Node     mesh.NodeID
	Metadata map[string]any
	// Handlers take the resources of types by URL, to which the stream subscribes.
	Handlers map[string]Handler
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
	retry(ctx, s.Rand.Float64, func(ctx context.Context) (worked bool, err error) {
		opened := s.Now()
		err = s.Call(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
			return s.converse(ctx, conn, &last)
		})
		return s.Now().Sub(opened) > maxRetry, err // health has no responses
	}, func(err error, _ time.Duration) {
		s.Log.Warn("the agent has no stream to the control plane at the moment: known resources stay, health is reported later", "error", err)
	})
	return nil
}

// conversation is one opened stream. Only the goroutine that made it sends.
type conversation struct {
	*Stream
	stream    discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	responses <-chan received   // closed after the first with an error
	accepted  map[string]string // versions by type
}

type received struct {
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
	responses := make(chan received)
	go receive(streaming, stream, responses)
	c := &conversation{Stream: s, stream: stream, responses: responses, accepted: map[string]string{}}
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
func receive(ctx context.Context, stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient, responses chan<- received) {
	defer close(responses)
	for {
		r, err := stream.Recv()
		select {
		case responses <- received{r, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// begin sends the node and the last health report. The control plane takes health only
// after a request: for the types of the handlers, or for nothing.
func (c *conversation) begin(last *string) error {
	metadata, err := structpb.NewStruct(c.Metadata)
	if err != nil {
		return fmt.Errorf("node metadata: %w", err)
	}
	types := slices.Sorted(maps.Keys(c.Handlers))
	if len(types) == 0 {
		types = []string{xdswire.ExtensionType}
	}
	node := &corev3.Node{Id: c.Node.String(), Metadata: metadata}
	for _, typeURL := range types {
		if err := c.send(&discoveryv3.DiscoveryRequest{Node: node, TypeUrl: typeURL}); err != nil {
			return err
		}
		node = nil
	}
	if last == nil {
		return nil
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
	handler := c.Handlers[r.GetTypeUrl()]
	if handler == nil {
		return c.send(reply)
	}
	if err := handler.Handle(r.GetTypeUrl(), r.GetResources()); err != nil {
		reply.VersionInfo = c.accepted[r.GetTypeUrl()]
		reply.ErrorDetail = refusal(c.Log, r.GetTypeUrl(), err)
		return c.send(reply)
	}
	c.accepted[r.GetTypeUrl()] = r.GetVersionInfo()
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
