package xds

import (
	"errors"
	"fmt"
	"strings"

	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// onDemand says that the views of a type are made for a stream only once it
// asks: most proxies want no name table, and which secrets a stream is given
// depends on what it asks for and on who it was proved to be.
func (h *Hub) onDemand(i int) bool {
	return i == nds || i == sds && h.cfg.Generation.Secrets != nil
}

// neverRemoved says that a resource that is gone is not told of: a gateway
// whose Secret was deleted goes on with what it has, and one that waits for a
// secret goes on waiting. A filter whose configuration is said to be gone
// answers each request with an error, also on connections of a listener that
// drains because it had the filter; Envoy gives up by itself what no listener
// refers to.
func neverRemoved(i int) bool { return i == sds || i == ecds }

// demand is what a stream asks for of a type that is made on demand.
type demand struct {
	asked bool
	// secrets is what the stream may have of the secrets that it asks for,
	// which names are.
	secrets xdsgen.Secrets
	names   *xdswire.NameSet
}

// demandKey is who demands what type.
type demandKey struct {
	sub *subscriber
	typ int
}

// demandBasis is what a stream's demands follow from.
type demandBasis struct {
	by           *assignment // new whenever what decides may have changed
	table        bool        // asked for
	secrets      bool
	secretsNames *xdswire.NameSet
}

// demand tells the hub what the stream asks for, when that differs from what
// it was told before. Whether secrets are given is decided anew each time, by
// who the caller was proved to be.
func (s *session) demand(a *assignment) {
	basis := demandBasis{a, s.types[nds].watched, s.types[sds].watched, s.types[sds].want.Names}
	snap := s.hub.current.Load()
	if basis == s.told || snap == nil {
		return
	}
	s.told = basis
	for _, i := range []int{sds, nds} {
		d := demand{asked: s.types[i].watched && s.hub.onDemand(i)}
		if i == sds && d.asked {
			d.names = s.types[sds].want.Names
			mayReadKeys := s.hub.cfg.MayReadKeys != nil && s.hub.cfg.MayReadKeys(snap, s.sub.caller, s.sub.node) == nil
			d.secrets = s.hub.cfg.Generation.Secrets(snap, s.sub.caller, mayReadKeys, d.names)
		}
		if s.demanded[i] != d {
			s.demanded[i] = d
			s.hub.post(func(m *mail) {
				if m.demands == nil {
					m.demands = make(map[demandKey]demand)
				}
				m.demands[demandKey{s.sub, i}] = d // only the newest counts
			})
		}
	}
}

// heed gives streams views of what they ask for.
func (h *Hub) heed(demands map[demandKey]demand, chosen map[*subscriber]*assignment) {
	of := make(map[*subscriber]struct{})
	for k, d := range demands {
		if _, ok := h.subs[k.sub]; ok {
			k.sub.demands[k.typ] = d
			of[k.sub] = struct{}{}
		}
	}
	for sub := range of {
		// After a panic, which guard tells of, the stream keeps its views.
		_ = h.guard("choose views", sub.id, func() { chosen[sub] = h.assign(sub) })
	}
}

// answers reports whether the views of a type are those of what the stream
// asks for and may have now. Until they are nothing is sent: a view with keys
// may show newer ones than the stream had a right to.
func (s *session) answers(i int, t typeViews) bool {
	return t.served && (i != sds || t.demand == s.demanded[sds])
}

// secretsBasis is what is said of a stream's secrets follows from.
type secretsBasis struct {
	now pair
	of  demand
}

// maxTold bounds how many names a warning has.
const maxTold = 3

// checkSecrets warns of secrets that the stream asked for and is not given, or
// is given though they are out of date: once for each set of them.
func (s *session) checkSecrets(now pair) {
	basis := secretsBasis{now, s.demanded[sds]}
	if basis == s.checked {
		return
	}
	s.checked = basis
	var names, reasons []string
	for _, name := range basis.of.names.Names() {
		err := s.checkSecret(name)
		if err == nil {
			continue
		}
		if names = append(names, name); len(names) <= maxTold {
			reasons = append(reasons, fmt.Sprintf("%.300q %v", name, err))
		}
	}
	bad := s.hub.names.Of(names)
	if bad == s.warned {
		return
	}
	s.warned = bad
	if len(names) == 0 {
		s.log.Info("the proxy is given all secrets that it asks for")
		return
	}
	if more := len(names) - maxTold; more > 0 {
		reasons = append(reasons, fmt.Sprintf("and %d more", more))
	}
	s.hub.cfg.Metrics.badSecrets.Add(float64(len(names)))
	s.log.Warn("secrets that the proxy asks for are not given, or are out of date", "secrets", strings.Join(reasons, "; "))
}

// checkSecret is why a secret is not given, or what is wrong with it.
func (s *session) checkSecret(name string) error {
	snap := s.hub.current.Load()
	err := s.demanded[sds].secrets.Check(snap, name, s.hub.cfg.Now())
	if !errors.Is(err, xdsgen.ErrKeysDenied) || s.hub.cfg.MayReadKeys == nil {
		return err
	}
	if why := s.hub.cfg.MayReadKeys(snap, s.sub.caller, s.sub.node); why != nil {
		return fmt.Errorf("%w: %w", err, why)
	}
	return err
}

// joined turns changes of the pieces of a resource into that of the resource.
func (h *Hub) joined(v *liveView, to xdsgen.Joined, changes map[string]*xdswire.Resource) map[string]*xdswire.Resource {
	pieces := v.pieces.next(h.states, changes)
	if pieces == v.pieces {
		return nil
	}
	v.pieces = pieces
	r := to.Join(&h.encoder, pieces.resources)
	return map[string]*xdswire.Resource{r.Name: r}
}
