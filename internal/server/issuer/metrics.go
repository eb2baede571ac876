package issuer

import "github.com/prometheus/client_golang/prometheus"

// NewStats returns Stats that count in Istio's metrics.
func NewStats(reg prometheus.Registerer) Stats {
	counter := func(name, help string) func() {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c.Inc
	}
	signErrors := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "citadel_server_csr_sign_err_count", Help: "Certificate requests that were not signed, by reason.",
	}, []string{"error"})
	reg.MustRegister(signErrors)
	return Stats{
		Request:     counter("citadel_server_csr_count", "Certificate requests received."),
		AuthFailure: counter("citadel_server_authentication_failure_count", "Certificate requests of callers that were not authenticated."),
		Limited:     counter("meshctl_ca_limited_requests_total", "Certificate requests refused because there were too many, of one identity or at once."),
		ParseError:  counter("citadel_server_csr_parsing_err_count", "Certificate requests that could not be read."),
		SignError:   func(reason string) { signErrors.WithLabelValues(reason).Inc() },
		Issued:      counter("citadel_server_success_cert_issuance_count", "Certificates issued."),
	}
}
