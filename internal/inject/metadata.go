package inject

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
)

// maxLabel is the greatest length of the value of a label.
const maxLabel = 63

// canonicalLabels returns the labels by which telemetry groups pods, and the network.
func (p *injection) canonicalLabels() map[string]string {
	have := p.pod.Labels
	name := p.workload.Name
	if len(name) > maxLabel {
		name = strings.TrimRight(name[:maxLabel], "-._")
	}
	out := map[string]string{
		mesh.LabelCanonicalRevision: mesh.CanonicalRevision(have),
	}
	if name = mesh.CanonicalName(have, name); name != "" {
		out[mesh.LabelCanonicalName] = name
	}
	if network := p.network(); network != "" {
		out[mesh.LabelNetwork] = network
	}
	return out
}

// scrape is where the metrics of the application are.
type scrape struct {
	Scrape  string              `json:"scrape,omitempty"`
	Path    string              `json:"path,omitempty"`
	Port    string              `json:"port,omitempty"`
	Targets []mesh.ScrapeTarget `json:"targets,omitempty"`
}

// mergedPath is the path of the metrics of the agent, Envoy and the application together.
const mergedPath = "/stats/prometheus"

// mergeMetrics directs Prometheus to the agent, which adds the metrics of the application.
func (p *injection) mergeMetrics(object map[string]any) {
	own := scrape{Scrape: p.annotation(annotationScrape), Path: p.annotation(annotationScrapePath), Port: p.annotation(annotationScrapePort)}
	own.Targets, _ = mesh.ScrapeTargets(p.annotation(annotationScrapeTargets)) // checked before
	merges := p.Mesh.GetEnablePrometheusMerge() == nil || p.Mesh.GetEnablePrometheusMerge().GetValue()
	if text := p.annotation(annotationMerge); text != "" {
		merges = text == "true"
	}
	proxy := findContainer(object, proxyContainer)
	if !merges || own.Scrape == "false" || proxy == nil || p.proxy.GetStatusPort() == 0 {
		if len(own.Targets) > 0 {
			p.warnf("annotation %s has no effect: the metrics of this pod are not merged", annotationScrapeTargets)
		}
		return
	}
	if own.Port == p.agentPort() { // an injector was here
		return
	}
	if !reflect.DeepEqual(own, scrape{}) {
		text, _ := json.Marshal(own) // a struct of text always encodes
		addEnv(proxy, "ISTIO_PROMETHEUS_ANNOTATIONS", string(text))
	}
	merge(object, map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		annotationScrape: "true", annotationScrapePort: p.agentPort(), annotationScrapePath: mergedPath,
	}}})
}

// status is the annotation sidecar.istio.io/status: the names of the added parts.
type status struct {
	InitContainers   []string `json:"initContainers"`
	Containers       []string `json:"containers"`
	Volumes          []string `json:"volumes"`
	ImagePullSecrets []string `json:"imagePullSecrets"`
	Revision         string   `json:"revision"`
}

// describe adds the annotations that describe the injection.
func (p *injection) describe(object map[string]any) error {
	added := func(field string) []string {
		own := make(map[string]bool)
		for _, name := range names(p.in.Object, field) {
			own[name] = true
		}
		return slices.DeleteFunc(names(object, field), func(name string) bool { return own[name] && name != proxyContainer })
	}
	text, err := json.Marshal(status{
		added(initContainers), added(appContainers), added("volumes"), added("imagePullSecrets"), p.revision(),
	})
	if err != nil {
		return err
	}
	annotations := map[string]any{annotationStatus: string(text), labelRev: p.revision()}
	first := ""
	for _, name := range names(object, appContainers) {
		if first == "" || first == proxyContainer {
			first = name
		}
	}
	for _, name := range []string{annotationDefault, annotationDefaultLogs} {
		annotations[name] = cmp.Or(p.annotation(name), first)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Values.SidecarInjectorWebhook.InjectedAnnotations)) {
		annotations[name] = p.Values.SidecarInjectorWebhook.InjectedAnnotations[name]
	}
	merge(object, map[string]any{"metadata": map[string]any{"annotations": annotations}})
	return nil
}

// names returns the names of the items of a list of the spec.
func names(object map[string]any, field string) []string {
	spec, _ := object["spec"].(map[string]any)
	items, _ := spec[field].([]any)
	var out []string
	for _, item := range items {
		if o, ok := item.(map[string]any); ok {
			out = append(out, fmt.Sprint(o["name"]))
		}
	}
	return out
}
