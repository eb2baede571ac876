package mesh

import (
	"cmp"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// AnnotationScrapeTargets names the ports and paths at which the application of a pod serves
// metrics.
const AnnotationScrapeTargets = "prometheus.istio.io/scrape-targets"

// MaxScrapeTargets is the most targets of an application.
const MaxScrapeTargets = 16

// ScrapeTarget is a port and a path at which an application serves metrics.
type ScrapeTarget struct {
	Port string `json:"port"`
	Path string `json:"path"`
}

// ScrapeTargets parses the value of AnnotationScrapeTargets: PORT:PATH, separated by commas. The
// path may be left out.
func ScrapeTargets(text string) ([]ScrapeTarget, error) {
	var out []ScrapeTarget
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		port, path, _ := strings.Cut(item, ":")
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil || number == 0 {
			return nil, fmt.Errorf("%q: %q is not a port: want PORT:PATH, such as 8080:/metrics", item, port)
		}
		if IsProxyPort(uint32(number)) {
			return nil, fmt.Errorf("%q: port %d is the proxy's, not the application's", item, number)
		}
		path = cmp.Or(path, "/metrics")
		if u, err := url.Parse(path); err != nil || path[0] != '/' || u.Host != "" {
			return nil, fmt.Errorf("%q: %q is not the path of a URL: want PORT:PATH, such as 8080:/metrics", item, path)
		}
		if out = append(out, ScrapeTarget{strconv.FormatUint(number, 10), path}); len(out) > MaxScrapeTargets {
			return nil, fmt.Errorf("want at most %d targets", MaxScrapeTargets)
		}
	}
	return out, nil
}
