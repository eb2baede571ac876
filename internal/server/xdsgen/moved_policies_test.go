package xdsgen

import (
	"testing"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestMovedPolicyKeepsListeners: connections of a draining listener would lack the filter of the
// new action.
func TestMovedPolicyKeepsListeners(t *testing.T) {
	listeners := func(specs ...*securityv1beta1.AuthorizationPolicy) units.View {
		s := &snapshot.Snapshot{Mesh: &snapshot.Mesh{Authorizers: map[string]snapshot.Collector{"checks": {}}}}
		var policies []snapshot.Policy
		for _, spec := range specs {
			policies = append(policies, &snapshot.AuthorizationPolicy{Meta: snapshot.Meta{Namespace: "apps", Name: "a"}, Spec: spec})
		}
		s.Namespaces = s.Namespaces.With(map[string]*snapshot.NamespaceFacts{"apps": {
			Policies: map[snapshot.Kind][]snapshot.Policy{snapshot.KindAuthorizationPolicy: policies},
		}})
		return Assign(s, proxy.Node{ID: mesh.NodeID{Type: mesh.Sidecar}, Namespace: "apps"})[xdswire.ListenerType].Own
	}
	deny := listeners(&securityv1beta1.AuthorizationPolicy{Action: securityv1beta1.AuthorizationPolicy_DENY})
	if deny == nil || deny == listeners() {
		t.Fatal("policies add no filters")
	}
	for _, spec := range []*securityv1beta1.AuthorizationPolicy{
		{Action: securityv1beta1.AuthorizationPolicy_ALLOW},
		{Action: securityv1beta1.AuthorizationPolicy_CUSTOM, ActionDetail: &securityv1beta1.AuthorizationPolicy_Provider{
			Provider: &securityv1beta1.AuthorizationPolicy_ExtensionProvider{Name: "checks"},
		}},
	} {
		if listeners(spec) != deny {
			t.Errorf("%v changes listeners", spec)
		}
	}
}
