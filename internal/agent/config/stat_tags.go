package config

import (
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxysettings"
)

// maxStatTags bounds extraStatTags: Envoy compares each new statistic with each tag.
const maxStatTags = proxysettings.MaxStatTags

// statTags resolves the labels of Envoy's statistics, which PROXY_CONFIG and an annotation of the pod
// set.
func (r *resolver) statTags(cfg *Config, pc *meshv1alpha1.ProxyConfig, annotations map[string]string) {
	add := func(from string, names []string) {
		for _, name := range names {
			name = strings.TrimSpace(name)
			switch {
			case name == "" || slices.Contains(cfg.ExtraStatTags, name):
			case !mesh.IsStatTag(name):
				r.errorf("%s: %q is not the name of a tag: want letters, digits, '_', '-' and '.'", from, name)
			default:
				cfg.ExtraStatTags = append(cfg.ExtraStatTags, name)
			}
		}
	}
	add("extraStatTags of PROXY_CONFIG", pc.GetExtraStatTags())
	add("annotation "+annotationStatTags, strings.Split(annotations[annotationStatTags], ","))
	if n := len(cfg.ExtraStatTags); n > maxStatTags {
		r.errorf("extraStatTags of PROXY_CONFIG and annotation %s have %d tags, want at most %d", annotationStatTags, n, maxStatTags)
	}
}
