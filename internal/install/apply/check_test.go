package apply

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
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
	hint := func(found []Finding, object, fault string) string {
		for _, f := range found {
			if f.Object == object && strings.Contains(f.Fault, fault) {
				return f.Hint
			}
		}
		return ""
	}
	if got, want := hint(after, "Service istio-system/istio-eastwestgateway", "no ready endpoint"), "kubectl -n istio-system describe deployment istio-eastwestgateway"; got != want {
		t.Errorf("hint %q, want %q", got, want)
	}
	l.Kubectl(t, "", "delete", "customresourcedefinition", "authorizationpolicies.security.istio.io", "wasmplugins.extensions.istio.io")
	if after, err = l.cluster.CheckAfter(t.Context()); err != nil {
		t.Fatal(err)
	}
	const lost = "CustomResourceDefinition authorizationpolicies.security.istio.io"
	has(t, after, lost, "it is missing, and with it all objects of the kind")
	if got, want := hint(after, lost, "missing"), "meshctl upgrade --crds"; got != want || hint(after, "CustomResourceDefinition wasmplugins.extensions.istio.io", "") != "" {
		t.Errorf("hint %q, want %q in\n%+v", got, want, after)
	}
	l.Kubectl(t, "", "patch", "service", "istiod", "-n", "istio-system", "-p", `{"spec": {"selector": {"istio.io/rev": "other"}}}`)
	if after, err = l.cluster.CheckAfter(t.Context()); err != nil {
		t.Fatal(err)
	}
	mend := hint(after, "Service istio-system/istiod", "selects no pod of Deployment istiod")
	args := strings.Split(strings.ReplaceAll(strings.TrimPrefix(mend, "kubectl "), "'", ""), " ")
	l.Kubectl(t, "", args...)
	if after, err = l.cluster.CheckAfter(t.Context()); err != nil {
		t.Fatal(err)
	}
	has(t, after, "Service istio-system/istiod", "no ready endpoint")
	l.Kubectl(t, "", "delete", "deployment", "istio-eastwestgateway", "-n", "istio-system")
	l.Kubectl(t, "", "delete", "deployment", "istiod", "-n", "istio-system")
	if after, err = l.cluster.CheckAfter(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{"istiod", "istio-eastwestgateway"} {
		if got, want := hint(after, "Service istio-system/"+service, "there is no Deployment of its pods"), "meshctl upgrade"; got != want {
			t.Errorf("%s: hint %q, want %q in\n%+v", service, got, want, after)
		}
	}
	l.install(t, values())
	has(t, after, "MutatingWebhookConfiguration istio-sidecar-injector", "has no caBundle")

	var roots [][]byte
	for range 2 {
		root, err := certs.NewRoot(certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "root", TTL: time.Hour}, time.Now(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		roots = append(roots, certs.EncodeCerts(root.Cert))
	}
	l.Kubectl(t, "", "create", "configmap", "istio-ca-root-cert", "-n", "istio-system", "--from-literal=root-cert.pem="+string(roots[0]))
	hooks := strings.Fields(l.Kubectl(t, "", "get", "mutatingwebhookconfiguration", "istio-sidecar-injector", "-o", "jsonpath={.webhooks[*].name}"))
	bundle := func(root []byte) []Finding {
		var patches []string
		for i := range hooks {
			patches = append(patches, fmt.Sprintf(`{"op": "add", "path": "/webhooks/%d/clientConfig/caBundle", "value": %q}`, i, base64.StdEncoding.EncodeToString(root)))
		}
		l.Kubectl(t, "", "patch", "mutatingwebhookconfiguration", "istio-sidecar-injector", "--type=json", "-p", "["+strings.Join(patches, ", ")+"]")
		found, err := l.cluster.CheckAfter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	l.Kubectl(t, "", "scale", "deployment", "istiod", "-n", "istio-system", "--replicas=0")
	found = bundle(roots[1])
	has(t, found, "Deployment istio-system/istiod", "it has 0 replicas")
	has(t, found, "MutatingWebhookConfiguration istio-sidecar-injector", "has no root of the mesh")
	for _, f := range bundle(roots[0]) {
		if strings.Contains(f.Fault, "has no root of the mesh") {
			t.Errorf("with the root of the mesh: %+v", f)
		}
	}
}
