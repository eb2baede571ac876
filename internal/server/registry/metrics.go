package registry

import "github.com/prometheus/client_golang/prometheus"

// Metrics returns a collector of the work of the registry.
func (r *Registry) Metrics() prometheus.Collector {
	return metrics{r, prometheus.NewDesc("meshctl_registry_computed_total",
		"Facts that were computed, also those that turned out equal, by the table that holds them.", []string{"table"}, nil)}
}

type metrics struct {
	*Registry
	computed *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (m metrics) Describe(to chan<- *prometheus.Desc) { to <- m.computed }

// Collect implements prometheus.Collector.
func (m metrics) Collect(to chan<- prometheus.Metric) {
	for table, n := range m.report.Load().computed {
		to <- prometheus.MustNewConstMetric(m.computed, prometheus.CounterValue, float64(n), table)
	}
}
