package xds

import (
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/server/xds/history"
)

// accept handles the ACK of the response in flight.
func (s *session) accept(i int) {
	t := &s.types[i]
	if !t.inflight {
		return
	}
	t.inflight = false
	now := s.hub.cfg.Now()
	s.sub.record.ACK(t.push, now)
	if i == rds {
		s.routesAccepted()
	}
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

// refuse handles a NACK. The last accepted state stays, and all names in the response
// are in doubt until a later response is accepted. The refused pair is not sent again
// until the views change.
func (s *session) refuse(i int, nonce, message string) {
	s.hub.cfg.Metrics.nacks[i].Inc()
	t := &s.types[i]
	if !t.inflight || nonce != t.nonce {
		return // it refers to an older response
	}
	version := versionInfo(t.sent.version())
	nack := &history.LastNACK{Version: version, Message: clip(message), At: s.hub.cfg.Now()}
	s.log.Warn("the proxy refused a response and keeps what it had",
		"type", typeName(i), "version", version, "nonce", clip(nonce), "error", nack.Message)
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
	sent := slices.DeleteFunc(sortedUnique(lists...), func(n string) bool { return !t.sentFor.Has(n) || !t.want.Has(n) })
	found := s.quarantine(i, sent, message, nack)
	s.sub.record.NACK(t.push, nack.At, nack.Message, found)
	if i == vhds {
		t.addForce(found) // requests wait for an answer
	}
	// Names that the search released from quarantine are in doubt, too.
	t.doubt = slices.DeleteFunc(sortedUnique(sent, t.doubt), t.quarantine.has)
	t.extra = nil
}

// clip bounds and cleans a text of a peer, for logs and status pages.
func clip(s string) string {
	if strings.Contains(s, "PRIVATE KEY") {
		return "(not shown: the text contains a private key)"
	}
	if strings.Contains(s, `"auths`) || strings.Contains(s, `auths\"`) {
		return "(not shown: the text contains credentials)"
	}
	if len(s) > maxPeerText {
		s = s[:maxPeerText] + "…"
	}
	return strings.ToValidUTF8(s, "?")
}
