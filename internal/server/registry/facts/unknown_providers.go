package facts

import (
	"strconv"
	"strings"

	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// UnknownProvider is a provider that a Telemetry or an AuthorizationPolicy names and that does not
// work.
type UnknownProvider struct {
	Policy   snapshot.Key
	Provider string
	Problem  string
	At       snapshot.Place
}

// providerUse is the use of a provider, with the fields of MeshConfig that make such providers.
type providerUse struct{ name, fields string }

var (
	forLogs    = providerUse{"access log", "envoyFileAccessLog or envoyOtelAls"}
	forTracing = providerUse{"tracing", "opentelemetry or zipkin"}
	forMetrics = providerUse{"metrics", "prometheus"}
)

// lacking describes a provider that a Telemetry names.
func (u providerUse) lacking(provider string) string {
	return "the " + u.name + " provider " + provider + " has no effect, as MeshConfig has no such provider with " + u.fields
}

func (u UnknownProvider) String() string { return u.Policy.String() + ": " + u.Problem }

func (t *Tables) findUnknownProviders(r *derive.Reads) []UnknownProvider {
	m := t.Mesh.Get(r)
	var out []UnknownProvider
	found := Set[UnknownProvider]{}
	add := func(u UnknownProvider, known bool) {
		if !known && !found.Has(u) {
			found.Add(u)
			out = append(out, u)
		}
	}
	for _, policy := range t.allTelemetries.Lookup(r, struct{}{}) {
		telemetry, ok := policy.(*snapshot.Telemetry)
		if !ok {
			continue
		}
		for _, entry := range telemetry.Spec.GetAccessLogging() {
			for _, p := range entry.GetProviders() {
				_, known := m.LogProviders[strings.ToLower(p.GetName())]
				add(UnknownProvider{telemetry.Key(), p.GetName(), forLogs.lacking(p.GetName()), telemetry.Place}, known)
			}
		}
		for _, entry := range telemetry.Spec.GetTracing() {
			for _, p := range entry.GetProviders() {
				_, known := m.Tracers[strings.ToLower(p.GetName())]
				add(UnknownProvider{telemetry.Key(), p.GetName(), forTracing.lacking(p.GetName()), telemetry.Place}, known)
			}
		}
		for _, entry := range telemetry.Spec.GetMetrics() {
			for _, p := range entry.GetProviders() {
				add(UnknownProvider{telemetry.Key(), p.GetName(), forMetrics.lacking(p.GetName()), telemetry.Place}, m.HasMetricProvider([]string{p.GetName()}))
			}
		}
	}
	for _, policy := range t.allAuthorizations.Lookup(r, struct{}{}) {
		p, ok := policy.(*snapshot.AuthorizationPolicy)
		if !ok || p.Spec.GetAction() != securityv1beta1.AuthorizationPolicy_CUSTOM {
			continue
		}
		name := p.Spec.GetProvider().GetName()
		if problem := t.authorizerProblem(r, name, m.Authorizers); problem != "" {
			add(UnknownProvider{p.Key(), name, problem + ": what its rules match is refused", p.Place}, false)
		}
	}
	return out
}

// authorizerProblem returns the reason why no proxy can ask a provider of external authorization, or "".
func (t *Tables) authorizerProblem(r *derive.Reads, name string, authorizers map[string]snapshot.Collector) string {
	c, ok := authorizers[name]
	if !ok {
		return "MeshConfig has no usable provider " + name + " with envoyExtAuthzGrpc or envoyExtAuthzHttp"
	}
	svc, ok := t.MeshServices.Get(r, c.Host())
	switch namespace, _, two := strings.Cut(c.Service, "/"); {
	case !ok:
		return "no service has the host " + c.Host() + " of the provider " + name
	case two && svc.Namespace != namespace:
		return "the service " + c.Host() + " of the provider " + name + " is not in the namespace " + namespace
	case svc.Port(c.Port) == nil:
		return "the service " + c.Host() + " has no port " + strconv.FormatUint(uint64(c.Port), 10) + ", which the provider " + name + " names"
	case svc.ExternalName != "":
		return "the service " + c.Host() + " of the provider " + name + " is an ExternalName, which proxies do not call: use a ServiceEntry"
	}
	return ""
}
