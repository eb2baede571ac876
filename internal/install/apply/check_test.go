package apply

import (
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

// has checks that a finding has these texts.
func has(t *testing.T, found []Finding, object, fault string) {
	t.Helper()
	for _, f := range found {
		if f.Object == object && strings.Contains(f.Fault, fault) {
			return
		}
	}
	t.Errorf("no finding of %s with %q in\n%+v", object, fault, found)
}

// TestCheck: the faults before and after an installation are found, and a sound cluster has
// none before.
func TestCheck(t *testing.T) {
	t.Parallel()
	l := start(t)
	before := func() []Finding {
		server, err := create.Connect("context test", l.Config())
		if err != nil {
			t.Fatal(err)
		}
		found, err := l.cluster.CheckBefore(t.Context(), values(), server)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := before(); len(found) > 0 {
		t.Errorf("of an empty cluster: %+v", found)
	}
	after, err := l.cluster.CheckAfter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	has(t, after, "context test", "there is no installation")

	l.Apply(t, `{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}
---
{apiVersion: v1, kind: Service, metadata: {name: istiod, namespace: istio-system}, spec: {ports: [{port: 15012}]}}
---
{apiVersion: admissionregistration.k8s.io/v1, kind: MutatingWebhookConfiguration, metadata: {name: istio-revision-tag-default},
webhooks: [{name: namespace.sidecar-injector.istio.io, sideEffects: None, admissionReviewVersions: [v1], clientConfig: {url: "https://example.com"}, rules: []}]}`)
	found := before()
	has(t, found, "Service istio-system/istiod", "is not of installation meshctl")
	has(t, found, "MutatingWebhookConfiguration istio-revision-tag-default", "it also injects")
	l.Kubectl(t, "", "delete", "service/istiod", "-n", "istio-system")
	l.install(t, values())
	if after, err = l.cluster.CheckAfter(t.Context()); err != nil {
		t.Fatal(err)
	}
	has(t, after, "Deployment istio-system/istiod", "0 of 2 replicas are available")
	has(t, after, "Service istio-system/istiod", "no ready endpoint")
	has(t, after, "Service istio-system/istio-eastwestgateway", "it has no address")
	has(t, after, "MutatingWebhookConfiguration istio-sidecar-injector", "has no caBundle")
}
