package server

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/webhook"
)

// reviews counts the requests of API servers to the webhooks, also under the names that Istio's
// dashboards read.
type reviews struct {
	all                   *prometheus.CounterVec
	passed, failed        *prometheus.CounterVec // validations
	injected, notInjected prometheus.Counter
}

func newReviews(registry *prometheus.Registry) *reviews {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	r := &reviews{
		all: counters("meshctl_webhook_requests_total",
			"Requests of API servers, by webhook (inject, validate) and result (injected, skipped, accepted, refused, error).", "webhook", "result"),
		passed:      counters("galley_validation_passed", "Objects that the webhook accepted.", "group", "version", "resource"),
		failed:      counters("galley_validation_failed", "Objects that the webhook refused.", "group", "version", "resource", "reason"),
		injected:    counter("sidecar_injection_success_total", "Pods that the webhook injected."),
		notInjected: counter("sidecar_injection_failure_total", "Pods that the webhook refused, or could not decide about."),
	}
	registry.MustRegister(r.all, r.passed, r.failed, r.injected, r.notInjected)
	return r
}

// count counts a request.
func (r *reviews) count(name, result string, kind metav1.GroupVersionKind) {
	r.all.WithLabelValues(name, result).Inc()
	switch result {
	case webhook.Injected:
		r.injected.Inc()
	case webhook.Accepted:
		if resource := resourceOf(kind); resource != "" {
			r.passed.WithLabelValues(kind.Group, kind.Version, resource).Inc()
		}
	case webhook.Refused, webhook.Failed:
		if name == webhook.Inject {
			r.notInjected.Inc()
		} else if resource := resourceOf(kind); resource != "" {
			r.failed.WithLabelValues(kind.Group, kind.Version, resource, "invalid_resource").Inc()
		}
	}
}

// resourceOf returns the name of the resource of a kind, or "" if the control plane does not know
// the kind. Labels thus have no values that a client chose.
func resourceOf(kind metav1.GroupVersionKind) string {
	for _, r := range source.Watched() {
		if r.Group == kind.Group && r.KubeKind == kind.Kind && slices.Contains(r.Versions, kind.Version) {
			return r.Name
		}
	}
	return ""
}
