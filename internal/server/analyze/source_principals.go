package analyze

import (
	"fmt"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// principal is a principal of an AuthorizationPolicy, as DOMAIN/ns/NAMESPACE/sa/ACCOUNT. domain may be "*".
// namespace and account are empty if an asterisk stands for a part of them. The text of the principal is
// before, namespace and rest.
type principal struct {
	domain, namespace, account string
	before, rest               string
}

func principalOf(text string) (p principal) {
	parts := strings.Split(text, "/")
	if len(parts) < 4 || parts[1] != "ns" || !mesh.IsDNSLabel(parts[2]) {
		return p
	}
	p.domain, p.namespace = parts[0], parts[2]
	p.before, p.rest = parts[0]+"/ns/", "/"+strings.Join(parts[3:], "/")
	if len(parts) == 5 && parts[3] == "sa" && mesh.IsDNSName(parts[4]) {
		p.account = parts[4]
	}
	return p
}

// isForeign reports whether a trust domain is none of the mesh. cluster.local stands for the mesh's own.
func (m *checker) isForeign(domain string) bool {
	settings := m.Snapshot.Mesh
	return domain != mesh.DefaultTrustDomain && domain != settings.TrustDomain && !slices.Contains(settings.Aliases, domain)
}

// foreign finds a principal of another trust domain, if the mesh itself has a workload of the namespace and
// the account. Other principals may be of a mesh with the same root. It reports whether it found one.
func (m *checker) foreign(p *snapshot.AuthorizationPolicy, field string, q principal) bool {
	settings := m.Snapshot.Mesh
	if q.namespace == "" || strings.HasPrefix(q.domain, "*") || !m.isForeign(q.domain) {
		return false
	}
	own := slices.ContainsFunc(m.workloads[q.namespace], func(w *snapshot.Pod) bool { return q.account == "" || w.ServiceAccount == q.account })
	if !own || m.mayFederate(q.domain) {
		return false
	}
	right := settings.TrustDomain + "/ns/" + q.namespace + q.rest
	m.warnSource(p, field, m.set(p, field, right), fmt.Sprintf("%s is no trust domain of the mesh, which has %s: no request comes from it%s",
		q.domain, listed(append([]string{settings.TrustDomain}, settings.Aliases...)), didYouMean(right)))
	return true
}

// mayFederate reports whether the mesh may accept the identities of another trust domain.
func (m *checker) mayFederate(domain string) bool {
	if slices.ContainsFunc(m.Snapshot.Mesh.CACertificates, func(c snapshot.CACertificate) bool { return slices.Contains(c.TrustDomains, domain) }) {
		return true
	}
	known := false
	for _, all := range m.workloads {
		for _, w := range all {
			if w.Injection == nil || w.Injection.ControlPlane == "" {
				continue
			}
			if known = known || w.Cluster == m.Snapshot.Mesh.LocalCluster; w.Injection.Federates {
				return true
			}
		}
	}
	return !known
}

// unknownSource finds a source in a namespace that does not exist, and reports whether it found one.
func (m *checker) unknownSource(p *snapshot.AuthorizationPolicy, field string, q principal, namespaces []string) bool {
	if q.namespace == "" || len(namespaces) == 0 || has(namespaces, q.namespace) || q.domain != "" && !strings.HasPrefix(q.domain, "*") && m.isForeign(q.domain) {
		return false
	}
	near, fix := output.NearestWord(q.namespace, namespaces), ""
	if near != "" {
		fix = m.set(p, field, q.before+near+q.rest)
	}
	m.warnSource(p, field, fix, fmt.Sprintf("no namespace %s exists: no request comes from it%s", q.namespace, didYouMean(near)))
	return true
}

// warnSource adds a warning about a source from which no request comes.
func (m *checker) warnSource(p *snapshot.AuthorizationPolicy, field, fix, text string) {
	if f := m.findKeyFix(codes.ReferencedResourceNotFound, p.Key(), fix, field, text); f != nil {
		f.Level = codes.Warning
	}
}
