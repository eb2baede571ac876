package registry

import (
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// unknownProvider is a provider that a Telemetry names and MeshConfig lacks.
type unknownProvider struct {
	telemetry snapshot.Key
	provider  string
	use       providerUse
	at        snapshot.Place
}

// providerUse is the use of a provider, with the fields of MeshConfig that make such providers.
type providerUse struct{ name, fields string }

var (
	forLogs    = providerUse{"access log", "envoyFileAccessLog or envoyOtelAls"}
	forTracing = providerUse{"tracing", "opentelemetry or zipkin"}
	forMetrics = providerUse{"metrics", "prometheus"}
)

func (u unknownProvider) String() string { return u.telemetry.String() + ": " + u.text() }

func (u unknownProvider) text() string {
	return "the " + u.use.name + " provider " + u.provider + " has no effect, as MeshConfig has no such provider with " + u.use.fields
}

// UnknownProviders describes the providers that Telemetries name and that have no effect,
// sorted. The caller must not change the result.
func (r *Registry) UnknownProviders() []string { return r.report.Load().unknownProviders }

func (t *tables) findUnknownProviders(r *derive.Reads) []unknownProvider {
	m := t.mesh.Get(r)
	var out []unknownProvider
	add := func(u unknownProvider, known bool) {
		if !known && !slices.Contains(out, u) {
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
				add(unknownProvider{telemetry.Key(), p.GetName(), forLogs, telemetry.Place}, known)
			}
		}
		for _, entry := range telemetry.Spec.GetTracing() {
			for _, p := range entry.GetProviders() {
				_, known := m.Tracers[strings.ToLower(p.GetName())]
				add(unknownProvider{telemetry.Key(), p.GetName(), forTracing, telemetry.Place}, known)
			}
		}
		for _, entry := range telemetry.Spec.GetMetrics() {
			for _, p := range entry.GetProviders() {
				add(unknownProvider{telemetry.Key(), p.GetName(), forMetrics, telemetry.Place}, m.HasMetricProvider([]string{p.GetName()}))
			}
		}
	}
	return out
}

// describeUnknownProviders returns a line for each provider, sorted, and logs those that
// were not there before.
func (s *state) describeUnknownProviders(before []string, now []unknownProvider) []string {
	lines := make([]string, 0, len(now))
	for _, u := range now {
		lines = append(lines, u.String())
		if !slices.Contains(before, u.String()) {
			s.cfg.Log.Warn("a Telemetry names a provider that MeshConfig lacks", "telemetry", u.telemetry.String(),
				"at", u.at.String(), "provider", u.provider)
		}
	}
	slices.Sort(lines)
	return lines
}
