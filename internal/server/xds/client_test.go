package xds

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// receivedResponse is a response of either variant.
type receivedResponse struct {
	typ, version, nonce string
	resources           map[string]string // name → content
	versions            map[string]string // delta
	removed             []string
	count               int // resources, including several with one name
}

func decode(t testing.TB, a *anypb.Any) string {
	t.Helper()
	var s wrapperspb.StringValue
	if err := (&anypb.Any{TypeUrl: "type.googleapis.com/google.protobuf.StringValue", Value: a.GetValue()}).UnmarshalTo(&s); err != nil {
		t.Fatal(err)
	}
	return s.GetValue()
}

// client is a proxy of either variant that sends only what the test requests.
type client struct {
	t       testing.TB
	variant xdswire.Variant
	node    *corev3.Node
	cancel  context.CancelFunc
	sotw    discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	delta   discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	names   map[string][]string
	nonce   map[string]string
	in      chan *receivedResponse
	ended   chan error
	first   bool
	implied bool // omit the type URL
}

func newClient(t testing.TB, v xdswire.Variant, node string) *client {
	return &client{
		t: t, variant: v, node: testNode(node), first: true,
		names: make(map[string][]string), nonce: make(map[string]string),
		in: make(chan *receivedResponse, 1000), ended: make(chan error, 1),
	}
}

func (b *testServer) connect(v xdswire.Variant, node string) *client {
	b.t.Helper()
	c := b.connectSilently(v, node)
	go c.receive()
	return c
}

// connectSilently is connect for a client that does not read.
func (b *testServer) connectSilently(v xdswire.Variant, node string) *client {
	b.t.Helper()
	return b.connectOn(b.dial(), v, node)
}

// connectOn opens a stream of a client that does not read.
func (b *testServer) connectOn(conn *grpc.ClientConn, v xdswire.Variant, node string) *client {
	b.t.Helper()
	c := newClient(b.t, v, node)
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	api := discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	var err error
	if v == xdswire.Delta {
		c.delta, err = api.DeltaAggregatedResources(ctx)
	} else {
		c.sotw, err = api.StreamAggregatedResources(ctx)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(cancel)
	return c
}

func (c *client) receive() {
	for {
		r := &receivedResponse{resources: make(map[string]string), versions: make(map[string]string)}
		if c.variant == xdswire.Delta {
			m, err := c.delta.Recv()
			if err != nil {
				c.ended <- err
				return
			}
			r.typ, r.version, r.nonce, r.removed = m.GetTypeUrl(), m.GetSystemVersionInfo(), m.GetNonce(), m.GetRemovedResources()
			r.count = len(m.GetResources())
			for _, res := range m.GetResources() {
				r.resources[res.GetName()] = decode(c.t, res.GetResource())
				r.versions[res.GetName()] = res.GetVersion()
			}
		} else {
			m, err := c.sotw.Recv()
			if err != nil {
				c.ended <- err
				return
			}
			r.typ, r.version, r.nonce = m.GetTypeUrl(), m.GetVersionInfo(), m.GetNonce()
			r.count = len(m.GetResources())
			for _, a := range m.GetResources() {
				// Resources have no name here, so their contents start with it.
				content := decode(c.t, a)
				name, _, _ := strings.Cut(content, ":")
				r.resources[name] = content
			}
		}
		r.typ = xdswire.ShortType(r.typ)
		c.in <- r
	}
}

func urlOf(typ string) string {
	for _, u := range xdswire.PushOrder {
		if xdswire.ShortType(u) == typ {
			return u
		}
	}
	return typ
}

// request sends the names of a type, or in the delta variant their difference, with a
// nonce and an optional error.
func (c *client) request(typ, nonce string, names []string, held map[string]string, nack string) {
	c.t.Helper()
	var detail *statuspb.Status
	if nack != "" {
		detail = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: nack}
	}
	var node *corev3.Node
	if c.first {
		node, c.first = c.node, false
	}
	url := urlOf(typ)
	if c.implied {
		url = ""
	}
	before := c.names[typ]
	c.names[typ] = names
	var err error
	if c.variant == xdswire.Delta {
		err = c.delta.Send(&discoveryv3.DeltaDiscoveryRequest{
			Node: node, TypeUrl: url, ResponseNonce: nonce, ErrorDetail: detail, InitialResourceVersions: held,
			ResourceNamesSubscribe:   without(names, before),
			ResourceNamesUnsubscribe: without(before, names),
		})
	} else {
		version := ""
		if len(held) > 0 {
			version = "earlier"
		}
		err = c.sotw.Send(&discoveryv3.DiscoveryRequest{
			Node: node, TypeUrl: url, ResponseNonce: nonce, ErrorDetail: detail, ResourceNames: names, VersionInfo: version,
		})
	}
	if err != nil && !errors.Is(err, io.EOF) { // EOF: the reason comes from Recv
		c.t.Fatal(err)
	}
}

func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(n string) bool { return slices.Contains(b, n) })
}

// subscribe sends the first request for a type, or a change of its names.
func (c *client) subscribe(typ string, names ...string) {
	c.t.Helper()
	nonce := c.nonce[typ]
	if c.variant == xdswire.Delta {
		nonce = ""
	}
	c.request(typ, nonce, names, nil, "")
}

// reconnect sends the first request for a type on a new stream, with the held versions.
func (c *client) reconnect(typ string, held map[string]string, names ...string) {
	c.t.Helper()
	c.request(typ, "", names, held, "")
}

func (c *client) ack(r *receivedResponse) {
	c.t.Helper()
	c.request(r.typ, r.nonce, c.names[r.typ], nil, "")
}

func (c *client) nack(r *receivedResponse, message string) {
	c.t.Helper()
	c.request(r.typ, r.nonce, c.names[r.typ], nil, message)
}

// recv waits for the next response.
func (c *client) recv() *receivedResponse {
	c.t.Helper()
	select {
	case r := <-c.in:
		c.nonce[r.typ] = r.nonce
		return r
	case err := <-c.ended:
		c.t.Fatalf("stream ended: %v", err)
	case <-time.After(patience):
		c.t.Fatal("no response came")
	}
	return nil
}

// want waits for the next response and checks it. It does not answer.
func (c *client) want(typ, resources string, removed ...string) *receivedResponse {
	c.t.Helper()
	r := c.recv()
	if r.typ != typ || contents(r.resources) != resources || !slices.Equal(r.removed, removed) {
		c.t.Fatalf("got %s {%s} removed %v, want %s {%s} removed %v", r.typ, contents(r.resources), r.removed, typ, resources, removed)
	}
	return r
}

// wantAck is want with an ACK.
func (c *client) wantAck(typ, resources string, removed ...string) *receivedResponse {
	c.t.Helper()
	r := c.want(typ, resources, removed...)
	c.ack(r)
	return r
}

// quiet checks that no response has arrived: the answer to a request that it sends must
// come next. Its routes have names that no other test uses.
func (c *client) quiet() {
	c.t.Helper()
	name := "quiet" + string(rune('a'+len(c.names["RDS"])))
	c.subscribe("RDS", append(slices.Clone(c.names["RDS"]), name)...)
	r := c.recv()
	if r.typ != "RDS" || len(r.resources) != 1 {
		c.t.Fatalf("something was sent: %s {%s} removed %v", r.typ, contents(r.resources), r.removed)
	}
	c.ack(r)
}

// status waits for the end of the stream and returns its status.
func (c *client) status() *status.Status {
	c.t.Helper()
	for {
		select {
		case <-c.in:
		case err := <-c.ended:
			return status.Convert(err)
		case <-time.After(patience):
			c.t.Fatal("the stream did not end")
		}
	}
}

// both runs a test in both variants.
func both(t *testing.T, f func(t *testing.T, v xdswire.Variant)) {
	for _, v := range []xdswire.Variant{xdswire.SotW, xdswire.Delta} {
		t.Run(v.String(), func(t *testing.T) { f(t, v) })
	}
}
