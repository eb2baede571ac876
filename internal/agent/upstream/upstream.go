// Package upstream is the agent's own xDS stream to the control plane, beside that of
// its Envoy: the control plane tells of the roots of the mesh (PCDS) there, and is told
// of the health of the workload.
package upstream

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"math/rand/v2"
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

const (
	minRetry = time.Second
	maxRetry = 30 * time.Second
	// lastWord bounds how long the control plane has at the end to take what it is
	// told.
	lastWord = time.Second
)

// Config says what goes over the stream. All fields are needed but Roots or Health.
type Config struct {
	// Call makes a call to the control plane as the workload.
	Call     func(context.Context, func(context.Context, grpc.ClientConnInterface) error) error
	Node     mesh.NodeID
	Metadata map[string]any
	// Roots is told of the roots of the mesh, of all each time. nil asks for none.
	Roots func([]*x509.Certificate) error
	// Health has what is wrong with the workload, "" when it is healthy, at each
	// change. nil tells nothing.
	Health <-chan string
	Log    *slog.Logger
	Rand   *rand.Rand
	Now    func() time.Time
}

// Run keeps a stream open until ctx ends. One that ends is opened again, after a while
// that grows when that happens soon; the health that was told last is told anew.
// What Health has when ctx ends is told before. It returns nil.
func (c *Config) Run(ctx context.Context) error {
	var last *string // the health of the workload
	wait := minRetry
	for {
		opened := c.Now()
		err := c.Call(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
			return c.converse(ctx, conn, &last)
		})
		if c.Now().Sub(opened) > wait {
			wait = minRetry
		}
		if ctx.Err() == nil {
			c.Log.Warn("the agent has no stream to the control plane at the moment: known roots stay, health is told later", "error", err)
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

// conversation is one stream. Only the goroutine that made it sends.
type conversation struct {
	*Config
	stream   discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	answers  <-chan answer // closed after the first with an error
	accepted string        // version of the roots
}

type answer struct {
	*discoveryv3.DiscoveryResponse
	err error
}

// converse opens a stream and keeps it until it, or ctx, ends. last is the health to
// begin with, nil for none, and then what is told.
func (c *Config) converse(ctx context.Context, conn grpc.ClientConnInterface, last **string) error {
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
		case <-time.After(lastWord):
			cancel()
		}
	})()
	answers := make(chan answer)
	go receive(streaming, stream, answers)
	talk := &conversation{Config: c, stream: stream, answers: answers}
	err = talk.introduce(*last)
	for err == nil {
		select {
		case a, open := <-answers:
			if !open {
				return nil
			}
			if err = a.err; err == nil {
				err = talk.take(a.DiscoveryResponse)
			}
		case problem := <-c.Health:
			*last = &problem
			err = talk.tell(problem)
		case <-ctx.Done():
			return talk.end()
		}
	}
	return err
}

// receive passes on what the control plane sends until the stream ends.
func receive(ctx context.Context, stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient, answers chan<- answer) {
	defer close(answers)
	for {
		r, err := stream.Recv()
		select {
		case answers <- answer{r, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// introduce says who the workload is and how it is. The control plane wants a request
// before it takes health: it is for the roots, or for nothing.
func (c *conversation) introduce(last *string) error {
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
	return c.tell(*last)
}

// tell says how the workload is.
func (c *conversation) tell(problem string) error {
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
	for a := range c.answers { // the last of which says why
		if a.err != nil {
			return a.err
		}
	}
	return nil
}

// take uses an answer, and says whether that went well.
func (c *conversation) take(r *discoveryv3.DiscoveryResponse) error {
	reply := &discoveryv3.DiscoveryRequest{
		TypeUrl: r.GetTypeUrl(), VersionInfo: r.GetVersionInfo(), ResponseNonce: r.GetNonce(),
	}
	if r.GetTypeUrl() != xdswire.ProxyConfigType || c.Roots == nil {
		return c.send(reply)
	}
	roots, err := rootsOf(r.GetResources())
	if err != nil {
		c.Log.Error("the control plane's roots cannot be used, those that are known stay", "error", err)
		reply.VersionInfo = c.accepted
		reply.ErrorDetail = &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: err.Error()}
		return c.send(reply)
	}
	if err := c.Roots(roots); err != nil {
		return fmt.Errorf("use the roots: %w", err)
	}
	c.accepted = r.GetVersionInfo()
	c.Log.Info("the control plane told of roots", "roots", len(roots))
	return c.send(reply)
}

// end tells the last of the health, and waits until the control plane has taken it.
func (c *conversation) end() error {
	select {
	case problem := <-c.Health:
		if err := c.tell(problem); err != nil {
			return err
		}
	default:
	}
	if err := c.stream.CloseSend(); err != nil {
		return err
	}
	for range c.answers { // the control plane ends the stream when it has taken all
		continue
	}
	return nil
}
