package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/netip"
	"net/url"
	"strconv"

	"github.com/meshctl/meshctl/internal/mesh"
)

// scrape is where the metrics of the application are, as annotations of its pod hold it.
type scrape struct {
	Scrape, Path, Port string
	Targets            []mesh.ScrapeTarget // in place of Path and Port
}

// localMetricsVariable is Istio's variable that closes the metrics for others than this pod.
const localMetricsVariable = "METRICS_LOCALHOST_ACCESS_ONLY"

// scrapes resolves the metrics of the application that the agent merges with its own, from
// the variable of the injector, else from the annotations of the pod.
func (r *resolver) scrapes(cfg *Config, annotations map[string]string) {
	cfg.LocalMetrics = r.boolean(setting{cmp.Or(r.lookup(localMetricsVariable), "false"), localMetricsVariable})
	if annotations[mergeAnnotation] == "false" {
		return
	}
	from, text := scrapeVariable, []byte(r.lookup(scrapeVariable))
	var all []scrape
	switch {
	case len(text) == 0:
		from = "the annotations prometheus.io/… of the pod"
		s := scrape{Scrape: annotations[scrapeAnnotation], Path: annotations[pathAnnotation], Port: annotations[portAnnotation]}
		var err error
		if s.Targets, err = mesh.ScrapeTargets(annotations[mesh.AnnotationScrapeTargets]); err != nil {
			r.errorf("annotation %s: %w", mesh.AnnotationScrapeTargets, err)
			return
		}
		known := s.Scrape == "true" && s.Port != strconv.Itoa(int(cfg.StatusPort)) // else an injector was here
		if len(s.Targets) == 0 && !known {
			return
		}
		all = append(all, s)
	case bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")):
		if err := json.Unmarshal(text, &all); err != nil {
			r.errorf("%s: %w", from, err)
		}
	default:
		all = make([]scrape, 1)
		if err := json.Unmarshal(text, &all[0]); err != nil {
			r.errorf("%s: %w", from, err)
			return
		}
	}
	var targets []scrape
	for _, s := range all {
		if len(s.Targets) == 0 {
			targets = append(targets, s)
		}
		for _, t := range s.Targets {
			targets = append(targets, scrape{Scrape: s.Scrape, Path: t.Path, Port: t.Port})
		}
	}
	if len(targets) > mesh.MaxScrapeTargets {
		r.errorf("%s: %d targets, at most %d are allowed", from, len(targets), mesh.MaxScrapeTargets)
		return
	}
	for _, s := range targets {
		if target, ok := r.scrapeURL(cfg, from, s); ok {
			cfg.Scrapes = append(cfg.Scrapes, target)
		}
	}
}

func (r *resolver) scrapeURL(cfg *Config, from string, s scrape) (url.URL, bool) {
	if s.Scrape == "false" {
		return url.URL{}, false
	}
	port, ok := parsePort(cmp.Or(s.Port, "80"))
	if !ok {
		r.errorf("%s: port %q is not a port, 1 to 65535", from, s.Port)
		return url.URL{}, false
	}
	if port == cfg.StatusPort || port == cfg.StatsPort || port == cfg.ReadyPort || port == cfg.AdminPort {
		r.errorf("%s: port %d is the proxy's, not the application's: name the port at which the application serves its metrics", from, port)
		return url.URL{}, false
	}
	target, ok := urlPath(cmp.Or(s.Path, "/metrics"))
	if !ok {
		r.errorf("%s: path %q is not the path of a URL", from, s.Path)
		return url.URL{}, false
	}
	target.Scheme, target.Host = "http", netip.AddrPortFrom(cfg.Local, port).String()
	return *target, true
}
