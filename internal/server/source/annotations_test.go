package source

import (
	"testing"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// TestAnnotations: annotations of Istio's domain must be known, and at the right kind. A
// security policy with a wrong annotation is enforced.
func TestAnnotations(t *testing.T) {
	t.Parallel()
	const policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n"
	for _, c := range []struct {
		object, annotation string
		want               fields.ProblemKind // or Unused for no warning
	}{
		{policy, "istio.io/dry-run: \"false\"", fields.Unused},
		{policy, "security.istio.io/dry-run: \"true\"", fields.UnknownAnnotation},
		{policy, "traffic.istio.io/nodeSelector: \"{}\"", fields.MisplacedAnnotation},
		{policy, "kubernetes.io/ingress.class: istio", fields.MisplacedAnnotation},
		{policy, "kubernetes.io/other: istio", fields.Unused},
		{policy, "galley.istio.io/analyze-suppress: \"*\"", fields.Unused},
		{policy, "notistio.io/anything: a", fields.Unused},
		{"apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nspec: {address: 10.0.0.1, serviceAccount: a}\n", "proxy.istio.io/health-checks-enabled: \"true\"", fields.Unused},
		{"apiVersion: v1\nkind: Service\n", "alpha.istio.io/kubernetes-serviceaccounts: a", fields.Unneeded},
		{"apiVersion: v1\nkind: Namespace\n", "istio.io/use-waypoint-canary-weight: \"1\"", fields.Unneeded},
		{"apiVersion: v1\nkind: Secret\n", "networking.istio.io/cluster: east", fields.Unused},
	} {
		doc, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte(c.object + "metadata: {name: x, namespace: 'n', annotations: {" + c.annotation + "}}\n"), Line: 1})
		if err != nil {
			t.Fatal(err)
		}
		r, err := (&Converter{Cluster: "c"}).Decode(doc, snapshot.Place{})
		if err != nil || r.Unenforced(nil, false) {
			t.Errorf("%s: %v, unenforced %t", c.annotation, err, r.Unenforced(nil, false))
		}
		switch {
		case c.want == fields.Unused && len(r.Warnings) > 0:
			t.Errorf("%s: %v", c.annotation, r.Warnings)
		case c.want != fields.Unused && (len(r.Warnings) != 1 || r.Warnings[0].Kind != c.want):
			t.Errorf("%s: %v", c.annotation, r.Warnings)
		}
		if r, _ = (&Converter{Cluster: "c", Remote: true}).Decode(doc, snapshot.Place{}); len(r.Warnings) > 0 {
			t.Errorf("%s, of a remote cluster: %v", c.annotation, r.Warnings)
		}
	}
}
