package source

import (
	"maps"
	"slices"
	"strings"

	"istio.io/api/annotation"

	"github.com/meshctl/meshctl/internal/mesh"
)

// checkAnnotations warns about annotations of Istio's domain that Istio does not define, or
// defines for other kinds. The Kubernetes source drops most annotations of Pods and Services
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
		}
	}
}
