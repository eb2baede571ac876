package registry

import (
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// unknownProvider is a provider of access logs that a Telemetry names and MeshConfig lacks.
type unknownProvider struct {
	telemetry snapshot.Key
	provider  string
	at        snapshot.Place
}

func (u unknownProvider) String() string {
	return u.telemetry.String() + ": " + u.text()
}

func (u unknownProvider) text() string {
	return "the access log provider " + u.provider + " has no effect, as MeshConfig has no such provider with envoyFileAccessLog"
}

// UnknownProviders describes the providers that Telemetries name and that have no effect,
// sorted. The caller must not change the result.
func (r *Registry) UnknownProviders() []string { return r.report.Load().unknownProviders }

func (t *tables) findUnknownProviders(r *derive.Reads) []unknownProvider {
	known := t.mesh.Get(r).LogProviders
	var out []unknownProvider
	for _, policy := range t.allTelemetries.Lookup(r, struct{}{}) {
		telemetry, ok := policy.(*snapshot.Telemetry)
		if !ok {
			continue
		}
		for _, entry := range telemetry.Spec.GetAccessLogging() {
			for _, p := range entry.GetProviders() {
				u := unknownProvider{telemetry.Key(), p.GetName(), telemetry.Place}
				if _, ok := known[strings.ToLower(p.GetName())]; !ok && !slices.Contains(out, u) {
					out = append(out, u)
				}
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
			s.cfg.Log.Warn("a Telemetry names an access log provider that MeshConfig lacks", "telemetry", u.telemetry.String(),
				"at", u.at.String(), "provider", u.provider)
		}
	}
	slices.Sort(lines)
	return lines
}
