package source

import (
	"maps"
	"slices"
	"strings"

	"istio.io/api/annotation"

	"github.com/meshctl/meshctl/internal/mesh"
)

// annotationsWithoutEffect holds the annotations of Istio for users that have no effect, with the
// reason. Package inject has those of injection.
var annotationsWithoutEffect = map[string]string{
	annotation.AlphaCanonicalServiceAccounts.Name:  ownAccounts,
	annotation.AlphaKubernetesServiceAccounts.Name: ownAccounts,
	annotation.AmbientBypassInboundCapture.Name:    noAmbient,
	annotation.AmbientDnsCapture.Name:              noAmbient,
	annotation.AmbientWaypointInboundBinding.Name:  noAmbient,
	annotation.IoIstioUseWaypointCanaryWeight.Name: noAmbient,
	annotation.GatewayNameOverride.Name:            noProxyOfGateway,
	annotation.GatewayServiceAccount.Name:          noProxyOfGateway,
	annotation.NetworkingServiceType.Name:          noProxyOfGateway,
}

const (
	noAmbient        = "there is no ambient mode"
	ownAccounts      = "the identities of a Service are those of its endpoints"
	noProxyOfGateway = "no proxy is started for the Gateway"
)

// checkAnnotations warns about annotations of Istio's domain that Istio does not define, or
// defines for other kinds, or that have no effect. The Kubernetes source drops most annotations of Pods and Services
// before, see ReadsAnnotation.
func (c *conversion) checkAnnotations(k *kind, annotations map[string]string) {
	if c.Remote || k == secretKind { // remote secrets have annotations of istioctl
		return
	}
	for _, name := range slices.Sorted(maps.Keys(annotations)) {
		domain, _, _ := strings.Cut(name, "/")
		if domain != "istio.io" && !strings.HasSuffix(domain, ".istio.io") || domain == "internal.istio.io" || name == mesh.AnnotationHealthChecks {
			continue
		}
		known := annotation.AllResourceAnnotations()
		i := slices.IndexFunc(known, func(a *annotation.Instance) bool { return a.Name == name })
		if i < 0 {
			w := faultf("metadata.annotations["+name+"]", "is no annotation of Istio: it has no effect")
			w.Kind = UnknownAnnotation
			c.warn(w)
			continue
		}
		var kinds []string
		for _, t := range known[i].Resources {
			kinds = append(kinds, t.String())
		}
		if !slices.Contains(kinds, k.name) && !slices.Contains(kinds, annotation.Any.String()) {
			w := faultf("metadata.annotations["+name+"]", "has no effect on a %s: it is for %s", k.name, strings.Join(kinds, ", "))
			w.Kind = MisplacedAnnotation
			c.warn(w)
			continue
		}
		if reason := annotationsWithoutEffect[name]; reason != "" {
			w := noEffect("metadata.annotations["+name+"]", reason)
			w.Kind = Unneeded
			c.warn(w)
		}
	}
}
