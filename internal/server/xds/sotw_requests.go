package xds

import (
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// sotw handles a request of the state-of-the-world variant. The order matters: NACK,
// unsubscribe, first request, stale nonce, ACK, forced answer, changed names. A long request has
// its names in a set.
func (s *session) sotw(req *discoveryv3.DiscoveryRequest, names *xdswire.NameSet) error {
	i := s.begin(req.GetTypeUrl(), req.GetResponseNonce(), req.GetErrorDetail())
	if i < 0 {
		return nil
	}
	t := &s.types[i]
	nonce := req.GetResponseNonce()
	want := s.subscription(names, req.GetResourceNames())
	none := !want.Wildcard && want.Names.Len() == 0
	if t.named = t.named || !none; none && fullList(i) {
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
		if i == cds {
			s.clusters.returned = !t.fresh && s.aggregated
		}
		if i == cds && s.types[eds].watched {
			s.types[eds].alwaysRespond = true
		}
		return nil
	case nonce != t.nonce:
		s.hub.cfg.Metrics.expired[i].Inc()
		// No answer. But a name that the proxy drops now and requests again before
		// its next ACK must then count as new.
		gone := func(name string) bool { return !want.Has(name) }
		if want.Names != t.want.Names && slices.ContainsFunc(t.want.Names.Names(), gone) {
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
