package xds

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// conformanceClient is a proxy of one of four kinds: state of the world or delta, with
// one ADS stream or a stream for each type.
type conformanceClient struct {
	t        *testing.T
	b        *testServer
	variant  xdswire.Variant
	separate bool
	node     string
	conn     *grpc.ClientConn
	streams  map[string]*client
}

func newConformanceClient(t *testing.T, b *testServer, v xdswire.Variant, separate bool, node string) *conformanceClient {
	return &conformanceClient{t: t, b: b, variant: v, separate: separate, node: node, conn: b.dial(), streams: make(map[string]*client)}
}

// another returns a new proxy of the same kind.
func (p *conformanceClient) another(b *testServer, node string) *conformanceClient {
	return newConformanceClient(p.t, b, p.variant, p.separate, node)
}

// on returns the stream that carries a type, and opens it if needed.
func (p *conformanceClient) on(typ string) *client {
	p.t.Helper()
	key := ""
	if p.separate {
		key = typ
	}
	c := p.streams[key]
	switch {
	case c != nil:
	case p.separate:
		c = p.b.connectSeparately(p.conn, p.variant, p.node, typ)
	default:
		c = p.b.connectOn(p.conn, p.variant, p.node)
		go c.receive()
	}
	p.streams[key] = c
	return c
}

// forget ends all streams. Later calls open new ones.
func (p *conformanceClient) forget() {
	for _, c := range p.streams {
		c.cancel()
	}
	clear(p.streams)
}

func (p *conformanceClient) subscribe(typ string, names ...string) {
	p.t.Helper()
	p.on(typ).subscribe(typ, names...)
}

func (p *conformanceClient) ack(r *receivedResponse) {
	p.t.Helper()
	p.on(r.typ).ack(r)
}

func (p *conformanceClient) nack(r *receivedResponse) {
	p.t.Helper()
	p.on(r.typ).nack(r, "refused")
}

// lists reports whether responses of the type carry everything subscribed to.
func (p *conformanceClient) lists(typ string) bool {
	return p.variant == xdswire.SotW && (typ == "CDS" || typ == "LDS")
}

// probe marks resources that only quiet uses.
const probe = "probe"

// wants waits for a response and does not answer it. If the type lists everything, the
// response must carry all, otherwise changed; removed counts for delta proxies.
func (p *conformanceClient) wants(typ, all, changed string, removed ...string) *receivedResponse {
	p.t.Helper()
	r := p.on(typ).recv()
	if p.lists(typ) {
		changed = all
	}
	if p.variant == xdswire.SotW {
		removed = nil
	}
	maps.DeleteFunc(r.resources, func(name, _ string) bool { return strings.HasPrefix(name, probe) })
	got := slices.DeleteFunc(r.removed, func(name string) bool { return strings.HasPrefix(name, probe) })
	if r.typ != typ || contents(r.resources) != changed || !slices.Equal(got, removed) {
		p.t.Fatalf("got %s {%s} removed %v, want %s {%s} removed %v", r.typ, contents(r.resources), got, typ, changed, removed)
	}
	return r
}

// gets is wants with an ACK.
func (p *conformanceClient) gets(typ, all, changed string, removed ...string) *receivedResponse {
	p.t.Helper()
	r := p.wants(typ, all, changed, removed...)
	p.ack(r)
	return r
}

// set changes resources, each given as type, name and content, and waits for the
// publication.
func (p *conformanceClient) set(what ...[3]string) {
	p.t.Helper()
	for _, w := range what {
		p.b.mesh.set(w[0], "shared", w[1], w[2])
	}
	p.b.push()
}

// quiet checks that nothing is due for a subscribed type: the next response must carry
// a new resource.
func (p *conformanceClient) quiet(typ string) {
	p.t.Helper()
	c := p.on(typ)
	name := fmt.Sprintf("%s%d", probe, p.b.mesh.s.Seq)
	p.set([3]string{typ, name, name + ":1"})
	if names := c.names[typ]; len(names) > 0 && !slices.Contains(names, "*") {
		p.subscribe(typ, append(slices.Clone(names), name)...)
	}
	r := c.recv()
	if r.typ != typ || r.resources[name] == "" || !p.lists(typ) && len(r.resources) > 1 {
		p.t.Fatalf("something was sent: %s {%s} removed %v", r.typ, contents(r.resources), r.removed)
	}
	p.ack(r)
}

// behaviour is one requirement of the protocol. It holds for all four kinds of proxies,
// or has an equivalent.
type behaviour struct {
	name string
	run  func(p *conformanceClient)
}

// Sources of the behaviours:
//
//	spec:NAME   the section of "xDS REST and gRPC protocol"
//	harness:N   the features of the xDS test harness (subscribing, unsubscribing, delta), counted
//	order       the order of decisions about requests in docs/xds.md
var behaviours = []behaviour{
	// spec: How the client specifies what resources to return; harness: subscribing 1.
	{"a first request without names gets everything", func(p *conformanceClient) {
		p.subscribe("CDS")
		p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		p.subscribe("LDS")
		p.gets("LDS", "l=l:1", "l=l:1")
		p.quiet("CDS")
	}},
	// spec: How the client specifies what resources to return.
	{"the wildcard gets everything, including new resources", func(p *conformanceClient) {
		p.subscribe("CDS", "*")
		p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		p.set([3]string{"CDS", "c", "c:1"})
		p.gets("CDS", "a=a:1 b=b:1 c=c:1", "c=c:1")
		p.quiet("CDS")
	}},
	// harness: subscribing 3.
	{"a request without names gets new resources", func(p *conformanceClient) {
		p.subscribe("LDS")
		p.gets("LDS", "l=l:1", "l=l:1")
		p.set([3]string{"LDS", "m", "m:1"})
		p.gets("LDS", "l=l:1 m=m:1", "m=m:1")
		p.quiet("LDS")
	}},
	// spec: How the client specifies what resources to return; harness: subscribing 4, delta 1.
	{"a subscription to names gets only these", func(p *conformanceClient) {
		p.subscribe("CDS", "b")
		p.gets("CDS", "b=b:1", "b=b:1")
		p.subscribe("EDS", "a")
		p.gets("EDS", "", "a=a:1")
		p.subscribe("RDS", "r")
		p.gets("RDS", "", "r=r:1")
		p.subscribe("LDS", "l")
		p.gets("LDS", "l=l:1", "l=l:1")
		p.quiet("EDS")
		p.quiet("CDS")
	}},
	// spec: How the client specifies what resources to return; harness: delta 1.
	{"one more name gets only the new resource", func(p *conformanceClient) {
		p.subscribe("EDS", "a")
		p.gets("EDS", "", "a=a:1")
		p.subscribe("EDS", "a", "b")
		p.gets("EDS", "", "b=b:1")
		p.subscribe("CDS", "a")
		p.gets("CDS", "a=a:1", "a=a:1")
		p.dependents("EDS", "a=a:1 b=b:1")
		p.subscribe("CDS", "a", "b")
		p.gets("CDS", "a=a:1 b=b:1", "b=b:1")
	}},
	// spec: Knowing when a requested resource does not exist; harness: subscribing 7 and 8, delta 3.
	{"a missing name gets an answer, and the resource once it exists", func(p *conformanceClient) {
		p.subscribe("CDS", "a", "z")
		p.gets("CDS", "a=a:1", "a=a:1", "z")
		p.set([3]string{"CDS", "z", "z:1"})
		p.gets("CDS", "a=a:1 z=z:1", "z=z:1")
		p.quiet("CDS")
	}},
	// spec: Resource warming; Knowing when a requested resource does not exist.
	{"missing endpoints and routes get an answer at once", func(p *conformanceClient) {
		p.subscribe("EDS", "z")
		if p.variant == xdswire.Delta {
			p.gets("EDS", "", "", "z")
		} else {
			p.gets("EDS", "", "z=z:fallback")
		}
		p.subscribe("RDS", "z")
		p.gets("RDS", "", "z=z:fallback")
		p.set([3]string{"EDS", "z", "z:1"}, [3]string{"RDS", "z", "z:2"})
		p.gets("EDS", "", "z=z:1")
		p.gets("RDS", "", "z=z:2")
	}},
	// spec: Unsubscribing from resources; harness: unsubscribing 1 and 2, delta 5.
	{"an unsubscribed name is no longer sent", func(p *conformanceClient) {
		p.subscribe("EDS", "a", "b")
		p.gets("EDS", "", "a=a:1 b=b:1")
		p.subscribe("EDS", "b")
		p.quiet("EDS") // no answer
		p.set([3]string{"EDS", "a", "a:2"})
		p.quiet("EDS")
		p.set([3]string{"EDS", "b", "b:2"})
		p.gets("EDS", "", "b=b:2")
	}},
	// spec: Unsubscribing from resources; harness: unsubscribing 1 and 2, delta 5.
	{"an unsubscribed cluster is no longer sent", func(p *conformanceClient) {
		p.subscribe("CDS", "a", "b")
		p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		p.subscribe("CDS", "b")
		if p.lists("CDS") {
			p.gets("CDS", "b=b:1", "")
		}
		p.quiet("CDS")
		p.set([3]string{"CDS", "a", "a:2"})
		p.quiet("CDS")
		p.set([3]string{"CDS", "b", "b:2"})
		p.gets("CDS", "b=b:2", "b=b:2")
	}},
	// spec: Unsubscribing from resources; harness: unsubscribing 3.
	{"without names the type is silent until the next subscription", func(p *conformanceClient) {
		for _, typ := range []string{"CDS", "EDS"} {
			p.subscribe(typ, "a", "b")
			p.gets(typ, "a=a:1 b=b:1", "a=a:1 b=b:1")
			p.giveUp(typ)
			p.set([3]string{typ, "a", "a:2"})
			p.quiet(typ)
			p.subscribe(typ, "a", "b")
			p.gets(typ, "a=a:2 b=b:1", "a=a:2 b=b:1")
		}
	}},
	// spec: How the client specifies what resources to return, the example.
	{"no names, the wildcard with a name, the name, no names", func(p *conformanceClient) {
		p.subscribe("CDS") // everything
		p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		p.subscribe("CDS", "*", "a")
		p.gets("CDS", "a=a:1 b=b:1", "a=a:1")
		p.subscribe("CDS", "a")
		if p.lists("CDS") {
			p.gets("CDS", "a=a:1", "")
		}
		p.settled("CDS", "a=a:1")
		p.set([3]string{"CDS", "b", "b:2"})
		p.quiet("CDS")
		p.giveUp("CDS") // nothing, although the first request was the same
		p.set([3]string{"CDS", "a", "a:2"})
		p.quiet("CDS")
	}},
	// spec: How the client specifies what resources to return.
	{"the wildcard is subscribed and unsubscribed", func(p *conformanceClient) {
		p.subscribe("CDS", "*")
		p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		p.giveUp("CDS")
		p.set([3]string{"CDS", "a", "a:2"})
		p.quiet("CDS")
		p.subscribe("CDS", "*")
		p.gets("CDS", "a=a:2 b=b:1", "a=a:2 b=b:1")
	}},
	// spec: Unsubscribing from resources (delta), the exception.
	{"unsubscribing a name besides the wildcard gets an answer", func(p *conformanceClient) {
		p.subscribe("CDS", "*", "a", "z")
		p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1", "z")
		p.subscribe("CDS", "*", "z")
		p.gets("CDS", "a=a:1 b=b:1", "a=a:1") // the wildcard covers it
		p.subscribe("CDS", "*")
		p.gets("CDS", "a=a:1 b=b:1", "", "z") // the wildcard does not cover it
		p.set([3]string{"CDS", "a", "a:2"})
		p.gets("CDS", "a=a:2 b=b:1", "a=a:2")
		p.quiet("CDS")
	}},
	// spec: Unsubscribing from resources (delta): phantom names; order: ACK.
	{"unsubscribing an unknown name changes nothing", func(p *conformanceClient) {
		p.subscribe("EDS", "a")
		p.gets("EDS", "", "a=a:1")
		c := p.on("EDS")
		c.names["EDS"] = []string{"a", "never"} // state of the world: the same names again
		p.subscribe("EDS", "a")
		p.quiet("EDS")
		p.set([3]string{"EDS", "a", "a:2"})
		p.gets("EDS", "", "a=a:2")
	}},
	// spec: When to send an update; harness: subscribing 2, 5 and 6, delta 2.
	{"a change is sent", func(p *conformanceClient) {
		p.subscribe("CDS")
		first := p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		p.subscribe("RDS", "r")
		p.gets("RDS", "", "r=r:1")
		p.set([3]string{"CDS", "a", "a:2"}, [3]string{"RDS", "r", "r:2"})
		second := p.gets("CDS", "a=a:2 b=b:1", "a=a:2")
		p.gets("RDS", "", "r=r:2")
		if second.version == first.version || second.nonce == first.nonce {
			p.t.Errorf("version %s then %s, nonce %s then %s", first.version, second.version, first.nonce, second.nonce)
		}
		p.quiet("CDS")
	}},
	// spec: When to send an update; harness: "never responds more than necessary".
	{"a change of an unsubscribed resource is not sent", func(p *conformanceClient) {
		p.subscribe("CDS", "a")
		p.gets("CDS", "a=a:1", "a=a:1")
		p.subscribe("EDS", "a")
		p.gets("EDS", "", "a=a:1")
		p.set([3]string{"CDS", "b", "b:2"}, [3]string{"EDS", "b", "b:2"}, [3]string{"EDS", "c", "c:1"})
		p.quiet("EDS")
		p.quiet("CDS")
	}},
	// spec: When to send an update.
	{"the same content again is not sent", func(p *conformanceClient) {
		p.subscribe("CDS")
		p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		p.set([3]string{"CDS", "a", "a:1"})
		p.quiet("CDS")
	}},
	// spec: Deleting resources; harness: delta 4.
	{"a deleted cluster is removed, and sent when it is back", func(p *conformanceClient) {
		p.subscribe("CDS")
		p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		p.set([3]string{"CDS", "b", ""})
		p.gets("CDS", "a=a:1", "", "b")
		p.set([3]string{"CDS", "b", "b:1"})
		p.gets("CDS", "a=a:1 b=b:1", "b=b:1")
		p.quiet("CDS")
	}},
	// spec: Deleting resources: state of the world can remove no other types.
	{"deleted endpoints are removed where the protocol allows it", func(p *conformanceClient) {
		p.subscribe("EDS", "a", "b")
		p.gets("EDS", "", "a=a:1 b=b:1")
		p.set([3]string{"EDS", "b", ""})
		if p.variant == xdswire.Delta {
			p.gets("EDS", "", "", "b")
		}
		p.quiet("EDS")
		p.set([3]string{"EDS", "b", "b:2"})
		p.gets("EDS", "", "b=b:2")
	}},
	// spec: Deleting resources: a list may become empty.
	{"an empty list removes the last resource and keeps the stream", func(p *conformanceClient) {
		p.subscribe("CDS")
		p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		p.set([3]string{"CDS", "a", ""}, [3]string{"CDS", "b", ""})
		p.gets("CDS", "", "", "a", "b")
		p.set([3]string{"CDS", "c", "c:1"})
		p.gets("CDS", "c=c:1", "c=c:1")
		p.quiet("CDS")
	}},
	// spec: Duplicate resource names.
	{"no response has a name twice", func(p *conformanceClient) {
		p.b.mesh.set("CDS", p.node, "own", "own:1")
		p.b.push()
		p.subscribe("CDS", "*", "a", "own", "a")
		r := p.gets("CDS", "a=a:1 b=b:1 own=own:1", "a=a:1 b=b:1 own=own:1")
		if r.count != len(r.resources) {
			p.t.Errorf("%d resources of %d names", r.count, len(r.resources))
		}
	}},
	// spec: ACK; order: ACK.
	{"an ACK gets no answer", func(p *conformanceClient) {
		p.subscribe("CDS")
		r := p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		p.ack(r)
		p.quiet("CDS")
		p.subscribe("EDS", "a")
		r = p.gets("EDS", "", "a=a:1")
		p.ack(r)
		p.quiet("EDS")
	}},
	// spec: NACK; order: NACK.
	{"a NACK gets no answer", func(p *conformanceClient) {
		p.subscribe("EDS", "a", "b")
		p.gets("EDS", "", "a=a:1 b=b:1")
		p.set([3]string{"EDS", "a", "a:bad"})
		r := p.wants("EDS", "", "a=a:bad")
		p.nack(r)
		p.nack(r)
		p.quiet("EDS")
	}},
	// spec: NACK: a later update may succeed with a new version.
	{"after a NACK the last good version stays, and a later change is sent", func(p *conformanceClient) {
		p.subscribe("CDS", "a")
		good := p.gets("CDS", "a=a:1", "a=a:1")
		p.set([3]string{"CDS", "a", "a:bad"})
		bad := p.wants("CDS", "a=a:bad", "a=a:bad")
		p.nack(bad)
		p.b.eventually("the NACK", func() bool {
			st := p.status("CDS")
			return st.NACK != nil && st.NACK.Version == bad.version && st.Acked == good.version
		})
		p.set([3]string{"CDS", "a", "a:3"})
		p.gets("CDS", "a=a:3", "a=a:3")
		p.b.eventually("the ACK", func() bool { return p.status("CDS").NACK == nil })
	}},
	// spec: NACK; the previous version is then empty.
	{"changes follow a refused first response", func(p *conformanceClient) {
		p.subscribe("LDS")
		p.nack(p.wants("LDS", "l=l:1", "l=l:1"))
		p.set([3]string{"LDS", "l", "l:2"})
		p.gets("LDS", "l=l:2", "l=l:2")
		p.quiet("LDS")
	}},
	// spec: NACK; ACK and NACK semantics summary: a new resource that is invalid.
	{"a NACK may subscribe to names", func(p *conformanceClient) {
		p.subscribe("EDS", "a")
		p.nack(p.wants("EDS", "", "a=a:1"))
		p.quiet("EDS")
		p.subscribe("EDS", append(slices.Clone(p.on("EDS").names["EDS"]), "b")...)
		p.gets("EDS", "", "b=b:1")
	}},
	// spec: Resource updates: stale nonces; delta: changes of names count nevertheless; order: stale nonce.
	{"a stale nonce is no answer", func(p *conformanceClient) {
		p.subscribe("EDS", "a")
		r := p.wants("EDS", "", "a=a:1")
		p.on("EDS").request("EDS", "stale", []string{"a", "b"}, nil, "")
		p.set([3]string{"EDS", "a", "a:2"})
		if p.variant == xdswire.SotW {
			p.on("EDS").names["EDS"] = []string{"a"}
			p.ack(r)
			p.gets("EDS", "", "a=a:2")
		} else {
			p.ack(r)
			p.gets("EDS", "", "a=a:2 b=b:1")
		}
		p.quiet("EDS")
	}},
	// spec: Basic protocol overview: nonces do not survive streams; order: first request.
	{"a first request gets an answer whatever its nonce", func(p *conformanceClient) {
		p.on("CDS").request("CDS", "of an earlier stream", nil, nil, "")
		p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		p.on("EDS").request("EDS", "of an earlier stream", []string{"a"}, nil, "")
		p.gets("EDS", "", "a=a:1")
	}},
	// spec: Incremental xDS: initial_resource_versions; ACK/NACK and resource type instance version.
	{"after a reconnection held resources are not sent, or have their old version", func(p *conformanceClient) {
		p.subscribe("CDS")
		before := p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		p.forget()
		p.on("CDS").reconnect("CDS", before.versions)
		again := p.gets("CDS", "a=a:1 b=b:1", "")
		if again.version != before.version {
			p.t.Errorf("version %s, before %s", again.version, before.version)
		}
		p.forget()
		p.set([3]string{"LDS", "l", "l:2"})
		p.on("LDS").reconnect("LDS", map[string]string{"l": "older", "gone": "v"})
		p.gets("LDS", "l=l:2", "l=l:2", "gone")
		p.quiet("LDS")
	}},
	// spec: Incremental xDS: a reconnecting client provides all names.
	{"the subscription of an earlier stream is forgotten", func(p *conformanceClient) {
		p.subscribe("EDS", "a", "b")
		p.gets("EDS", "", "a=a:1 b=b:1")
		p.forget()
		p.subscribe("EDS", "b")
		p.gets("EDS", "", "b=b:1")
		p.set([3]string{"EDS", "a", "a:2"})
		p.quiet("EDS")
	}},
	// spec: Subscribing to resources (delta): held resources must be sent; state of the
	// world: newly requested ones are sent again.
	{"a held resource is sent when it is requested again", func(p *conformanceClient) {
		p.subscribe("EDS", "a", "b")
		p.gets("EDS", "", "a=a:1 b=b:1")
		if p.variant == xdswire.SotW {
			p.subscribe("EDS", "b")
		} else {
			p.on("EDS").names["EDS"] = []string{"b"} // request a again
		}
		p.subscribe("EDS", "a", "b")
		p.gets("EDS", "", "a=a:1")
		p.quiet("EDS")
	}},
	// spec: Aggregated discovery service: sequences of types are apart; harness: subscribing 9, delta 6.
	{"two types do not disturb each other", func(p *conformanceClient) {
		p.subscribe("CDS")
		p.subscribe("LDS")
		clusters, listeners := p.wants("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1"), p.wants("LDS", "l=l:1", "l=l:1")
		p.ack(listeners) // clusters wait for their answer
		p.set([3]string{"CDS", "a", "a:2"})
		p.b.eventually("the ACK", func() bool { return p.status("LDS").Acked == listeners.version })
		if acked := p.status("CDS").Acked; acked != "" {
			p.t.Errorf("CDS is acknowledged at %s by the ACK of LDS", acked)
		}
		p.ack(clusters)
		p.gets("CDS", "a=a:2 b=b:1", "a=a:2")
		p.set([3]string{"LDS", "l", "l:2"})
		p.gets("LDS", "l=l:2", "l=l:2")
		p.quiet("CDS")
	}},
	// spec: Resource updates; docs/xds.md: one response in flight, the newest wins.
	{"changes during a response are sent once, in their newest version", func(p *conformanceClient) {
		p.subscribe("CDS")
		r := p.wants("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		for i := 2; i < 9; i++ {
			p.set([3]string{"CDS", "a", fmt.Sprintf("a:%d", i)})
		}
		p.ack(r)
		p.gets("CDS", "a=a:8 b=b:1", "a=a:8")
		p.quiet("CDS")
	}},
	// spec: Resource updates: a change that was reverted is not sent.
	{"a change during a response that is reverted is not sent", func(p *conformanceClient) {
		p.subscribe("EDS", "a")
		r := p.wants("EDS", "", "a=a:1")
		p.set([3]string{"EDS", "a", "a:2"})
		p.set([3]string{"EDS", "a", "a:1"})
		p.ack(r)
		p.quiet("EDS")
	}},
	// spec: Resource warming; Eventual consistency: endpoints after their clusters.
	{"a changed cluster gets its unchanged endpoints", func(p *conformanceClient) {
		p.subscribe("CDS")
		p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		p.subscribe("EDS", "a", "b")
		p.gets("EDS", "", "a=a:1 b=b:1")
		p.set([3]string{"CDS", "a", "a:2"})
		p.gets("CDS", "a=a:2 b=b:1", "a=a:2")
		p.warms("a=a:1", "a")
	}},
	// spec: Resource warming; order: after a request for clusters, the next request for
	// endpoints gets an answer.
	{"a request for endpoints after clusters gets an answer even if it looks like an ACK", func(p *conformanceClient) {
		p.subscribe("EDS", "a")
		endpoints := p.gets("EDS", "", "a=a:1")
		p.subscribe("CDS")
		p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		if !p.separate && p.variant == xdswire.SotW {
			p.ack(endpoints) // a warming cluster requests its endpoints
		}
		p.warms("a=a:1", "a")
		p.quiet("EDS")
	}},
	// spec: Eventual consistency considerations: make before break.
	{"a change of all types arrives, on one stream in order", func(p *conformanceClient) {
		types := []string{"CDS", "EDS", "LDS", "RDS"}
		for _, typ := range types {
			p.subscribe(typ, "a", "l", "r")
			p.ack(p.on(typ).recv())
		}
		p.set([3]string{"RDS", "r", "r:2"}, [3]string{"LDS", "l", "l:2"}, [3]string{"EDS", "a", "a:2"}, [3]string{"CDS", "a", "a:2"})
		p.gets("CDS", "a=a:2", "a=a:2")
		p.gets("EDS", "", "a=a:2")
		p.gets("LDS", "l=l:2", "l=l:2")
		p.gets("RDS", "", "r=r:2")
	}},
	// spec: Eventual consistency considerations: routes are not warmed.
	{"routes wait for newer clusters on an ADS stream, but not on their own", func(p *conformanceClient) {
		p.subscribe("RDS", "r")
		p.gets("RDS", "", "r=r:1")
		p.subscribe("CDS")
		clusters := p.wants("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		p.set([3]string{"CDS", "a", "a:2"}, [3]string{"RDS", "r", "r:2"})
		if p.separate {
			p.gets("RDS", "", "r=r:2")
		}
		p.ack(clusters)
		p.gets("CDS", "a=a:2 b=b:1", "a=a:2")
		if !p.separate {
			p.gets("RDS", "", "r=r:2")
		}
	}},
	// spec: ACK/NACK and resource type instance version: a property of the resources.
	{"equal content has the same version on two streams", func(p *conformanceClient) {
		q := p.another(p.b, "q")
		for _, typ := range []string{"CDS", "EDS"} {
			p.subscribe(typ, "a", "b")
			q.subscribe(typ, "a", "b")
			one, other := p.gets(typ, "a=a:1 b=b:1", "a=a:1 b=b:1"), q.gets(typ, "a=a:1 b=b:1", "a=a:1 b=b:1")
			if one.version == "" || one.version != other.version || !maps.Equal(one.versions, other.versions) {
				p.t.Errorf("%s: versions %s and %s, of resources %v and %v", typ, one.version, other.version, one.versions, other.versions)
			}
		}
	}},
	// spec: ACK/NACK and resource type instance version: independent of the stream, so
	// also of the process.
	{"equal content keeps its version over a restart of the server", func(p *conformanceClient) {
		p.set([3]string{"CDS", "a", "a:0"}) // another history with the same result
		p.set([3]string{"CDS", "a", "a:1"})
		p.subscribe("CDS")
		before := p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		p.forget()
		q := p.another(startServer(p.t, small()), p.node)
		q.on("CDS").reconnect("CDS", before.versions)
		after := q.gets("CDS", "a=a:1 b=b:1", "")
		if before.version != after.version {
			p.t.Errorf("version %s, before the restart %s", after.version, before.version)
		}
	}},
	// spec: Aggregated discovery service; a type that is not served does not affect the
	// others.
	{"an unknown type gets no answer, or ends only its own stream", func(p *conformanceClient) {
		p.subscribe("CDS")
		p.gets("CDS", "a=a:1 b=b:1", "a=a:1 b=b:1")
		if !p.separate {
			p.subscribe("type.googleapis.com/unknown", "a")
		} else {
			p.subscribe("EDS", "a")
			p.gets("EDS", "", "a=a:1")
			p.on("EDS").subscribe("type.googleapis.com/unknown", "a")
			if s := p.on("EDS").status(); s.Code() != codes.InvalidArgument {
				p.t.Errorf("got %v, want InvalidArgument", s)
			}
		}
		p.quiet("CDS")
	}},
}

// giveUp unsubscribes from everything, twice.
func (p *conformanceClient) giveUp(typ string) {
	p.t.Helper()
	p.subscribe(typ)
	p.subscribe(typ)
	p.settled(typ, "")
}

// settled requests one more name, which no resource has, and waits for the answer: the
// server has then handled all requests. A full list must equal all.
func (p *conformanceClient) settled(typ, all string) {
	p.t.Helper()
	name := fmt.Sprintf("%s-none%d", probe, p.b.mesh.s.Seq)
	p.subscribe(typ, append(slices.Clone(p.on(typ).names[typ]), name)...)
	p.gets(typ, all, "")
}

// dependents receives the endpoints that a delta ADS stream gets after a request for
// clusters.
func (p *conformanceClient) dependents(typ, resources string) {
	p.t.Helper()
	if p.variant == xdswire.Delta && !p.separate {
		p.gets(typ, "", resources)
	}
}

// warms receives the endpoints that a cluster waits for. On an ADS stream they arrive
// unasked; a proxy with a stream for each type opens another one, because there every
// cluster has its own.
func (p *conformanceClient) warms(resources string, names ...string) {
	p.t.Helper()
	if !p.separate {
		p.gets("EDS", "", resources)
		return
	}
	q := p.another(p.b, p.node)
	q.subscribe("EDS", names...)
	q.gets("EDS", "", resources)
}

// status returns the server's status of the proxy for a type.
func (p *conformanceClient) status(typ string) history.TypeStatus {
	for _, s := range p.b.hub.Proxies() {
		if st, ok := s.Types[typ]; ok {
			return st
		}
	}
	return history.TypeStatus{}
}

func TestConformance(t *testing.T) {
	kinds := []struct {
		name     string
		variant  xdswire.Variant
		separate bool
	}{
		{"sotw-ads", xdswire.SotW, false},
		{"sotw-separate", xdswire.SotW, true},
		{"delta-ads", xdswire.Delta, false},
		{"delta-separate", xdswire.Delta, true},
	}
	var table strings.Builder
	cases := 0
	for _, kind := range kinds {
		fmt.Fprintf(&table, "%-15s", kind.name)
	}
	table.WriteString("behaviour\n")
	for _, bh := range behaviours {
		for _, kind := range kinds {
			ran := false
			ok := t.Run(strings.ReplaceAll(bh.name, " ", "_")+"/"+kind.name, func(t *testing.T) {
				ran = true
				bh.run(newConformanceClient(t, startServer(t, small()), kind.variant, kind.separate, "p"))
			})
			verdict := map[bool]string{true: "ok", false: "FAILED"}[ok]
			if !ran {
				verdict = "-" // excluded by -run
			} else {
				cases++
			}
			fmt.Fprintf(&table, "%-15s", verdict)
		}
		table.WriteString(bh.name + "\n")
	}
	t.Logf("%d cases\n%s", cases, table.String())
	if n := len(behaviours) * len(kinds); n < 72 {
		t.Errorf("%d cases, want 72 or more", n)
	}
}
