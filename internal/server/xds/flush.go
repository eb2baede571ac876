package xds

import (
	"cmp"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// flush sends what is owed, in push order. A type with a response in flight
// waits; routes and listeners wait for newer clusters that do, so that they
// do not refer to what the proxy cannot know yet.
func (s *session) flush() error {
	if err := s.flushPages(); err != nil {
		return err
	}
	for {
		seen := s.published()
		if seen.assigned == nil || s.closed {
			return nil
		}
		if seen.assigned.err != nil {
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
type published struct {
	assigned  *assignment
	now [numTypes]pair
	ok  [numTypes]bool // the type is watched, and its views hold something
}

// look reads what the hub shows: all of it is of one round.
func (s *session) published() (seen published) {
	s.hub.showing.RLock()
	defer s.hub.showing.RUnlock()
	if seen.assigned = s.sub.assigned.Load(); seen.assigned == nil {
		return seen
	}
	for i, views := range seen.assigned.types {
		if s.types[i].watched && views.served {
			seen.now[i], seen.ok[i] = views.pair()
		}
	}
	return seen
}

// flushAll goes once through the types. It reports whether there is more to
// send now.
func (s *session) flushAll(seen published) (again bool, err error) {
	s.demand(seen.assigned)
	now, ok := seen.now, seen.ok
	for i := range s.types {
		if ok[i] = ok[i] && s.answers(i, seen.assigned.types[i]); !ok[i] {
			continue
		}
		if i == sds {
			s.checkSecrets(now[i])
		}
		now[i] = s.withoutQuarantined(i, now[i])
	}
	// The hub has still to give the clusters that are asked for.
	clustersCome := s.types[cds].watched && !seen.assigned.types[cds].demand.asked
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
		if s.requestWaiting.Load() || !s.writer.hasRoom() || !s.mayAnswer(t) {
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
	if s.lastType == sds || s.lastType == nds || s.lastType == pcds {
		copy(order[1:], order[:s.lastType])
		order[0] = s.lastType
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
	c := s.response(i, now, aside)
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
	t.namesOnly, t.extra, t.sentFor = aside, c.extra, t.want
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
	return fullList(i) && t.quarantine != nil && t.acked == pair{}
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

// warm has the endpoints sent again of the clusters that a response tells of:
// Envoy waits for the endpoints of a cluster that changed, and the delta
// variant does not ask again for names that it holds. A proxy that refused
// clusters before may hold any of them.
func (s *session) warm(c *response, clusters *typeState) {
	if !c.fromNothing {
		e := &s.types[eds]
		for _, d := range c.diffs {
			e.addForce(d.names())
		}
		e.addForce(c.extra)
		e.addForce(clusters.doubt)
		return
	}
	// State of the world asks again by itself, which alwaysRespond is for.
	if s.sub.variant == xdswire.Delta || clusters.refused {
		s.allEndpoints()
	}
}

func (s *session) transmit(i int, version uint64, c *response, r history.Response) error {
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
	m.istio.sent(i, &r)
	s.converging.sent(&r)
	round, at := r.Round, r.At
	f.WhenWritten(func() {
		now := s.hub.cfg.Now()
		s.sub.record.Written(push, now)
		m.istio.written(i, round, at, now)
	})
	if err := s.send(f); err != nil {
		return fmt.Errorf("send %s: %w", r.Type, err)
	}
	return nil
}
