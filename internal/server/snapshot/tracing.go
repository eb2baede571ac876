package snapshot

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
)

// Collector is a service that takes spans or access logs from proxies.
type Collector struct {
	// Service is the host of the service, or <namespace>/<host>.
	Service string
	Port    uint32
	// Spec is an encoded MeshConfig.ExtensionProvider.
	Spec string
}

// Host returns the host of the service.
func (c Collector) Host() string { return c.Service[strings.Index(c.Service, "/")+1:] }

// Is reports whether a service of the host is the one that takes the data.
func (c Collector) Is(svc *MeshService) bool {
	namespace, _, two := strings.Cut(c.Service, "/")
	return (!two || namespace == svc.Namespace) && svc.Port(c.Port) != nil
}

// Tracing sets how proxies trace requests. It is comparable. The zero value turns it off.
type Tracing struct {
	On bool
	// Sampling is the percentage of requests without a decision of the client that are traced.
	Sampling float64
	// MaxPathTag bounds the bytes of the tag with the path; 0 means Envoy's default.
	MaxPathTag uint32
	Tags       List[TraceTag]
	// Collector takes the spans, through a cluster of its service at Host. Without Cluster,
	// no spans are sent.
	Collector     Collector
	Cluster, Host string
	// Workload is the name of the workload in spans, if the collector needs it.
	Workload string
	// NoRequestID keeps the decision out of x-request-id, NoPropagation the headers of traces
	// out of requests.
	NoRequestID, NoPropagation bool
}

// TraceTag is a tag of spans. Exactly one source of its value is set.
type TraceTag struct {
	Name        string
	Literal     string
	Environment string // variable of the proxy
	Header      string // of the request
	Format      string // as in access logs
	// Default is the value if there is no such variable or header.
	Default string
}

// TraceTagsOf returns the tags of a ProxyConfig, sorted by name.
func TraceTagsOf(t *meshv1alpha1.Tracing) List[TraceTag] {
	var tags []TraceTag
	for _, name := range slices.Sorted(maps.Keys(t.GetCustomTags())) {
		tag := t.GetCustomTags()[name]
		tags = append(tags, TraceTag{
			Name: name, Literal: tag.GetLiteral().GetValue(), Environment: tag.GetEnvironment().GetName(), Header: tag.GetHeader().GetName(),
			Default: cmp.Or(tag.GetEnvironment().GetDefaultValue(), tag.GetHeader().GetDefaultValue()),
		})
	}
	return ListOf(tags)
}
