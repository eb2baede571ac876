package xds

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestMovingPolicies: a policy with another action is in force twice, and the old version goes
// once the proxy has the new one.
func TestMovingPolicies(t *testing.T) {
	t.Parallel()
	const deny, allow, custom = securityv1beta1.AuthorizationPolicy_DENY, securityv1beta1.AuthorizationPolicy_ALLOW, securityv1beta1.AuthorizationPolicy_CUSTOM
	h := newUnstartedHub()
	h.cfg.Generator = Generator{Assign: xdsgen.Assign, AssignReads: xdsgen.AssignReads, Concerned: xdsgen.Concerned}
	node := incrementalNodes()[0]
	sub := silent(node)
	set := func(actions ...securityv1beta1.AuthorizationPolicy_Action) {
		s := &snapshot.Snapshot{Mesh: &snapshot.Mesh{Authorizers: map[string]snapshot.Collector{"": {}}}}
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
		if got := enforcing(sub); !slices.Equal(got, names) {
			t.Errorf("extensions with policies %q, want %q", got, names)
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

	// A proxy that returns has what it had.
	var old *subscriber
	attach := func() {
		old, sub = sub, silent(node)
		sub.connected = old.connected.Add(1)
		h.attach(sub)
		h.deliver()
	}
	h.detach(sub)
	set(allow)
	attach()
	want(httpAllow, httpDeny, tcpAllow, tcpDeny)
	acknowledge()
	want(httpAllow, tcpAllow)
	// It may return before its old stream has ended, and while the hub is busy.
	set(deny)
	attach()
	want(httpAllow, httpDeny, tcpAllow, tcpDeny)
	h.detach(old)
	acknowledge()
	want(httpDeny, tcpDeny)
	h.detach(sub)
	attach()
	want(httpDeny, tcpDeny)
	h.detach(sub)
	set()
	attach()
	want()
	h.detach(sub)
	set(allow)
	attach()
	want(httpAllow, tcpAllow)
	// A stream of another identity is of another proxy. One that requests no extensions, as an
	// agent's own, does not count.
	h.detach(sub)
	of := func(change func(*subscriber)) {
		other := silent(node)
		change(other)
		h.attach(other)
		set(deny)
		if slices.Contains(enforcing(other), httpAllow) {
			t.Error("the other stream gets what the proxy had")
		}
		h.detach(other)
	}
	of(func(other *subscriber) { other.caller.Identity.Namespace = "other" })
	of(func(other *subscriber) { other.demands[ecds].asked = false })
	attach()
	want(httpAllow, httpDeny, tcpAllow, tcpDeny)
}

// TestMovedPolicyOutlivesDrain: a policy that moves to a filter that listeners have only just got stays
// in force in its old place until their older connections have ended. A proxy that returns
// meanwhile does not end this.
func TestMovedPolicyOutlivesDrain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newUnstartedHub()
		h.cfg.Now = time.Now
		h.cfg.Generator = Generator{Assign: xdsgen.Assign, AssignReads: xdsgen.AssignReads, Concerned: xdsgen.Concerned}
		node := incrementalNodes()[0]
		node.Drain = 45 * time.Second
		sub := silent(node)
		set := func(action securityv1beta1.AuthorizationPolicy_Action, providers ...string) {
			s := &snapshot.Snapshot{Mesh: &snapshot.Mesh{Authorizers: map[string]snapshot.Collector{}}}
			for _, name := range providers {
				s.Mesh.Authorizers[name] = snapshot.Collector{}
			}
			spec := &securityv1beta1.AuthorizationPolicy{Action: action}
			if action == securityv1beta1.AuthorizationPolicy_CUSTOM {
				spec.ActionDetail = &securityv1beta1.AuthorizationPolicy_Provider{Provider: &securityv1beta1.AuthorizationPolicy_ExtensionProvider{Name: providers[0]}}
			}
			s.Namespaces = s.Namespaces.With(map[string]*snapshot.NamespaceFacts{node.Namespace: {Policies: map[snapshot.Kind][]snapshot.Policy{
				snapshot.KindAuthorizationPolicy: {&snapshot.AuthorizationPolicy{Meta: snapshot.Meta{Namespace: node.Namespace, Name: "a"}, Spec: spec}},
			}}})
			h.Update(s, nil)
			h.deliver()
		}
		acknowledge := func() { h.round(mail{moved: map[*subscriber]*assignment{sub: sub.assigned.Load()}}) }
		denies := func(want bool) {
			t.Helper()
			if got := slices.Contains(enforcing(sub), "envoy.filters.http.rbac.deny"); got != want {
				t.Errorf("%s: the policy is in the filter of DENY: %t, want %t", time.Now(), got, want)
			}
		}
		const deny, allow, custom = securityv1beta1.AuthorizationPolicy_DENY, securityv1beta1.AuthorizationPolicy_ALLOW, securityv1beta1.AuthorizationPolicy_CUSTOM
		h.attach(sub)
		set(deny)
		if sub.assigned.Load().moving {
			t.Error("the first policy of a workload waits for something")
		}
		set(deny, "checks")
		acknowledge()
		time.Sleep(10 * time.Second)
		set(custom, "checks")
		acknowledge()
		denies(true)
		h.detach(sub)
		returned := silent(node)
		returned.connected = sub.connected.Add(1)
		sub = returned
		h.attach(sub)
		h.deliver()
		acknowledge()
		denies(true)
		time.Sleep(39 * time.Second)
		h.deliver()
		denies(true)
		time.Sleep(time.Second)
		synctest.Wait()
		h.deliver()
		denies(false)

		// The time counts from the ACK of the new listeners.
		set(deny, "checks")
		acknowledge()
		set(deny, "checks", "more")
		time.Sleep(time.Minute)
		set(allow, "checks", "more")
		denies(true)
		acknowledge()
		time.Sleep(49 * time.Second)
		h.deliver()
		denies(true)
		time.Sleep(time.Second)
		synctest.Wait()
		h.deliver()
		denies(false)

		// A policy that moves long afterwards does not wait.
		time.Sleep(time.Minute)
		set(deny, "checks", "more")
		acknowledge()
		set(allow, "checks", "more")
		acknowledge()
		denies(false)
	})
}

// enforcing returns the names of the extensions with policies that a stream gets.
func enforcing(sub *subscriber) []string {
	var out []string
	v, _ := sub.assigned.Load().types[ecds].pair()
	for r := range v[0].list().All {
		if bytes.Contains(r.Message(), []byte("-policy[")) {
			out = append(out, r.Name)
		}
	}
	return out
}

// TestLeftProxies: the number of remembered proxies and their time are bounded.
func TestLeftProxies(t *testing.T) {
	t.Parallel()
	s := &snapshot.Snapshot{Mesh: &snapshot.Mesh{}}
	node := incrementalNodes()[0]
	s.Namespaces = s.Namespaces.With(map[string]*snapshot.NamespaceFacts{node.Namespace: {Policies: map[snapshot.Kind][]snapshot.Policy{
		snapshot.KindAuthorizationPolicy: {&snapshot.AuthorizationPolicy{Meta: snapshot.Meta{Namespace: node.Namespace, Name: "a"}, Spec: &securityv1beta1.AuthorizationPolicy{}}},
	}}})
	views := xdsgen.Assign(s, node)[xdswire.ExtensionType]
	stream := func(i int) *subscriber {
		sub := silent(node)
		sub.node.ID.Name, sub.views[ecds].Views = fmt.Sprint(i), views
		return sub
	}
	var l leftProxies
	known := func(i int) bool { return l.views[proxyKeyOf(stream(i))] != leftView{} }
	start := time.Unix(0, 0)
	for i := range maxLeft + 10 {
		l.add(stream(i), start)
	}
	if len(l.views) != maxLeft || len(l.order) != maxLeft || known(9) || !known(10) {
		t.Errorf("%d proxies, %d in order", len(l.views), len(l.order))
	}
	l.add(stream(11), start.Add(leftAge)) // has returned and left again
	l.add(stream(12), start.Add(leftAge+1))
	if len(l.views) != 2 || len(l.order) != 2 || !known(11) {
		t.Errorf("%d proxies, %d in order after their time", len(l.views), len(l.order))
	}
}
