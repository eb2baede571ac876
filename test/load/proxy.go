package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/harness"
)

// fleet holds simulated Envoys of one kind, each on its own connection. A proxy subscribes as
// Envoy does, acknowledges everything and reconnects when its stream ends.
type fleet struct {
	kind
	addr        string
	socket      string // if set, the Unix socket to connect to
	namespace   func(proxy int) string
	extensions  bool          // also subscribe to the extensions of listeners, in delta
	hosts       bool          // also subscribe to virtual hosts, in delta, as an Envoy that supports them with an agent
	requests    []byte        // encoded names of virtual hosts that the proxies request
	first       int           // number of the first proxy
	stopReading chan struct{} // if set, its closing makes the proxies stop reading
	creds       func(namespace string) credentials.TransportCredentials
	events      chan event
	frames      *batches
	bytes       atomic.Int64
	keep        map[string][]byte // when set, of a fleet of one: the last response by type
	mu          sync.Mutex
	errs        []error // why streams ended; the first few
	lost        int     // streams that ended
	group       sync.WaitGroup
	cancel      []context.CancelFunc // by proxy
}

// event is a response that a proxy received.
type event struct {
	proxy int
	typ   string
	*batch
	complete bool // every type has been answered on this stream
	at       time.Time
}

// xdsTypes are the types that a proxy subscribes to.
var xdsTypes = [...]string{xdswire.ClusterType, xdswire.EndpointType, xdswire.ListenerType, xdswire.RouteType}

func newFleet(addr string, k kind, creds func(string) credentials.TransportCredentials) *fleet {
	if creds == nil {
		creds = func(string) credentials.TransportCredentials { return insecure.NewCredentials() }
	}
	return &fleet{kind: k, addr: addr, namespace: loadNamespace, creds: creds, events: make(chan event, 1<<16), frames: newBatches(k.sotw)}
}

// size returns the number of proxies.
func (f *fleet) size() int { return len(f.cancel) }

// grow connects proxies until there are n.
func (f *fleet) grow(ctx context.Context, n int) {
	for i := len(f.cancel); i < n; i++ {
		ctx, cancel := context.WithCancel(ctx)
		f.cancel = append(f.cancel, cancel)
		p := &proxy{fleet: f, number: f.first + i, held: make(map[string][]*batch)}
		f.group.Go(func() { p.run(ctx) })
	}
}

// shrink disconnects the last proxies until there are n.
func (f *fleet) shrink(n int) {
	for _, cancel := range f.cancel[n:] {
		cancel()
	}
	f.cancel = f.cancel[:n]
}

func (f *fleet) close() {
	f.shrink(0)
	go func() {
		for range f.events { // so that no proxy waits
		}
	}()
	f.group.Wait()
	close(f.events)
}

func (f *fleet) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost++
	if len(f.errs) < 3 {
		f.errs = append(f.errs, err)
	}
}

// losses returns the number of streams that ended since the last call, and the first errors.
func (f *fleet) losses() (int, []error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	lost, errs := f.lost, f.errs
	f.lost, f.errs = 0, nil
	return lost, errs
}

// drain drops unread events.
func (f *fleet) drain() {
	for {
		select {
		case <-f.events:
		default:
			return
		}
	}
}

// patience bounds each wait.
const patience = 2 * time.Minute

// all waits until each proxy has had an event for which like returns true, and returns the
// times of these events in their order.
func (f *fleet) all(ctx context.Context, like func(event) bool) ([]time.Time, error) {
	return f.each(ctx, func(int) bool { return true }, like)
}

// each waits like all, but only for some of the proxies.
func (f *fleet) each(ctx context.Context, of func(proxy int) bool, like func(event) bool) ([]time.Time, error) {
	missing := make(map[int]struct{}, f.size())
	for i := range f.size() {
		if of(i) {
			missing[i] = struct{}{}
		}
	}
	var at []time.Time
	err := f.watch(ctx, func(e event) int {
		if _, ok := missing[e.proxy]; ok && like(e) {
			delete(missing, e.proxy)
			at = append(at, e.at)
		}
		return len(missing)
	})
	slices.SortFunc(at, time.Time.Compare)
	return at, err
}

// watch passes events to take until it returns 0, the number of proxies that it waits for.
func (f *fleet) watch(ctx context.Context, take func(event) (missing int)) error {
	timeout := time.NewTimer(patience)
	defer timeout.Stop()
	for missing := f.size(); missing > 0; {
		select {
		case e := <-f.events:
			missing = take(e)
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			_, errs := f.losses()
			return fmt.Errorf("%d of %d proxies do not have what they should after %v %v", missing, f.size(), patience, errs)
		}
	}
	return nil
}

func complete(e event) bool { return e.complete }

// proxy is one of a fleet.
type proxy struct {
	*fleet
	number int
	held   map[string][]*batch // delta: received resources by type
}

// run keeps a stream open until ctx ends.
func (p *proxy) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := p.stream(ctx)
		if ctx.Err() != nil {
			return
		}
		p.fail(fmt.Errorf("proxy %d: %w", p.number, err))
		select {
		case <-ctx.Done():
		case <-time.After(100*time.Millisecond + rand.N(100*time.Millisecond)):
		}
	}
}

// loadNamespace returns the namespace of a proxy, where no Services are.
func loadNamespace(proxy int) string { return fmt.Sprintf("load-%d", proxy%10) }

// node returns the encoded node of the proxy.
func (p *proxy) node() ([]byte, error) {
	ns := p.namespace(p.number)
	metadata := map[string]any{"CLUSTER_ID": "Kubernetes", "NAMESPACE": ns, "SERVICE_ACCOUNT": "default"}
	if p.hosts {
		metadata[mesh.MetadataVirtualHosts] = "true"
	}
	md, err := structpb.NewStruct(metadata)
	if err != nil {
		return nil, err
	}
	node := &corev3.Node{
		Id:       fmt.Sprintf("sidecar~10.200.%d.%d~proxy-%d.%s~%s.svc.cluster.local", p.number/250, p.number%250+1, p.number, ns, ns),
		Metadata: md,
	}
	if p.hosts {
		node.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 40}}}
	}
	return proto.Marshal(node)
}

// dial connects from the proxy's own address, as pods do.
func (p *proxy) dial(ctx context.Context, addr string) (net.Conn, error) {
	if p.socket != "" {
		return new(net.Dialer).DialContext(ctx, "unix", p.socket)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, byte(p.number/250), byte(p.number%250+1))}}
	if p.stopReading == nil {
		return d.DialContext(ctx, "tcp", addr)
	}
	const buffer = 192 << 10 // a few packets of the loopback
	return harness.DialStalling(ctx, d, addr, buffer, p.stopReading)
}

func (p *proxy) open(ctx context.Context) (xdsStream, error) {
	method := "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
	if p.sotw {
		method = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
	}
	creds := p.creds(p.namespace(p.number))
	if p.library {
		return openLibraryStream(ctx, p.addr, p.dial, creds, method)
	}
	raw, err := p.dial(ctx, p.addr)
	if err != nil {
		return nil, err
	}
	return openStream(ctx, raw, creds, method)
}

// stream runs one stream from its start to its end.
func (p *proxy) stream(ctx context.Context) error {
	stream, err := p.open(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stream.close() }()
	node, err := p.node()
	if err != nil {
		return err
	}
	asked := map[string][]byte{xdswire.ClusterType: nil}
	if err := p.ask(stream, xdswire.ClusterType, node, nil); err != nil {
		return err
	}
	answered := make(map[string]bool)
	for {
		frame, err := stream.receive()
		if err != nil {
			return err
		}
		now := time.Now()
		p.bytes.Add(int64(len(frame)))
		r, err := p.frames.parse(frame)
		if err == nil {
			err = p.take(stream, r, asked)
		}
		if err != nil {
			return err
		}
		if p.keep != nil {
			p.keep[r.typ] = bytes.Clone(frame)
		}
		answered[r.typ] = true
		p.events <- event{p.number - p.first, r.typ, r.batch, len(answered) == len(asked) && len(asked) >= len(xdsTypes), now}
	}
}

// ask subscribes to a type. A delta proxy lists the resources that it holds.
func (p *proxy) ask(stream xdsStream, typ string, node, names []byte) error {
	rest := names
	for _, b := range p.held[typ] {
		rest = append(slices.Clip(rest), b.held...)
	}
	return stream.send(request{typ: typ, node: node, rest: rest}.encode(p.sotw)...)
}

// take acknowledges a response and subscribes to dependent resources.
func (p *proxy) take(stream xdsStream, r response, asked map[string][]byte) error {
	ack := request{typ: r.typ, nonce: r.nonce}
	if p.sotw {
		// Every state-of-the-world request of Envoy contains all its names.
		ack.version, ack.rest = r.version, asked[r.typ]
	} else if len(r.names) > 0 {
		p.held[r.typ] = append(p.held[r.typ], r.batch)
	}
	if err := stream.send(ack.encode(p.sotw)...); err != nil {
		return err
	}
	subscribe := func(typ string, names []byte) error {
		if _, ok := asked[typ]; ok {
			return nil
		}
		asked[typ] = names
		return p.ask(stream, typ, nil, names)
	}
	switch r.typ {
	case xdswire.ClusterType:
		if err := subscribe(xdswire.EndpointType, p.follow(r)); err != nil {
			return err
		}
		return subscribe(xdswire.ListenerType, nil)
	case xdswire.ListenerType:
		if p.extensions {
			if err := subscribe(xdswire.ExtensionType, r.extensions); err != nil {
				return err
			}
		}
		return subscribe(xdswire.RouteType, p.follow(r))
	case xdswire.RouteType:
		if p.hosts {
			return subscribe(xdswire.VirtualHostType, p.requests)
		}
	}
	return nil
}

// follow returns the names to subscribe to after the first response: names from its
// resources, and from resources that the proxy held before.
func (p *proxy) follow(r response) []byte {
	if p.sotw || len(p.held[r.typ]) == 0 {
		return r.ask
	}
	return p.held[r.typ][0].ask
}
