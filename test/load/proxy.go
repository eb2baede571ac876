package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// proxy is a simulated Envoy on a connection of its own: it subscribes as
// Envoy does and acknowledges everything. Bodies are not decoded, so that the
// load costs little beside the server.
type proxy struct {
	conn   *grpc.ClientConn
	stream grpc.ClientStream
	sotw   bool
	bytes  atomic.Int64
	cancel context.CancelFunc

	mu       sync.Mutex
	err      error
	have     map[string]map[string]struct{} // names by type
	progress chan struct{}                  // closed and replaced when have grew
	arrived  chan time.Time                 // gets the time of the next EDS frame
	waiting  bool                           // for that frame
}

// rawFrame is a response as it came, undecoded.
type rawFrame []byte

func connect(ctx context.Context, addr string, number int, sotw bool) (*proxy, error) {
	ctx, cancel := context.WithCancel(ctx)
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		cancel()
		return nil, err
	}
	p := &proxy{
		conn: conn, sotw: sotw, cancel: cancel, progress: make(chan struct{}),
		have: make(map[string]map[string]struct{}),
	}
	method := "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
	if sotw {
		method = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
	}
	p.stream, err = conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		p.close()
		return nil, err
	}
	node, err := simulatedNode(number)
	if err != nil {
		p.close()
		return nil, err
	}
	if err := p.request(xdswire.ClusterType, node, nil, "", ""); err != nil {
		p.close()
		return nil, err
	}
	go p.receive()
	return p, nil
}

func simulatedNode(number int) (*corev3.Node, error) {
	ns := fmt.Sprintf("load-%d", number%10)
	md, err := structpb.NewStruct(map[string]any{"CLUSTER_ID": "Kubernetes", "NAMESPACE": ns})
	if err != nil {
		return nil, err
	}
	return &corev3.Node{
		Id:       fmt.Sprintf("sidecar~10.200.%d.%d~proxy-%d.%s~%s.svc.cluster.local", number/250, number%250+1, number, ns, ns),
		Metadata: md,
	}, nil
}

func (p *proxy) close() {
	p.cancel()
	_ = p.conn.Close()
}

// request sends a subscription, or an ACK when nonce is set.
func (p *proxy) request(typ string, node *corev3.Node, names []string, nonce, version string) error {
	if p.sotw {
		return p.stream.SendMsg(&discoveryv3.DiscoveryRequest{
			Node: node, TypeUrl: typ, ResourceNames: names, ResponseNonce: nonce, VersionInfo: version,
		})
	}
	return p.stream.SendMsg(&discoveryv3.DeltaDiscoveryRequest{
		Node: node, TypeUrl: typ, ResourceNamesSubscribe: names, ResponseNonce: nonce,
	})
}

// receive acknowledges what comes, and asks for what follows from it:
// assignments of clusters, routes of listeners.
func (p *proxy) receive() {
	asked := make(map[string][]string)
	for {
		var frame rawFrame
		if err := p.stream.RecvMsg(&frame); err != nil {
			p.fail(err)
			return
		}
		now := time.Now()
		p.bytes.Add(int64(len(frame)))
		r, err := parseFrame(frame, p.sotw)
		if err == nil {
			// Envoy names in every request of state of the world what it wants.
			ackNames := asked[r.typ]
			if !p.sotw {
				ackNames = nil
			}
			err = p.request(r.typ, nil, ackNames, r.nonce, r.version)
		}
		if err == nil {
			err = p.follow(r, asked)
		}
		if err != nil {
			p.fail(err)
			return
		}
		p.note(r, now)
	}
}

func (p *proxy) follow(r response, asked map[string][]string) error {
	subscribe := func(typ string, names []string) error {
		if len(names) == 0 || asked[typ] != nil {
			return nil
		}
		asked[typ] = names
		return p.request(typ, nil, names, "", "")
	}
	switch r.typ {
	case xdswire.ClusterType:
		var names []string
		for _, n := range r.names {
			if strings.HasPrefix(n, "outbound|") {
				names = append(names, n)
			}
		}
		if asked[xdswire.ListenerType] == nil {
			asked[xdswire.ListenerType] = []string{}
			if err := p.request(xdswire.ListenerType, nil, nil, "", ""); err != nil {
				return err
			}
		}
		return subscribe(xdswire.EndpointType, names)
	case xdswire.ListenerType:
		var names []string
		for _, n := range r.names {
			if port, ok := strings.CutPrefix(n, "0.0.0.0_"); ok {
				names = append(names, port)
			}
		}
		return subscribe(xdswire.RouteType, names)
	}
	return nil
}

func (p *proxy) note(r response, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	have := p.have[r.typ]
	if have == nil {
		have = make(map[string]struct{})
		p.have[r.typ] = have
	}
	for _, n := range r.names {
		have[n] = struct{}{}
	}
	if r.typ == xdswire.EndpointType && p.waiting {
		p.arrived <- now
		p.waiting = false
	}
	close(p.progress)
	p.progress = make(chan struct{})
}

func (p *proxy) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	close(p.progress)
	p.progress = make(chan struct{})
}

// complete waits until the proxy has the assignments of all services, and
// listeners and routes.
func (p *proxy) complete(ctx context.Context, services int) error {
	for {
		p.mu.Lock()
		err, progress := p.err, p.progress
		done := len(p.have[xdswire.EndpointType]) >= services && len(p.have[xdswire.RouteType]) > 0
		p.mu.Unlock()
		if done {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-progress:
		}
	}
}

// expect makes the proxy note when its next EDS frame arrives.
func (p *proxy) expect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrived, p.waiting = make(chan time.Time, 1), true
}

func (p *proxy) changed(ctx context.Context) (time.Time, error) {
	p.mu.Lock()
	arrived, err := p.arrived, p.err
	p.mu.Unlock()
	if err != nil {
		return time.Time{}, err
	}
	select {
	case at := <-arrived:
		return at, nil
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	case <-time.After(time.Minute):
		return time.Time{}, errors.New("no assignment came within a minute")
	}
}

// response is what is read of a frame.
type response struct {
	typ, nonce, version string
	names               []string
}

// parseFrame reads names and nonce of a DiscoveryResponse or
// DeltaDiscoveryResponse, whose fields 2, 4 and 5 have the same meaning.
func parseFrame(b []byte, sotw bool) (response, error) {
	var r response
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return r, protowire.ParseError(n)
		}
		b = b[n:]
		if typ != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
				return r, protowire.ParseError(n)
			}
			b = b[n:]
			continue
		}
		v, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return r, protowire.ParseError(n)
		}
		b = b[n:]
		switch num {
		case 1:
			r.version = string(v)
		case 2:
			r.names = append(r.names, resourceName(v, sotw))
		case 4:
			r.typ = string(v)
		case 5:
			r.nonce = string(v)
		}
	}
	if r.typ == "" {
		return r, io.ErrUnexpectedEOF
	}
	return r, nil
}

// resourceName finds the name of a resource: field 3 of a delta Resource; in
// state of the world field 1 of the message within the Any, which is the name
// of clusters, listeners, assignments and routes.
func resourceName(b []byte, sotw bool) string {
	if !sotw {
		return field(b, 3)
	}
	return field([]byte(field(b, 2)), 1)
}

func field(b []byte, want protowire.Number) string {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return ""
		}
		b = b[n:]
		if num == want && typ == protowire.BytesType {
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return ""
			}
			return string(v)
		}
		if n = protowire.ConsumeFieldValue(num, typ, b); n < 0 {
			return ""
		}
		b = b[n:]
	}
	return ""
}
