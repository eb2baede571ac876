package xds

import (
	"slices"
	"testing"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
)

// TestMovingPolicies: a policy with another action is in force twice, and the old version goes
// once the proxy has the new one.
func TestMovingPolicies(t *testing.T) {
	t.Parallel()
	const deny, allow, custom = securityv1beta1.AuthorizationPolicy_DENY, securityv1beta1.AuthorizationPolicy_ALLOW, securityv1beta1.AuthorizationPolicy_CUSTOM
	h := newUnstartedHub()
	h.cfg.Generator = Generator{Assign: xdsgen.Assign, AssignReads: xdsgen.AssignReads, Concerned: xdsgen.Concerned}
	sub := silent(incrementalNodes()[0])
	set := func(actions ...securityv1beta1.AuthorizationPolicy_Action) {
		s := &snapshot.Snapshot{Mesh: &snapshot.Mesh{}}
		ns := &snapshot.NamespaceFacts{Policies: map[snapshot.Kind][]snapshot.Policy{}}
		for i, action := range actions {
			ns.Policies[snapshot.KindAuthorizationPolicy] = append(ns.Policies[snapshot.KindAuthorizationPolicy], &snapshot.AuthorizationPolicy{
				Meta: snapshot.Meta{Namespace: sub.node.Namespace, Name: string(rune('a' + i))},
				Spec: &securityv1beta1.AuthorizationPolicy{Action: action},
			})
		}
		s.Namespaces = s.Namespaces.With(map[string]*snapshot.NamespaceFacts{sub.node.Namespace: ns})
		h.Update(s, nil)
		h.deliver()
	}
	want := func(names ...string) {
		t.Helper()
		v, _ := sub.assigned.Load().types[ecds].pair()
		if got := namesOf(v[0].list()); !slices.Equal(got, names) {
			t.Errorf("extensions %q, want %q", got, names)
		}
	}
	acknowledge := func() { h.round(mail{moved: map[*subscriber]*assignment{sub: sub.assigned.Load()}}) }
	const httpAllow, httpCustom, httpDeny = "envoy.filters.http.rbac.allow", "envoy.filters.http.rbac.custom.", "envoy.filters.http.rbac.deny"
	const tcpAllow, tcpCustom, tcpDeny = "envoy.filters.network.rbac.allow", "envoy.filters.network.rbac.custom.", "envoy.filters.network.rbac.deny"

	h.attach(sub)
	set(deny)
	want(httpDeny, tcpDeny)
	set(allow)
	want(httpAllow, httpDeny, tcpAllow, tcpDeny)
	before := sub.assigned.Load()
	set(custom)
	want(httpAllow, httpCustom, httpDeny, tcpAllow, tcpCustom, tcpDeny)
	h.round(mail{moved: map[*subscriber]*assignment{sub: before}}) // an older report counts no more
	want(httpAllow, httpCustom, httpDeny, tcpAllow, tcpCustom, tcpDeny)
	acknowledge()
	want(httpCustom, tcpCustom)
	set(deny, allow)
	acknowledge()
	want(httpAllow, httpDeny, tcpAllow, tcpDeny)
	set(deny) // a deleted policy goes at once
	want(httpDeny, tcpDeny)
	if sub.assigned.Load().moving {
		t.Error("a policy moves still")
	}
}
