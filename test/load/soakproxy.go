package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// soakProxy is a simulated Envoy that keeps its resources.
type soakProxy struct {
	*proxy
	sotw   bool
	cancel context.CancelFunc
	done   chan struct{}

	mu         sync.Mutex
	end        context.CancelFunc // ends the current stream
	misbehaves bool               // refuses responses and reads slowly
	forget     bool               // starts from nothing at its next stream
	state      map[string]map[string]resource
	versions   map[string]string // version_info by type
}

type resource struct {
	version string // delta
	body    string
}

func newSoakProxy(addr string, number int) *soakProxy {
	ctx, cancel := context.WithCancel(context.Background())
	p := &soakProxy{
		proxy: &proxy{fleet: newFleet(addr, kind{}, nil), number: number}, sotw: number%20 >= 10,
		cancel: cancel, done: make(chan struct{}), end: cancel,
	}
	p.clear()
	go func() {
		defer close(p.done)
		for ctx.Err() == nil {
			p.once(ctx)
		}
	}()
	return p
}

func (p *soakProxy) close() {
	p.cancel()
	<-p.done
}

func (p *soakProxy) clear() {
	p.forget = false
	p.state, p.versions = make(map[string]map[string]resource), make(map[string]string)
	for _, t := range xdsTypes {
		p.state[t] = make(map[string]resource)
	}
}

// kick ends the stream; the proxy reconnects with its resources.
func (p *soakProxy) kick() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end()
}

// misbehave makes the proxy refuse some responses and read slowly.
func (p *soakProxy) misbehave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.misbehaves = true
}

// behave ends that. The server does not send refused resources again, so a proxy that refused
// starts from nothing.
func (p *soakProxy) behave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.misbehaves {
		p.misbehaves, p.forget = false, true
		p.end()
	}
}

// once runs one stream. Only the state at the end matters, so it drops errors.
func (p *soakProxy) once(ctx context.Context) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	p.mu.Lock()
	p.end = end
	if p.forget {
		p.clear()
	}
	p.mu.Unlock()
	conn, err := grpc.NewClient("passthrough:"+p.addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(p.dial), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	node, err := p.node()
	if err != nil {
		return
	}
	n := new(corev3.Node)
	if err := proto.Unmarshal(node, n); err != nil {
		return
	}
	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	if p.sotw {
		_ = p.streamSotW(ctx, ads, n)
	} else {
		_ = p.streamDelta(ctx, ads, n)
	}
	select {
	case <-ctx.Done():
	case <-time.After(rand.N(100 * time.Millisecond)):
	}
}

// refuses decides whether to refuse a response, perhaps after a pause.
func (p *soakProxy) refuses(ctx context.Context) *status.Status {
	p.mu.Lock()
	misbehaves := p.misbehaves
	p.mu.Unlock()
	if !misbehaves {
		return nil
	}
	if rand.N(10) == 0 {
		select {
		case <-ctx.Done():
		case <-time.After(rand.N(time.Second)):
		}
	}
	if rand.N(3) > 0 {
		return nil
	}
	return &status.Status{Code: 13, Message: "refused by the soak"}
}

// wanted returns the names of a type that follow from the state; nil means all.
func (p *soakProxy) wanted(typ string) []string {
	var names []string
	switch typ {
	case xdswire.EndpointType:
		for name := range p.state[xdswire.ClusterType] {
			if strings.HasPrefix(name, "outbound|") {
				names = append(names, name)
			}
		}
	case xdswire.RouteType:
		for name := range p.state[xdswire.ListenerType] {
			if port, ok := strings.CutPrefix(name, "0.0.0.0_"); ok {
				names = append(names, port)
			}
		}
	}
	return names
}

// follows returns the type whose names follow from a type.
func follows(typ string) string {
	switch typ {
	case xdswire.ClusterType:
		return xdswire.EndpointType
	case xdswire.ListenerType:
		return xdswire.RouteType
	}
	return ""
}

func (p *soakProxy) streamSotW(ctx context.Context, ads discoveryv3.AggregatedDiscoveryServiceClient, node *corev3.Node) error {
	stream, err := ads.StreamAggregatedResources(ctx)
	if err != nil {
		return err
	}
	nonces := make(map[string]string)
	send := func(typ string, node *corev3.Node, refusal *status.Status) error {
		p.mu.Lock()
		names, version := p.wanted(typ), p.versions[typ]
		p.mu.Unlock()
		return stream.Send(&discoveryv3.DiscoveryRequest{
			Node: node, TypeUrl: typ, ResourceNames: names, VersionInfo: version,
			ResponseNonce: nonces[typ], ErrorDetail: refusal,
		})
	}
	if err := errors.Join(send(xdswire.ClusterType, node, nil), send(xdswire.ListenerType, nil, nil)); err != nil {
		return err
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		nonces[r.GetTypeUrl()] = r.GetNonce()
		refusal := p.refuses(ctx)
		if refusal == nil {
			p.takeSotW(r)
		}
		if err := send(r.GetTypeUrl(), nil, refusal); err != nil {
			return err
		}
		if typ := follows(r.GetTypeUrl()); typ != "" && refusal == nil {
			if err := send(typ, nil, nil); err != nil {
				return err
			}
		}
	}
}

func (p *soakProxy) takeSotW(r *discoveryv3.DiscoveryResponse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	typ := r.GetTypeUrl()
	p.versions[typ] = r.GetVersionInfo()
	if follows(typ) != "" {
		clear(p.state[typ])
	}
	for _, a := range r.GetResources() {
		p.state[typ][field(a.GetValue(), 1)] = resource{body: string(a.GetValue())}
	}
	p.prune(typ)
}

// prune drops resources without a reference.
func (p *soakProxy) prune(typ string) {
	if next := follows(typ); next != "" {
		names := p.wanted(next)
		maps.DeleteFunc(p.state[next], func(name string, _ resource) bool { return !slices.Contains(names, name) })
	}
}

func (p *soakProxy) streamDelta(ctx context.Context, ads discoveryv3.AggregatedDiscoveryServiceClient, node *corev3.Node) error {
	stream, err := ads.DeltaAggregatedResources(ctx)
	if err != nil {
		return err
	}
	watched := make(map[string][]string) // names by type
	// watch updates the subscription to the wanted names.
	watch := func(typ string, node *corev3.Node) error {
		p.mu.Lock()
		names, held := p.wanted(typ), make(map[string]string)
		for name, r := range p.state[typ] {
			held[name] = r.version
		}
		p.mu.Unlock()
		before, again := watched[typ]
		gone := slices.DeleteFunc(slices.Clone(before), func(n string) bool { return slices.Contains(names, n) })
		more := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return slices.Contains(before, n) })
		if again {
			held = nil
		}
		if follows(typ) == "" && len(gone)+len(more) == 0 {
			return nil
		}
		watched[typ] = names
		return stream.Send(&discoveryv3.DeltaDiscoveryRequest{
			Node: node, TypeUrl: typ, ResourceNamesSubscribe: more, ResourceNamesUnsubscribe: gone, InitialResourceVersions: held,
		})
	}
	err = errors.Join(watch(xdswire.ClusterType, node), watch(xdswire.EndpointType, nil),
		watch(xdswire.ListenerType, nil), watch(xdswire.RouteType, nil))
	for err == nil {
		var r *discoveryv3.DeltaDiscoveryResponse
		if r, err = stream.Recv(); err != nil {
			return err
		}
		typ, refusal := r.GetTypeUrl(), p.refuses(ctx)
		if refusal == nil {
			p.takeDelta(r)
		}
		err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typ, ResponseNonce: r.GetNonce(), ErrorDetail: refusal})
		if next := follows(typ); err == nil && next != "" && refusal == nil {
			err = watch(next, nil)
		}
	}
	return err
}

func (p *soakProxy) takeDelta(r *discoveryv3.DeltaDiscoveryResponse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	typ := r.GetTypeUrl()
	for _, res := range r.GetResources() {
		p.state[typ][res.GetName()] = resource{res.GetVersion(), string(res.GetResource().GetValue())}
	}
	for _, name := range r.GetRemovedResources() {
		delete(p.state[typ], name)
	}
	p.prune(typ)
}

// compare compares clusters, endpoints and virtual hosts with the model.
func (p *soakProxy) compare(want map[string]string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := p.wanted(xdswire.EndpointType)
	if len(names) != len(want) {
		return fmt.Errorf("%d clusters, want %d", len(names), len(want))
	}
	routes := p.state[xdswire.RouteType]["80"].body
	for name, addresses := range want {
		if _, ok := p.state[xdswire.ClusterType][name]; !ok {
			return fmt.Errorf("cluster %s is missing", name)
		}
		got, err := addressesOf(p.state[xdswire.EndpointType][name].body)
		if err != nil || got != addresses {
			return fmt.Errorf("cluster %s has endpoints %q, want %q %w", name, got, addresses, err)
		}
		host := name[strings.LastIndex(name, "|")+1:]
		if !strings.Contains(routes, host+":80") {
			return fmt.Errorf("no route to %s", host)
		}
	}
	return nil
}

func addressesOf(body string) (string, error) {
	var a endpointv3.ClusterLoadAssignment
	if err := proto.Unmarshal([]byte(body), &a); err != nil {
		return "", err
	}
	var all []string
	for _, l := range a.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			s := e.GetEndpoint().GetAddress().GetSocketAddress()
			all = append(all, fmt.Sprintf("%s:%d", s.GetAddress(), s.GetPortValue()))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " "), nil
}

// equal compares all resources of two proxies.
func (p *soakProxy) equal(o *soakProxy) error {
	bodies := func(p *soakProxy, typ string) map[string]string {
		p.mu.Lock()
		defer p.mu.Unlock()
		out := make(map[string]string)
		for name, r := range p.state[typ] {
			out[name] = r.body
		}
		return out
	}
	for _, typ := range xdsTypes {
		if !maps.Equal(bodies(p, typ), bodies(o, typ)) {
			return fmt.Errorf("they have different %s", xdswire.ShortType(typ))
		}
	}
	return nil
}
