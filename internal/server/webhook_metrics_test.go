package server

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/server/webhook"
)

// TestReviewsUnderIstiosNames: each result of a webhook is counted where Istio's dashboards read it,
// and kinds that only a caller names make no series.
func TestReviewsUnderIstiosNames(t *testing.T) {
	t.Parallel()
	gateway := metav1.GroupVersionKind{Group: "networking.istio.io", Version: "v1", Kind: "Gateway"}
	for _, c := range []struct {
		webhook, result string
		kind            metav1.GroupVersionKind
		want            string
	}{
		{webhook.Inject, webhook.Injected, metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, "sidecar_injection_success_total"},
		{webhook.Inject, webhook.Refused, metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, "sidecar_injection_failure_total"},
		{webhook.Inject, webhook.Failed, metav1.GroupVersionKind{}, "sidecar_injection_failure_total"},
		{webhook.Inject, webhook.Skipped, metav1.GroupVersionKind{}, ""},
		{webhook.Validate, webhook.Accepted, gateway, "galley_validation_passed networking.istio.io gateways v1"},
		{webhook.Validate, webhook.Refused, gateway, "galley_validation_failed networking.istio.io invalid_resource gateways v1"},
		{webhook.Validate, webhook.Failed, gateway, "galley_validation_failed networking.istio.io invalid_resource gateways v1"},
		{webhook.Validate, webhook.Skipped, gateway, ""},
		{webhook.Validate, webhook.Refused, metav1.GroupVersionKind{Group: "networking.istio.io", Version: "v9", Kind: "Gateway"}, ""},
		{webhook.Validate, webhook.Failed, metav1.GroupVersionKind{}, ""},
	} {
		registry := prometheus.NewRegistry()
		newReviews(registry).count(c.webhook, c.result, c.kind)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "meshctl_webhook_requests_total" || m.GetCounter().GetValue() != 1 {
					continue
				}
				got += f.GetName()
				for _, l := range m.GetLabel() {
					got += " " + l.GetValue()
				}
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", fmt.Sprint(c.webhook, " ", c.result, " ", c.kind), got, c.want)
		}
	}
}
