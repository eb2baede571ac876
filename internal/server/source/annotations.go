package source

import (
	"maps"
	"slices"
	"strings"

	"istio.io/api/annotation"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// unlistedAnnotations are annotations that Istio's injection reads of pods, or that its control
// plane writes, and that Istio's list does not have.
var unlistedAnnotations = map[string]string{
	"istio.io/reroute-virtual-interfaces":     "Pod",
	"prometheus.istio.io/merge-metrics":       "Pod",
	mesh.AnnotationScrapeTargets:              "Pod",
	"sidecar.istio.io/controlPlaneAuthPolicy": "Pod",
	"sidecar.istio.io/enableCoreDump":         "Pod",
	mesh.AnnotationHealthChecks:               "WorkloadEntry",
}

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
		if w := annotationFault("metadata", k.name, name); w != nil {
			c.warn(w)
			continue
		}
		if reason := annotationsWithoutEffect[name]; reason != "" {
			w := fields.WithoutEffect("metadata.annotations["+name+"]", reason)
			w.Kind = fields.Unneeded
			c.warn(w)
		}
	}
}

// workloadAnnotations returns warnings about the annotations of an object that makes pods, such
// as a Deployment, and of its pods.
func workloadAnnotations(kind snapshot.Kind, v yamldoc.Value) []*fields.Error {
	path, makesPods := mesh.PodTemplatePath(string(kind))
	if !makesPods {
		return nil
	}
	var out []*fields.Error
	check := func(field, kind string, metadata yamldoc.Value) {
		for _, name := range slices.Sorted(slices.Values(metadata.Get("annotations").Keys())) {
			if w := annotationFault(field, kind, name); w != nil {
				out = append(out, w)
			}
		}
	}
	check("metadata", string(kind), v.Get("metadata"))
	for _, field := range path {
		v = v.Get(field)
	}
	check(strings.Join(path, ".")+".metadata", "Pod", v.Get("metadata"))
	return out
}

// annotationFault returns a warning about an annotation in the metadata of an object of a kind,
// nil if there is nothing to say.
func annotationFault(metadata, kind, name string) *fields.Error {
	domain, _, _ := strings.Cut(name, "/")
	isIstios := domain == "istio.io" || strings.HasSuffix(domain, ".istio.io") || name == annotation.IoKubernetesIngressClass.Name
	if !isIstios || domain == "internal.istio.io" {
		return nil
	}
	field := metadata + ".annotations[" + name + "]"
	var kinds []string
	if k, ok := unlistedAnnotations[name]; ok {
		kinds = []string{k}
	} else {
		known := annotation.AllResourceAnnotations()
		i := slices.IndexFunc(known, func(a *annotation.Instance) bool { return a.Name == name })
		if i < 0 {
			w := fields.Faultf(field, "is no annotation of Istio: it has no effect")
			w.Kind = fields.UnknownAnnotation
			return w
		}
		for _, t := range known[i].Resources {
			kinds = append(kinds, t.String())
		}
	}
	if slices.Contains(kinds, kind) || slices.Contains(kinds, annotation.Any.String()) {
		return nil
	}
	hint := ""
	if path, makesPods := mesh.PodTemplatePath(kind); makesPods && slices.Contains(kinds, "Pod") {
		hint = ": move it to " + strings.Join(path, ".") + ".metadata.annotations"
	}
	w := fields.Faultf(field, "has no effect on a %s: it is for %s%s", kind, strings.Join(kinds, ", "), hint)
	w.Kind = fields.MisplacedAnnotation
	return w
}
