package analyze

import (
	"slices"
	"strings"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// sourceField is a condition on the callers of an AuthorizationPolicy: the names of its fields in a
// source, the key of the same condition in when, or "", and the values in a source.
type sourceField struct {
	name, notName, key string
	of                 func(*securityv1beta1.Source) (values, not []string)
}

// eachSource calls check with the values of a condition on callers, by field.
func (m *checker) eachSource(f sourceField, check func(p *snapshot.AuthorizationPolicy, field string, values []string)) {
	for _, p := range list[*snapshot.AuthorizationPolicy](m, snapshot.KindAuthorizationPolicy) {
		for i, r := range p.Spec.GetRules() {
			rule := at("spec.rules", i)
			for j, from := range r.GetFrom() {
				source := at(rule+".from", j) + ".source."
				values, not := f.of(from.GetSource())
				check(p, source+f.name, values)
				check(p, source+f.notName, not)
			}
			for j, w := range r.GetWhen() {
				if w.GetKey() == f.key {
					check(p, at(rule+".when", j)+".values", w.GetValues())
					check(p, at(rule+".when", j)+".notValues", w.GetNotValues())
				}
			}
		}
	}
}

// accountsOf returns the service accounts of the workloads of a namespace.
func (m *checker) accountsOf(namespace string) []string {
	var out []string
	for _, w := range m.workloads[namespace] {
		if w.ServiceAccount != "" {
			out = append(out, w.ServiceAccount)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// onlyNamespaceOf returns the namespace whose workloads have a service account, if no other one has them.
// Each namespace has the account default.
func (m *checker) onlyNamespaceOf(account string) (only string) {
	if account == "default" {
		return ""
	}
	for namespace, workloads := range m.workloads {
		if slices.ContainsFunc(workloads, func(w *snapshot.Pod) bool { return w.ServiceAccount == account }) {
			if only != "" {
				return ""
			}
			only = namespace
		}
	}
	return only
}

// allWorkloadsKnown reports whether everything was read of every cluster of the mesh that is known.
func (m *checker) allWorkloadsKnown() bool {
	if len(m.Unread) > 0 || m.Whole == nil {
		return false
	}
	for id := range m.clusters {
		if id != "" && !m.Whole(id) {
			return false
		}
	}
	if m.Links == nil {
		return true
	}
	links := m.Links(m.Snapshot.Mesh.LocalCluster)
	return links != nil && !slices.ContainsFunc(links, func(id mesh.ClusterID) bool { return !m.clusters[id] })
}

// sourceAccounts finds the sources of AuthorizationPolicies with a service account that no workload
// has, in a namespace with workloads. It is a warning only if another account there has a similar
// name: a job that does not run now, or a Deployment without replicas, has no workload either. It
// needs all workloads of the mesh.
func (m *checker) sourceAccounts() {
	if !m.allWorkloadsKnown() {
		return
	}
	accounts := map[string][]string{}
	check := func(p *snapshot.AuthorizationPolicy, field, value, namespace, account string) {
		known, ok := accounts[namespace]
		if !ok {
			known = m.accountsOf(namespace)
			accounts[namespace] = known
		}
		if len(known) == 0 || strings.Contains(account, "*") || slices.Contains(known, account) {
			return
		}
		text := "no workload of the namespace " + namespace + " has the service account " + account + ": no request comes from it"
		near, fix := output.NearestWord(account, known), ""
		if near != "" && strings.HasSuffix(value, account) {
			fix = m.set(p, field, strings.TrimSuffix(value, account)+near)
		} else if other := m.onlyNamespaceOf(account); near == "" && other != "" && strings.Count(value, namespace+"/") == 1 {
			near = strings.Replace(value, namespace+"/", other+"/", 1)
			fix = m.set(p, field, near)
		}
		if f := m.findKeyFix(codes.ReferencedResourceNotFound, p.Key(), fix, field, text+didYouMean(near)); f != nil {
			if f.Level = codes.Info; near != "" {
				f.Level = codes.Warning
			}
		}
	}
	namespaces := m.knownNamespaces()
	m.eachSource(sourceField{"principals", "notPrincipals", "source.principal", func(s *securityv1beta1.Source) (values, not []string) {
		return s.GetPrincipals(), s.GetNotPrincipals()
	}}, func(p *snapshot.AuthorizationPolicy, field string, values []string) {
		for i, text := range values {
			q := principalOf(text)
			switch {
			case m.foreign(p, at(field, i), q):
			case m.unknownSource(p, at(field, i), q, namespaces):
			case q.account != "" && !strings.HasPrefix(q.domain, "*") && !m.isForeign(q.domain):
				check(p, at(field, i), text, q.namespace, q.account)
			}
		}
	})
	m.eachSource(sourceField{"serviceAccounts", "notServiceAccounts", "source.serviceAccount", func(s *securityv1beta1.Source) (values, not []string) {
		return s.GetServiceAccounts(), s.GetNotServiceAccounts()
	}}, func(p *snapshot.AuthorizationPolicy, field string, values []string) {
		for i, text := range values {
			namespace, account, ok := strings.Cut(text, "/")
			if !ok {
				namespace, account = p.Namespace, text
			}
			if !m.unknownSource(p, at(field, i), principal{namespace: namespace, rest: "/" + account}, namespaces) {
				check(p, at(field, i), text, namespace, account)
			}
		}
	})
}
