package xds

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// session is the state of one stream.
type session struct {
	hub    *Hub
	sub    *subscriber
	log    *slog.Logger
	send   func(*xdswire.Frame) error
	writes *writes
	// counted counts the names that are subscribed to, as of counts.
	counted *admission.Stream
	counts  [numTypes]*xdswire.NameSet
	ended   chan error  // capacity 1: why the stream ends
	news    atomic.Bool // the hub published something since the last flush
	asking  atomic.Bool // a request waits for mu: nothing is sent before it
	queued  bool        // under the lock of the hub's queue

	// mu is held by the goroutine that works for the session, never for long:
	// the one that receives, or one of the hub's queue.
	mu     sync.Mutex
	closed bool // nothing may be sent
	nonces xdswire.Nonces
	types  [numTypes]typeState
	answer int // the type of the last request
	// demanded is what the hub was told that the stream asks for, by the
	// state in told.
	demanded [numTypes]demand
	told     demandBasis
	// warned is what was said of secrets, by the state in checked.
	warned  *xdswire.NameSet
	checked secretsBasis
	// converging is the change that is being sent.
	converging converging
	inquiries  inquiries
	// health takes what the peer says of its workload; nil when nobody does.
	health func(problem string)
}

// typeState is what a stream knows of one type. There is no map of versions:
// what the proxy holds is what the pair acked holds, but for the names in
// doubt.
type typeState struct {
	watched bool
	want    xdswire.Subscription
	// nonce is that of the last response; inflight says that neither ACK nor
	// NACK has come for it.
	nonce    string
	inflight bool
	// acked is the last pair that the proxy is known to hold, sent the last
	// one that it was sent. They differ while a response is in flight and
	// after one was refused.
	acked, sent pair
	refused     bool
	// aside says that the response in flight carries only names that were
	// asked for while sent stands refused: its ACK does not accept sent.
	aside bool
	// push is the number of the response in flight in the stream's record;
	// waiting is the first publication that it keeps back.
	push    uint64
	waiting *history.Round
	// doubt are names of which the proxy may hold something else than acked
	// has, because it refused a response with them, perhaps only in part.
	doubt []string
	// due says that an answer is owed even when there is nothing to tell; all
	// that it must carry everything subscribed to.
	due, all bool
	// force are names to send, whether they changed or not.
	force []string
	// framed are the names in the response in flight besides those that
	// differ between acked and sent, asked what was subscribed to then.
	framed []string
	asked  xdswire.Subscription
	// held are the versions that the proxy said to hold, until the views can
	// be compared with them.
	held map[string]string
	// alwaysRespond is armed when clusters are asked for anew: the next
	// request is answered even if it looks like an ACK.
	alwaysRespond bool
	// withheld is what the proxy refused; nil when there is nothing.
	withheld *withheld
	// fresh says that the proxy holds nothing of an earlier stream.
	fresh bool
	// assumed says that acked is what a proxy that connected anew was found to
	// hold, besides names to send; nothing was accepted on this stream.
	assumed bool
	// named says that the stream subscribed to names once, the wildcard's
	// included: from then on a list without names asks for nothing.
	named bool
}

// fullList says that responses of the type carry everything subscribed to in
// the state of the world variant, where what is absent is removed.
func fullList(i int) bool { return i == cds || i == lds || i == nds || i == pcds }

// maxForce bounds the names kept to be sent; beyond it everything is.
const maxForce = 4096

// addForce notes names to send. The list may be shared, so it is not written.
func (t *typeState) addForce(names []string) {
	if len(t.force) == 0 {
		t.force = slices.Clip(names)
	} else if len(names) > 0 {
		t.force = append(t.force, names...)
	}
	if len(t.force) <= maxForce {
		return
	}
	if t.force = sortedUnique(t.force); len(t.force) > maxForce {
		t.force, t.all = nil, true
		t.due = t.due || t.watched
	}
}

func sortedUnique(names ...[]string) []string {
	out := slices.Concat(names...)
	slices.Sort(out)
	return slices.Compact(out)
}

// sotw takes one request of the state of the world variant, in this order:
// NACK, unsubscribe, first request, stale nonce, ACK, forced answer, change
// of names.
func (s *session) sotw(req *discoveryv3.DiscoveryRequest) error {
	i := typeIndex(req.GetTypeUrl())
	if i < 0 {
		return nil
	}
	t := &s.types[i]
	s.answer = i
	nonce, names := req.GetResponseNonce(), req.GetResourceNames()
	if e := req.GetErrorDetail(); e != nil {
		s.hub.cfg.Metrics.pilot.rejected(i, e.GetCode())
		s.refuse(i, nonce, e.GetMessage())
	}
	want := xdswire.Subscription{Names: t.want.Names}
	if !want.Names.Is(names) {
		want = s.subscription(names)
	}
	t.named = t.named || len(names) > 0
	if len(names) == 0 && fullList(i) {
		want.Wildcard = !t.named
	}
	if err := s.allowed(i, want); err != nil {
		return err
	}
	switch {
	case !want.Wildcard && want.Names.Len() == 0:
		s.unwatch(i)
		return nil
	case !t.watched || nonce == "":
		s.watch(i, want)
		t.fresh = req.GetVersionInfo() == ""
		if i == cds && s.types[eds].watched {
			s.types[eds].alwaysRespond = true
		}
		return nil
	case nonce != t.nonce:
		s.hub.cfg.Metrics.expired[i].Inc()
		// No answer. But a name that the proxy gave up and takes up again
		// before its next ACK must count as new then.
		gone := func(name string) bool { return !want.Has(name) }
		if slices.ContainsFunc(t.want.Names.Names(), gone) {
			t.want.Names = s.hub.names.Of(slices.DeleteFunc(slices.Clone(t.want.Names.Names()), gone))
		}
		return nil
	}
	if req.GetErrorDetail() == nil {
		s.accept(i)
	}
	before := t.want
	t.want = want
	switch {
	case t.alwaysRespond:
		t.alwaysRespond = false
		t.due, t.all = true, true
	case want == before:
	case fullList(i) || want.Wildcard:
		t.due, t.all = true, true
	case !before.Wildcard:
		t.addForce(slices.DeleteFunc(slices.Clone(want.Names.Names()), before.Names.Has))
	}
	return nil
}

// subscription is what a list of names asks for.
func (s *session) subscription(names []string) xdswire.Subscription {
	if slices.Contains(names, xdswire.Wildcard) {
		names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == xdswire.Wildcard })
		return xdswire.Subscription{Wildcard: true, Names: s.hub.names.Of(names)}
	}
	return xdswire.Subscription{Names: s.hub.names.Of(names)}
}

// allowed checks the size of a subscription.
func (s *session) allowed(i int, want xdswire.Subscription) error {
	l := s.hub.cfg.Limits
	if want.Names.Len() <= l.Names && want.Names.Bytes() <= l.NameBytes {
		return nil
	}
	s.hub.cfg.Metrics.rejected.Inc()
	return status.Errorf(codes.ResourceExhausted, "%s subscription has %d names of %d bytes, at most %d names of %d bytes are accepted",
		xdswire.ShortType(xdswire.PushOrder[i]), want.Names.Len(), want.Names.Bytes(), l.Names, l.NameBytes)
}

// holdNames counts the names subscribed to for the peer.
func (s *session) holdNames() error {
	var names [numTypes]*xdswire.NameSet
	for i := range s.types {
		names[i] = s.types[i].want.Names
	}
	if names == s.counts {
		return nil
	}
	s.counts = names
	return s.counted.Hold(names[:])
}

// watch starts a type anew: everything is sent, whatever was before.
func (s *session) watch(i int, want xdswire.Subscription) {
	t := &s.types[i]
	s.forgetRefused(i)
	*t = typeState{watched: true, want: want, due: true, all: true, force: t.force, named: t.named}
	s.sub.setStatus(i, func(st *typeStatus) { st.watched = true })
}

// unwatch forgets a type.
func (s *session) unwatch(i int) {
	s.forgetRefused(i)
	s.types[i] = typeState{named: s.types[i].named}
	s.sub.setStatus(i, func(st *typeStatus) { *st = typeStatus{} })
}

// delta takes one request of the delta variant.
func (s *session) delta(req *discoveryv3.DeltaDiscoveryRequest) error {
	i := typeIndex(req.GetTypeUrl())
	if i < 0 {
		return nil
	}
	t := &s.types[i]
	s.answer = i
	nonce := req.GetResponseNonce()
	if e := req.GetErrorDetail(); e != nil {
		s.hub.cfg.Metrics.pilot.rejected(i, e.GetCode())
		s.refuse(i, nonce, e.GetMessage())
	}
	if !t.watched {
		return s.deltaFirst(i, req)
	}
	switch {
	case nonce == "":
	case nonce != t.nonce:
		// It answers nothing, but its names count: they are not repeated.
		s.hub.cfg.Metrics.expired[i].Inc()
	case req.GetErrorDetail() == nil:
		s.accept(i)
	}
	if len(req.GetResourceNamesUnsubscribe()) > 0 {
		s.unsubscribe(t, s.subscription(req.GetResourceNamesUnsubscribe()))
	}
	if len(req.GetResourceNamesSubscribe()) == 0 {
		return nil
	}
	more := s.subscription(req.GetResourceNamesSubscribe())
	t.want.Names = s.hub.names.With(t.want.Names, more.Names.Names())
	if err := s.allowed(i, t.want); err != nil {
		return err
	}
	// A name that the proxy holds already and asks for again is sent again:
	// it may have dropped it in between.
	t.addForce(more.Names.Names())
	if more.Wildcard && !t.want.Wildcard {
		t.want.Wildcard = true
		t.due, t.all = true, true
	}
	s.afterClusters(i)
	return nil
}

// unsubscribe takes names out of a subscription of the delta variant.
func (s *session) unsubscribe(t *typeState, gone xdswire.Subscription) {
	before := t.want.Names
	t.want.Names = s.hub.names.Without(before, gone.Names.Names())
	t.want.Wildcard = t.want.Wildcard && !gone.Wildcard
	if !t.want.Wildcard {
		return
	}
	// The proxy cannot know whether the wildcard has what it gave up.
	t.addForce(slices.DeleteFunc(slices.Clone(gone.Names.Names()), func(n string) bool { return !before.Has(n) }))
}

// deltaFirst takes the first request for a type. The versions that the proxy
// says it holds are compared with what the views hold now, and only what
// differs is remembered, as names to send.
func (s *session) deltaFirst(i int, req *discoveryv3.DeltaDiscoveryRequest) error {
	t := &s.types[i]
	want := s.subscription(req.GetResourceNamesSubscribe())
	legacy := len(req.GetResourceNamesSubscribe()) == 0 && len(req.GetResourceNamesUnsubscribe()) == 0
	want.Wildcard = want.Wildcard || fullList(i) && legacy
	held := req.GetInitialResourceVersions()
	if !want.Wildcard && len(held) > 0 {
		names := make([]string, 0, len(held))
		for name := range held {
			if name != xdswire.Wildcard { // which no resource is called
				names = append(names, name)
			}
		}
		want.Names = s.hub.names.With(want.Names, names)
	}
	if err := s.allowed(i, want); err != nil {
		return err
	}
	s.watch(i, want)
	// Endpoints are sent even if held: the last stream may have ended between
	// a changed cluster, which waits for them, and them.
	if len(held) > 0 && (i != eds || want.Wildcard) {
		t.all = false
		t.held = held
	}
	// A type that is asked for by no name has nothing to wait for.
	t.due = want.Wildcard || want.Names.Len() > 0
	s.afterClusters(i)
	return nil
}

// afterClusters sees to it that an answered request for clusters is followed
// by all endpoints that are watched: clusters that a proxy asks for anew wait
// for them, and a proxy does not ask again for names that it holds.
func (s *session) afterClusters(i int) {
	if i == cds && s.types[eds].watched {
		s.allEndpoints()
	}
}

// allEndpoints has all endpoints sent again that are watched, or will be.
func (s *session) allEndpoints() {
	e := &s.types[eds]
	e.all = true
	e.due = e.due || e.want.Wildcard || e.want.Names.Len() > 0
}

// accept notes the ACK of the response in flight.
func (s *session) accept(i int) {
	t := &s.types[i]
	if !t.inflight {
		return
	}
	t.inflight = false
	now := s.hub.cfg.Now()
	s.sub.record.ACK(t.push, now)
	if t.aside {
		t.doubt = sortedUnique(t.doubt, t.framed)
		s.sub.setStatus(i, func(st *typeStatus) { st.answered(now) })
	} else {
		t.acked, t.refused, t.doubt, t.assumed = t.sent, false, nil, false
		version := t.sent.version()
		s.sub.setStatus(i, func(st *typeStatus) {
			st.answered(now)
			st.acked, st.ackedVersion, st.nack = true, version, nil
		})
	}
	t.framed = nil
	t.release()
}

// refuse notes a NACK: the last good state stays, and all names that the
// response told of are in doubt until a later one is accepted. The refused
// pair is not sent again until the views hold something else.
func (s *session) refuse(i int, nonce, message string) {
	s.hub.cfg.Metrics.nacks[i].Inc()
	t := &s.types[i]
	if !t.inflight || nonce != t.nonce {
		return // it complains of something else than was sent last
	}
	version := versionInfo(t.sent.version())
	nack := &history.LastNACK{Version: version, Message: clip(message), At: s.hub.cfg.Now()}
	s.log.Warn("the proxy refused a response and keeps what it had",
		"type", xdswire.ShortType(xdswire.PushOrder[i]), "version", version, "nonce", clip(nonce), "error", nack.Message)
	s.sub.setStatus(i, func(st *typeStatus) {
		st.answered(nack.At)
		st.nack = nack
	})
	t.inflight = false
	lists := [][]string{t.doubt, t.framed}
	if !t.aside {
		t.refused = true
		for _, d := range t.sent.since(t.acked) {
			lists = append(lists, d.names(), d.removed)
		}
	}
	told := slices.DeleteFunc(sortedUnique(lists...), func(n string) bool { return !t.asked.Has(n) || !t.want.Has(n) })
	found := s.blame(i, told, message, nack)
	s.sub.record.NACK(t.push, nack.At, nack.Message, found)
	// Names that the search for what was refused let go are in doubt, too.
	t.doubt = slices.DeleteFunc(sortedUnique(told, t.doubt), t.withheld.has)
	t.framed = nil
}

// clip bounds a text that a peer chose, for logs and status.
func clip(s string) string {
	if strings.Contains(s, "PRIVATE KEY") {
		return "(a text with a private key in it, which is not shown)"
	}
	const most = 1024
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}

// flush sends what is owed, in push order. A type with a response in flight
// waits; routes and listeners wait for newer clusters that do, so that they
// do not refer to what the proxy cannot know yet.
func (s *session) flush() error {
	if err := s.flushPages(); err != nil {
		return err
	}
	for {
		seen := s.look()
		if seen.by == nil || s.closed {
			return nil
		}
		if seen.by.err != nil {
			return status.Error(codes.Internal, "no configuration could be chosen for the proxy")
		}
		again, err := s.flushAll(seen)
		if err != nil {
			return err
		}
		if !again {
			s.settle()
			return nil
		}
	}
}

// sight is what a stream is given at one moment.
type sight struct {
	by  *assignment
	now [numTypes]pair
	ok  [numTypes]bool // the type is watched, and its views hold something
}

// look reads what the hub shows: all of it is of one round.
func (s *session) look() (seen sight) {
	s.hub.showing.RLock()
	defer s.hub.showing.RUnlock()
	if seen.by = s.sub.assigned.Load(); seen.by == nil {
		return seen
	}
	for i, views := range seen.by.types {
		if s.types[i].watched && views.served {
			seen.now[i], seen.ok[i] = views.pair()
		}
	}
	return seen
}

// flushAll goes once through the types. It reports whether there is more to
// send now.
func (s *session) flushAll(seen sight) (again bool, err error) {
	s.demand(seen.by)
	now, ok := seen.now, seen.ok
	for i := range s.types {
		if ok[i] = ok[i] && s.answers(i, seen.by.types[i]); !ok[i] {
			continue
		}
		if i == sds {
			s.checkSecrets(now[i])
		}
		now[i] = s.left(i, now[i])
	}
	// The hub has still to give the clusters that are asked for.
	clustersCome := s.types[cds].watched && !seen.by.types[cds].demand.asked
	clustersWait := false
	order := s.order()
	for n, i := range order {
		t := &s.types[i]
		if !ok[i] {
			continue
		}
		if t.inflight {
			clustersWait = clustersWait || i == cds && now[i] != t.sent
			t.wait(now[i])
			continue
		}
		if clustersWait && !t.due && (i == lds || i == rds) || clustersCome && (i == eds || i == lds || i == rds) {
			t.wait(now[i])
			continue
		}
		// To go on once there is room, or with the request.
		if s.asking.Load() || !s.writes.hasRoom() || !s.mayAnswer(t) {
			for _, j := range order[n:] {
				if ok[j] {
					s.types[j].wait(now[j])
				}
			}
			return false, nil
		}
		more, err := s.flushType(i, now[i])
		if err != nil {
			return false, err
		}
		again = again || more
	}
	return again, nil
}

// manyNames is from how many names on an answer is large by itself: a list of
// resources that others share is not.
const manyNames = 10_000

// mayAnswer reports whether the peer reads its answers. When it does not, large
// ones wait until it has.
func (s *session) mayAnswer(t *typeState) bool {
	return t.want.Names.Len() < manyNames || s.counted.HasRoom(func() { s.hub.queue.add(s) })
}

// order is in which order the types are sent: what is referred to first. The
// answer to a request for secrets, a name table or roots, which refer to nothing, goes
// before all that was published.
func (s *session) order() [numTypes]int {
	var order [numTypes]int
	for i := range order {
		order[i] = i
	}
	if s.answer == sds || s.answer == nds || s.answer == pcds {
		copy(order[1:], order[:s.answer])
		order[0] = s.answer
	}
	return order
}

// wait notes the first publication that cannot be sent yet.
func (t *typeState) wait(now pair) {
	if t.waiting == nil {
		t.waiting = now.round(t.sent)
	}
}

// flushType sends one response when one is owed. It reports whether another is
// owed although none was sent.
func (s *session) flushType(i int, now pair) (again bool, err error) {
	t := &s.types[i]
	if t.held != nil {
		s.compareHeld(t, now)
	}
	moved := now != t.sent
	if !moved && !t.due && len(t.force) == 0 {
		t.waiting = nil // it came to nothing for this proxy
		return false, nil
	}
	asked := t.due
	aside := t.refused && !moved && !t.all
	c := s.content(i, now, aside)
	if c.empty() && (i == sds || s.refusedAll(i)) {
		t.due, t.all = false, false // it waits for its secrets, or for other resources
	}
	if c.empty() && !t.due {
		if !aside {
			t.acked, t.sent, t.refused, t.doubt = now, now, false, nil
		}
		t.force = nil
		return t.release(), nil // the next suspects
	}
	if i == cds {
		s.warm(c, t)
	}
	record := s.record(t, now, asked)
	t.aside, t.framed, t.asked = aside, c.framed, t.want
	t.due, t.all, t.force = false, false, nil
	if !aside {
		t.sent = now
	}
	t.nonce, t.inflight = s.nonces.Next(), true
	return false, s.transmit(i, now.version(), c, record)
}

// refusedAll reports whether the proxy has refused all that it was ever told of a
// type. An empty list would take nothing away, but let it start with nothing.
func (s *session) refusedAll(i int) bool {
	t := &s.types[i]
	return fullList(i) && t.withheld != nil && t.acked == pair{}
}

// record begins the record of a response of which the rest is not known yet.
// It says whether the proxy asked for it.
func (s *session) record(t *typeState, now pair, asked bool) history.Response {
	r := history.Response{Why: history.Request}
	switch round := now.round(t.sent); {
	case asked:
	case round != nil:
		r.Why, r.Round, r.First = history.Change, round, cmp.Or(t.waiting, round)
		r.Queued = r.First.Generated
	case t.refused:
		r.Why = history.Repair
	}
	t.waiting = nil
	return r
}

// compareHeld turns the versions that the proxy holds into names to send and
// forgets them.
func (s *session) compareHeld(t *typeState, now pair) {
	force := slices.Clip(t.force)
	found := 0 // of those that are held
	for _, state := range []*viewState{now.shared, now.own} {
		for _, r := range state.list() {
			if state == now.own && now.shared.get(r.Name) != nil {
				continue // that one counts
			}
			version, held := t.held[r.Name]
			if held {
				found++
			}
			if version != r.Version && t.want.Has(r.Name) {
				force = append(force, r.Name)
			}
		}
	}
	lacking := func(name string) {
		if t.want.Has(name) && now.get(name) == nil {
			force = append(force, name)
		}
	}
	if found < len(t.held) {
		for name := range t.held {
			lacking(name)
		}
	}
	for _, name := range t.want.Names.Names() {
		lacking(name)
	}
	t.force, t.held = force, nil
	t.acked, t.sent, t.assumed = now, now, true
}

// warm has the endpoints sent again of the clusters that a response tells of:
// Envoy waits for the endpoints of a cluster that changed, and the delta
// variant does not ask again for names that it holds. A proxy that refused
// clusters before may hold any of them.
func (s *session) warm(c *content, clusters *typeState) {
	if !c.fromNothing {
		e := &s.types[eds]
		for _, d := range c.diffs {
			e.addForce(d.names())
		}
		e.addForce(c.framed)
		e.addForce(clusters.doubt)
		return
	}
	// State of the world asks again by itself, which alwaysRespond is for.
	if s.sub.variant == xdswire.Delta || clusters.refused {
		s.allEndpoints()
	}
}

func (s *session) transmit(i int, version uint64, c *content, r history.Response) error {
	m := s.hub.cfg.Metrics
	f := xdswire.NewFrame(xdswire.Header{
		Version: versionInfo(version), TypeURL: xdswire.PushOrder[i], Nonce: s.types[i].nonce, Removed: c.removed,
	}, c.bodies...)
	r.Type, r.Version, r.At = xdswire.ShortType(xdswire.PushOrder[i]), version, s.hub.cfg.Now()
	s.sub.setStatus(i, func(st *typeStatus) { st.isSent, st.sentVersion, st.sentAt, st.awaited = true, version, r.At, true })
	m.sent[i].Inc()
	m.sentResources[i].Add(float64(f.Resources()))
	m.sentBytes[i].Add(float64(f.Size()))
	r.Resources, r.Removed, r.Bytes = f.Resources(), len(c.removed), f.Size()
	push := s.sub.record.Send(r)
	s.types[i].push = push
	m.pilot.sent(i, &r)
	s.converging.sent(&r)
	round, at := r.Round, r.At
	f.WhenWritten(func() {
		now := s.hub.cfg.Now()
		s.sub.record.Written(push, now)
		m.pilot.written(i, round, at, now)
	})
	if err := s.send(f); err != nil {
		return fmt.Errorf("send %s: %w", r.Type, err)
	}
	return nil
}
