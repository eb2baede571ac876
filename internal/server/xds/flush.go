package xds

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// flush sends the responses that are due, in push order. A type with a response in
// flight waits. Routes, virtual hosts and listeners also wait for clusters, see clusterOrder.
func (s *session) flush() error {
	if err := s.flushPages(); err != nil {
		return err
	}
	for {
		seen := s.shown()
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

// shownViews are the views that the hub shows to a stream at one moment.
type shownViews struct {
	assigned *assignment
	now      [numTypes]viewSet
	ok       [numTypes]bool // the type is watched and its views have a state
}

// shown returns the views that the hub shows. All of them come from one round.
func (s *session) shown() (seen shownViews) {
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

// flushAll goes through all types once. It reports whether there is more to send now.
func (s *session) flushAll(seen shownViews) (again bool, err error) {
	s.demand(seen.assigned)
	now, ok := seen.now, seen.ok
	for i := range s.types {
		if ok[i] = ok[i] && s.answers(i, seen.assigned.types[i]); !ok[i] {
			continue
		}
		switch i {
		case sds:
			s.checkSecrets(now[i])
		case ecds:
			s.checkPulledPlugins(seen.assigned, now[i])
		case vhds:
			if s.hosts.mode == hostsOnDemand {
				now[i] = s.onlyRequested(now[i])
			}
		}
		now[i] = s.withoutQuarantined(i, now[i])
	}
	// The hub has not provided the requested clusters yet.
	clustersMissing := s.types[cds].watched && !seen.assigned.types[cds].demand.asked
	keep := s.keepClusters(now, ok)
	order := s.order()
	for n, i := range order {
		t := &s.types[i]
		if !ok[i] {
			continue
		}
		if t.inflight {
			t.wait(now[i])
			continue
		}
		usesClusters := i == lds || i == rds || i == vhds
		if i == lds && !t.due && ok[ecds] && s.types[ecds].inflight && s.types[ecds].sent != now[ecds] ||
			i == vhds && ok[rds] && s.routesWait(now[rds]) ||
			usesClusters && (!t.due || s.clusters.returned) && ok[cds] && s.clustersWait(now[cds]) || clustersMissing && (i == eds || usesClusters) {
			t.wait(now[i])
			continue
		}
		// Sending continues once there is room, or with the request.
		if s.requestWaiting.Load() || !s.writer.hasRoom() || !s.mayAnswer(t) {
			for _, j := range order[n:] {
				if ok[j] {
					s.types[j].wait(now[j])
				}
			}
			return false, nil
		}
		if i == vhds {
			s.sendHostsAgain(now[i])
		}
		more, err := s.flushType(i, now[i], keep && i == cds)
		if err != nil {
			return false, err
		}
		again = again || more
	}
	if seen.assigned.moving && !again {
		s.reportMoved(seen.assigned, now, ok)
	}
	return again, nil
}

// manyNames is the number of names from which an answer is large: unlike shared
// resources, its names take memory of their own.
const manyNames = 10_000

// mayAnswer reports whether an answer may be sent now. A large one waits until the
// peer has read its earlier answers.
func (s *session) mayAnswer(t *typeState) bool {
	return t.want.Names.Len() < manyNames || s.counted.HasRoom(func() { s.hub.queue.add(s) })
}

// order returns the types in the order in which to send them: a type comes before types
// that refer to it. Extensions come before listeners, although Envoy requests new ones only
// for listeners: a new listener begins with the extensions that Envoy still has for a draining
// one. The answer to a request for secrets, a name table, roots or a bootstrap, which refer
// to nothing, comes first.
func (s *session) order() [numTypes]int {
	var order [numTypes]int
	for i := range order {
		order[i] = i
	}
	copy(order[lds+1:], order[lds:ecds])
	order[lds] = ecds
	if s.lastType == sds || s.lastType == nds || s.lastType == pcds || s.lastType == bds {
		at := slices.Index(order[:], s.lastType)
		copy(order[1:], order[:at])
		order[0] = s.lastType
	}
	return order
}

// wait notes the first publication that cannot be sent yet.
func (t *typeState) wait(now viewSet) {
	if t.waiting == nil {
		t.waiting = now.round(t.sent)
	}
}

// flushType sends one response if one is due, without removals if keep is set. If it sends
// none, it reports whether another try may send one.
func (s *session) flushType(i int, now viewSet, keep bool) (again bool, err error) {
	t := &s.types[i]
	if t.held != nil {
		s.compareHeld(t, now)
	}
	moved := now != t.sent
	if !moved && !t.due && len(t.force) == 0 {
		t.waiting = nil // the publication changed nothing for this proxy
		return false, nil
	}
	asked := t.due
	namesOnly := t.refused && !moved && !t.all
	resp := s.response(i, now, namesOnly)
	if keep {
		s.removeLater(resp)
	}
	if resp.empty() && s.withholdsEmpty(i) {
		t.due, t.all = false, false
	}
	if resp.empty() && !t.due {
		switch {
		case namesOnly:
		case s.refusedAll(i):
			t.sent, t.doubt = now, nil // the proxy still has accepted nothing
		default:
			t.acked, t.sent, t.refused, t.doubt = now, now, false, nil
		}
		t.force = nil
		return t.release(), nil // the next suspects
	}
	if i == cds {
		s.warm(resp, t)
		s.clustersSent(resp)
	}
	record := s.record(t, now, asked)
	t.namesOnly, t.extra, t.sentFor = namesOnly, resp.extra, t.want
	t.due, t.all, t.force = false, false, nil
	if !namesOnly {
		t.sent = now
	}
	t.nonce, t.inflight = s.nonces.Next(), true
	return false, s.transmit(i, now.version(), resp, record)
}

// record begins the history entry of a response; asked is set if the proxy asked for
// it.
func (s *session) record(t *typeState, now viewSet, asked bool) history.SentResponse {
	r := history.SentResponse{Why: history.Request}
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

// warm makes the endpoints due of the clusters in a response: Envoy waits for the
// endpoints of a changed cluster, and in the delta variant does not request names again
// that it holds. A proxy that refused clusters before may hold any version of them.
func (s *session) warm(resp *response, clusters *typeState) {
	if !resp.fromNothing {
		e := &s.types[eds]
		for _, d := range resp.diffs {
			e.addForce(d.names())
		}
		e.addForce(resp.extra)
		e.addForce(clusters.doubt)
		return
	}
	// In the state-of-the-world variant the proxy asks again, see alwaysRespond.
	if s.sub.variant == xdswire.Delta || clusters.refused {
		s.allEndpoints()
	}
}

func (s *session) transmit(i int, version uint64, resp *response, r history.SentResponse) error {
	m := s.hub.cfg.Metrics
	f := xdswire.NewFrame(xdswire.Header{
		Version: versionInfo(version), TypeURL: xdswire.PushOrder[i], Nonce: s.types[i].nonce, Removed: resp.removed,
	}, resp.bodies...)
	r.Type, r.Version, r.At = typeName(i), version, s.hub.cfg.Now()
	s.sub.setStatus(i, func(st *typeStatus) { st.isSent, st.sentVersion, st.sentAt, st.awaited = true, version, r.At, true })
	m.sent[i].Inc()
	m.sentResources[i].Add(float64(f.Resources()))
	m.sentBytes[i].Add(float64(f.Size()))
	r.Resources, r.Removed, r.Bytes = f.Resources(), len(resp.removed), f.Size()
	push := s.sub.record.Send(r)
	s.types[i].push = push
	m.push.sent(i, &r)
	s.converging.sent(&r)
	round, at := r.Round, r.At
	f.WhenWritten(func() {
		now := s.hub.cfg.Now()
		s.sub.record.Written(push, now)
		m.push.written(i, round, at, now)
	})
	if err := s.send(f); err != nil {
		return fmt.Errorf("send %s: %w", r.Type, err)
	}
	return nil
}
