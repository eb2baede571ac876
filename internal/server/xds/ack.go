package xds

import (
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// accept notes the ACK of the response in flight.
func (s *session) accept(i int) {
	t := &s.types[i]
	if !t.inflight {
		return
	}
	t.inflight = false
	now := s.hub.cfg.Now()
	s.sub.record.ACK(t.push, now)
	if t.namesOnly {
		t.doubt = sortedUnique(t.doubt, t.extra)
		s.sub.setStatus(i, func(st *typeStatus) { st.answered(now) })
	} else {
		t.acked, t.refused, t.doubt, t.assumed = t.sent, false, nil, false
		version := t.sent.version()
		s.sub.setStatus(i, func(st *typeStatus) {
			st.answered(now)
			st.acked, st.ackedVersion, st.nack = true, version, nil
		})
	}
	t.extra = nil
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
	lists := [][]string{t.doubt, t.extra}
	if !t.namesOnly {
		t.refused = true
		for _, d := range t.sent.since(t.acked) {
			lists = append(lists, d.names(), d.removed)
		}
	}
	told := slices.DeleteFunc(sortedUnique(lists...), func(n string) bool { return !t.sentFor.Has(n) || !t.want.Has(n) })
	found := s.quarantine(i, told, message, nack)
	s.sub.record.NACK(t.push, nack.At, nack.Message, found)
	// Names that the search for what was refused let go are in doubt, too.
	t.doubt = slices.DeleteFunc(sortedUnique(told, t.doubt), t.quarantine.has)
	t.extra = nil
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
