package ca

import (
	"crypto/x509"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// RegisterMetrics registers the expiry of the signing CA, under Istio's names, and
// the problems of its source. Without a CA the times are 0.
func (c *CA) RegisterMetrics(reg prometheus.Registerer) {
	gauge := func(name, help string, value func(*Set) float64) {
		reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			if set := c.Current(); set != nil {
				return value(set)
			}
			return 0
		}))
	}
	expiry := func(name, what string, list func(*Set) []*x509.Certificate) {
		end := func(s *Set) time.Time { return firstEnd(list(s)) }
		gauge(name+"_timestamp", "When "+what+" expires, in seconds since 1970.", func(s *Set) float64 { return float64(end(s).Unix()) })
		gauge(name+"_seconds", "How long "+what+" is still valid.", func(s *Set) float64 { return end(s).Sub(c.cfg.Now()).Seconds() })
	}
	expiry("citadel_server_root_cert_expiry", "the root of the signing CA", func(s *Set) []*x509.Certificate { return s.Top })
	expiry("citadel_server_cert_chain_expiry", "the first of the chain of the signing CA", func(s *Set) []*x509.Certificate {
		return append([]*x509.Certificate{s.Cert}, s.Chain...)
	})
	gauge("meshctl_ca_loaded_timestamp", "When the signing CA in use was loaded, in seconds since 1970.", func(s *Set) float64 { return float64(s.LoadedAt.Unix()) })
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "meshctl_ca_problems", Help: "What is wrong with the directory of the signing CA: 0 when it is in use as it is.",
	}, func() float64 { return float64(len(c.Problems())) }))
}

func firstEnd(list []*x509.Certificate) time.Time {
	var end time.Time
	for _, c := range list {
		if end.IsZero() || c.NotAfter.Before(end) {
			end = c.NotAfter
		}
	}
	return end
}

// CountReloads returns a Config.Reloaded that counts reloads by result.
func CountReloads(reg prometheus.Registerer) func(ok bool) {
	reloads := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "meshctl_ca_reloads_total", Help: "Times that the directory of the signing CA was read because it had changed, by result.",
	}, []string{"result"})
	reg.MustRegister(reloads)
	ok, refused := reloads.WithLabelValues("ok"), reloads.WithLabelValues("refused")
	return func(good bool) {
		if good {
			ok.Inc()
		} else {
			refused.Inc()
		}
	}
}

// NewIssuerStats returns IssuerStats that count in Istio's metrics.
func NewIssuerStats(reg prometheus.Registerer) IssuerStats {
	counter := func(name, help string) func() {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c.Inc
	}
	signErrors := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "citadel_server_csr_sign_err_count", Help: "Certificate requests that were not signed, by reason.",
	}, []string{"error"})
	reg.MustRegister(signErrors)
	return IssuerStats{
		Request:     counter("citadel_server_csr_count", "Certificate requests received."),
		AuthFailure: counter("citadel_server_authentication_failure_count", "Certificate requests of callers that were not authenticated."),
		Limited:     counter("meshctl_ca_limited_requests_total", "Certificate requests refused because there were too many, of one identity or at once."),
		ParseError:  counter("citadel_server_csr_parsing_err_count", "Certificate requests that could not be read."),
		SignError:   func(reason string) { signErrors.WithLabelValues(reason).Inc() },
		Issued:      counter("citadel_server_success_cert_issuance_count", "Certificates issued."),
	}
}
