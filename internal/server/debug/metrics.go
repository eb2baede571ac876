package debug

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshctl/meshctl/internal/mesh"
)

// MaxVersions bounds the proxy versions that have a series of their own, as proxies
// choose what they report.
const MaxVersions = 10

// otherVersions labels the proxies of all other versions.
const otherVersions = "other"

// collector collects the state of the mesh in Istio's metrics.
type collector struct {
	*Pages
	began                                  time.Time
	proxies, services, empty, uptime, info *prometheus.Desc
	build                                  *prometheus.Desc
}

// Metrics returns a collector of the state of the mesh. The uptime begins with the
// call.
func (p *Pages) Metrics() prometheus.Collector {
	return &collector{
		Pages: p, began: p.cfg.Now(),
		proxies:  prometheus.NewDesc("pilot_xds", "Proxies connected, by the version that they say; all but the ten most frequent are other.", []string{"version"}, nil),
		services: prometheus.NewDesc("pilot_services", "Services known.", nil, nil),
		empty:    prometheus.NewDesc(noInstances, "Ports of services without an endpoint in any cluster.", nil, nil),
		uptime:   prometheus.NewDesc("istiod_uptime_seconds", "How long the control plane runs.", nil, nil),
		info:     prometheus.NewDesc("pilot_info", "Always 1; the version of the control plane.", []string{"version"}, nil),
		build:    prometheus.NewDesc(mesh.MetricBuild, "Always 1; the version of the component.", []string{"component", "tag"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.proxies, c.services, c.empty, c.uptime, c.info, c.build} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for version, n := range byVersion(c.cfg.Versions()) {
		gauge(c.proxies, float64(n), version)
	}
	if snap := c.cfg.Snapshot(); snap != nil {
		gauge(c.services, float64(snap.Services.Len()))
		empty := 0
		eachEmpty(snap, func(mesh.ClusterName) bool { empty++; return true })
		gauge(c.empty, float64(empty))
	}
	gauge(c.uptime, c.cfg.Now().Sub(c.began).Seconds())
	version := versionOf(c.cfg.Version)
	gauge(c.info, 1, version)
	gauge(c.build, 1, "pilot", version)
}

// byVersion returns the number of proxies by label, given the number by reported
// version.
func byVersion(reported map[string]int) map[string]int {
	counts := make(map[string]int)
	for v, n := range reported {
		counts[versionLabel(v)] += n
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
	for _, v := range known[min(len(known), MaxVersions):] {
		counts[otherVersions] += counts[v]
		delete(counts, v)
	}
	return counts
}

// versionLabel returns the label for a reported version. Text that does not look
// like a version is other.
func versionLabel(v string) string {
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

// versionOf returns the field version of the page /version.
func versionOf(build any) string {
	var v struct {
		Version string `json:"version"`
	}
	if b, err := json.Marshal(build); err == nil {
		_ = json.Unmarshal(b, &v) // else there is none
	}
	return cmp.Or(v.Version, "unknown")
}
