package trust

import "github.com/prometheus/client_golang/prometheus"

// CountFetches returns a Config.Fetched that counts fetches by result.
func CountFetches(reg prometheus.Registerer) func(trustDomain string, ok bool) {
	fetches := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "meshctl_trust_bundle_fetches_total", Help: "Looks at the sources of trust bundles, by result: ok or refused.",
	}, []string{"trust_domain", "result"})
	reg.MustRegister(fetches)
	return func(td string, ok bool) {
		result := "refused"
		if ok {
			result = "ok"
		}
		fetches.WithLabelValues(td, result).Inc()
	}
}

// Metrics collects the state of the sources of trust bundles.
type Metrics struct{ Bundles *Bundles }

// Describe sends nothing, as the trust domains may change.
func (Metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. The worst of several sources of a trust
// domain counts.
func (m Metrics) Collect(out chan<- prometheus.Metric) {
	type worst struct{ problems, age, until float64 }
	domains := map[string]worst{}
	list := m.Bundles.Status()
	for i := range list {
		st, w := &list[i], domains[list[i].TrustDomain]
		if st.Problem != "" {
			w.problems++
		}
		w.age = max(w.age, st.AgeSeconds)
		if until := float64(st.Until.Unix()); !st.Until.IsZero() && (w.until == 0 || until < w.until) {
			w.until = until
		}
		domains[st.TrustDomain] = w
	}
	gauge := func(name, help, td string, v float64) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, []string{"trust_domain"}, nil), prometheus.GaugeValue, v, td)
	}
	for td, w := range domains {
		gauge("meshctl_trust_bundle_problems", "Sources of the trust domain's bundle that are not in use as they are.", td, w.problems)
		gauge("meshctl_trust_bundle_age_seconds", "How long ago the bundle's source was last found to be good.", td, w.age)
		gauge("meshctl_trust_bundle_expiry_timestamp", "When the bundle's last root ends, in seconds since 1970; 0 without a bundle.", td, w.until)
	}
}
