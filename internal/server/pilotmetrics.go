package server

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/debug"
)

// maxVersions bounds how many versions of proxies are told apart in metrics:
// proxies choose what they say.
const maxVersions = 10

// otherVersions are those beyond, and what is no version.
const otherVersions = "other"

// pilotStats tells of the mesh under Istio's names.
type pilotStats struct {
	s                                      *Server
	began                                  time.Time
	proxies, services, empty, uptime, info *prometheus.Desc
}

func newPilotStats(s *Server) *pilotStats {
	return &pilotStats{
		s: s, began: s.cfg.Now(),
		proxies:  prometheus.NewDesc("pilot_xds", "Proxies connected, by the version that they say; all but the ten most frequent are other.", []string{"version"}, nil),
		services: prometheus.NewDesc("pilot_services", "Services known.", nil, nil),
		empty:    prometheus.NewDesc(debug.NoInstances, "Ports of services without an endpoint in any cluster.", nil, nil),
		uptime:   prometheus.NewDesc("istiod_uptime_seconds", "How long the control plane runs.", nil, nil),
		info:     prometheus.NewDesc("pilot_info", "Always 1; the version of the control plane.", []string{"version"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (p *pilotStats) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{p.proxies, p.services, p.empty, p.uptime, p.info} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (p *pilotStats) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for version, n := range p.s.proxyVersions() {
		gauge(p.proxies, float64(n), version)
	}
	if snap := p.s.registry.Current(); snap != nil {
		gauge(p.services, float64(snap.Services.Len()))
		empty := 0
		debug.EachEmpty(snap, func(mesh.ClusterName) bool { empty++; return true })
		gauge(p.empty, float64(empty))
	}
	gauge(p.uptime, p.s.cfg.Now().Sub(p.began).Seconds())
	gauge(p.info, 1, versionOf(p.s.cfg.Version))
}

// proxyVersions counts the connected proxies by version, few versions apart.
func (s *Server) proxyVersions() map[string]int {
	counts := make(map[string]int)
	for v, n := range s.hub.Versions() {
		counts[plainVersion(v)] += n
	}
	var known []string
	for v := range counts {
		if v != otherVersions {
			known = append(known, v)
		}
	}
	slices.SortFunc(known, func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	for _, v := range known[min(len(known), maxVersions):] {
		counts[otherVersions] += counts[v]
		delete(counts, v)
	}
	return counts
}

// plainVersion is a version as a label: what could be anything else is other.
func plainVersion(v string) string {
	if v == "" {
		return "unknown"
	}
	if len(v) > 32 || v[0] < '0' || v[0] > '9' {
		return otherVersions
	}
	for _, c := range []byte(v) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && c != '.' && c != '-' {
			return otherVersions
		}
	}
	return v
}

// versionOf is the field version of what /version shows.
func versionOf(build any) string {
	var v struct {
		Version string `json:"version"`
	}
	if b, err := json.Marshal(build); err == nil {
		_ = json.Unmarshal(b, &v) // else there is none
	}
	return cmp.Or(v.Version, "unknown")
}
