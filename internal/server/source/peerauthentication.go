package source

import (
	"fmt"
	"maps"
	"slices"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

var peerAuthenticationKind = closedKind(istioKind(kind{
	group: groupSecurity, name: "PeerAuthentication", plural: "peerauthentications", versions: []string{"v1", "v1beta1"},
	support: fields.Works, meaning: "with a selector in the root namespace it selects nothing, as in Istio",
}, func(c *conversion, spec *securityv1beta1.PeerAuthentication) *fields.Error {
	c.object = &snapshot.PeerAuthentication{Meta: c.meta, Kind: snapshot.KindPeerAuthentication, Spec: spec}
	return checkPeerAuthentication(spec)
}), closedPeerAuthentication)

func checkPeerAuthentication(p *securityv1beta1.PeerAuthentication) *fields.Error {
	faults := fields.LabelsFault("selector.matchLabels", p.GetSelector().GetMatchLabels())
	if len(p.PortLevelMtls) > 0 && len(p.GetSelector().GetMatchLabels()) == 0 {
		faults = faults.And(fields.Faultf("portLevelMtls", "needs a selector"))
	}
	for _, port := range slices.Sorted(maps.Keys(p.PortLevelMtls)) {
		field := fmt.Sprintf("portLevelMtls[%d]", port)
		switch {
		case !fields.IsPort(port):
			faults = faults.And(fields.Faultf(field, "%d is not a port: want 1 to 65535", port))
		case p.PortLevelMtls[port] == nil:
			faults = faults.And(fields.Faultf(field, "is empty"))
		}
	}
	return faults
}
