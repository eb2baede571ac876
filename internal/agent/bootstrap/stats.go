package bootstrap

import (
	"regexp"
	"slices"

	metricsv3 "github.com/envoyproxy/go-control-plane/envoy/config/metrics/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/mesh"
)

// statsConfig keeps few of Envoy's statistics: with thousands of clusters, all statistics
// would take most of its memory. Counters of single hosts, which /clusters shows, always
// exist.
func statsConfig(c *Config) *metricsv3.StatsConfig {
	keep := StatsInclusion{
		Prefixes: []string{"cluster_manager", "listener_manager", "server", "cluster." + mesh.XDSCluster, "wasm", "component", "istio", "reporter="},
		Suffixes: []string{"rbac.allowed", "rbac.denied", "shadow_allowed", "shadow_denied"},
		Regexps:  []string{`vhost\..*\.route\..*`},
	}
	if c.Node.Type == mesh.Router {
		// A gateway passes connections through, so only its statistics show traffic
		// between networks.
		keep.Prefixes = append(keep.Prefixes, "listener.")
		keep.Suffixes = append(keep.Suffixes,
			"upstream_cx_total", "upstream_cx_active", "upstream_cx_connect_fail",
			"upstream_cx_rx_bytes_total", "upstream_cx_tx_bytes_total", "upstream_rq_total",
			"downstream_cx_total", "downstream_cx_rx_bytes_total", "downstream_cx_tx_bytes_total")
	}
	if c.CountConnections {
		keep.Suffixes = append(keep.Suffixes, "downstream_cx_active")
	}
	var patterns []*matcherv3.StringMatcher
	for _, s := range append(keep.Prefixes, c.Stats.Prefixes...) {
		patterns = append(patterns, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: s}})
	}
	for _, s := range append(keep.Suffixes, c.Stats.Suffixes...) {
		patterns = append(patterns, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Suffix{Suffix: s}})
	}
	for _, s := range append(keep.Regexps, c.Stats.Regexps...) {
		patterns = append(patterns, &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_SafeRegex{
			SafeRegex: &matcherv3.RegexMatcher{Regex: s},
		}})
	}
	return &metricsv3.StatsConfig{
		UseAllDefaultTags: wrapperspb.Bool(false),
		StatsTags:         statsTags(c.ExtraStatTags),
		StatsMatcher: &metricsv3.StatsMatcher{StatsMatcher: &metricsv3.StatsMatcher_InclusionList{
			InclusionList: &matcherv3.ListStringMatcher{Patterns: patterns},
		}},
	}
}

// statsTags returns the parts of statistic names that become labels. Names and expressions
// match the dashboards for Istio; cluster names end at ';'. An extra tag that has the name of a
// built-in one is left out.
func statsTags(extra []string) []*metricsv3.TagSpecifier {
	type tag struct{ name, regex string }
	tags := []tag{
		{"cluster_name", `^cluster(\.(.+);)`},
		{"http_conn_manager_prefix", `^http\.(((?:[_.[:digit:]\w]*|[_\[\]aAbBcCdDeEfF[:digit:]\w\:]*));\.)`},
		{"tcp_prefix", `^tcp\.((.*?)\.)\w+?$`},
		{"response_code", `_rq(_(\d{3}))$`},
		{"response_code_class", `_rq(_(\dxx))$`},
		{"http_conn_manager_listener_prefix", `^listener(?=\.).*?\.http\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)`},
		{"listener_address", `^listener\.(((?:[_.[:digit:]]*|[_\[\]aAbBcCdDeEfF[:digit:]]*))\.)`},
		{"authz_enforce_result", `rbac(\.(allowed|denied))`},
		{"authz_dry_run_action", `(\.istio_dry_run_(allow|deny)_)`},
		{"authz_dry_run_result", `(\.shadow_(allowed|denied))`},
	}
	for _, name := range extra {
		if !slices.ContainsFunc(tags, func(t tag) bool { return t.name == name }) {
			tags = append(tags, tag{name, `(` + regexp.QuoteMeta(name) + `=\.=(.*?);\.;)`})
		}
	}
	out := make([]*metricsv3.TagSpecifier, len(tags))
	for i, t := range tags {
		out[i] = &metricsv3.TagSpecifier{
			TagName:  t.name,
			TagValue: &metricsv3.TagSpecifier_Regex{Regex: t.regex},
		}
	}
	return out
}
