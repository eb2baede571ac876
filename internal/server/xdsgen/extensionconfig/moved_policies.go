package extensionconfig

import (
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/rbac"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// A policy whose action or provider changes moves from one extension to another. Envoy applies
// the extensions of a response one by one, in any order, and a new filter only once its listener
// is warm. For a moment the policy could be in force nowhere, and permit what neither version
// does. So the old version stays in force beside the new one until the proxy has the latter. If
// listeners have got a filter since, connections that are older lack it. The old version then
// stays until they are drained.

// MovedPolicies returns the policies that one view of extensions enforces by another action or
// provider than the next one. A policy that the next one lacks has not moved.
func MovedPolicies(from, to units.View) []*snapshot.AuthorizationPolicy {
	before, _ := from.(View)
	after, _ := to.(View)
	if before.Authorizations == after.Authorizations {
		return nil
	}
	now := make(map[policyName]string)
	for a := range after.Authorizations.All {
		for p := range a.Policies.All {
			now[policyName{p.Namespace, p.Name}] = filtersOf(p)
		}
	}
	var moved []*snapshot.AuthorizationPolicy
	for a := range before.Authorizations.All {
		for p := range a.Policies.All {
			if filters, stays := now[policyName{p.Namespace, p.Name}]; stays && filters != filtersOf(p) {
				moved = append(moved, p)
			}
		}
	}
	return moved
}

// GainsFilter reports whether the listeners of one view of extensions lack a filter that refuses and that
// those of the next one have. Listeners without any policies protect nothing: they lack none.
func GainsFilter(from, to units.View) bool {
	before, _ := from.(View)
	after, _ := to.(View)
	if before.Authorizations == after.Authorizations || !HasPolicies(before) {
		return false
	}
	names := make(map[string]bool)
	for _, name := range before.Names() {
		names[name] = true
	}
	for u := range after.authorizationUnits {
		if u.Of.Action != securityv1beta1.AuthorizationPolicy_AUDIT && !names[u.Filter.Name] {
			return true
		}
	}
	return false
}

// HasPolicies reports whether a view of extensions has policies, which can move.
func HasPolicies(v units.View) bool {
	extensions, _ := v.(View)
	return extensions.Authorizations != (wire.List[rbac.Authorization]{})
}

type policyName struct{ namespace, name string }

// filtersOf names the filters that enforce a policy, by action and provider.
func filtersOf(p *snapshot.AuthorizationPolicy) string {
	action := p.Spec.GetAction()
	if action == securityv1beta1.AuthorizationPolicy_CUSTOM {
		return action.String() + "." + p.Spec.GetProvider().GetName()
	}
	return action.String()
}

// RequestsPolicies reports whether a proxy that requests some of the extensions of a view
// requests all that enforce policies. If its listeners have no chain of HTTP, or none of TCP, it
// requests none of that type.
func RequestsPolicies(v units.View, requests func(name string) bool) bool {
	extensions, _ := v.(View)
	requested := make(map[bool]bool) // of TCP and of HTTP
	for u := range extensions.authorizationUnits {
		now := requests(u.Filter.Name)
		if before, known := requested[u.Filter.Network]; known && now != before {
			return false
		}
		requested[u.Filter.Network] = now
	}
	return true
}
