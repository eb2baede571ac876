package meshconfig

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// addressed is a provider with the service that it uses.
type addressed interface {
	GetService() string
	GetPort() uint32
}

// collectorFault checks where a provider sends spans or logs.
func collectorFault(field string, at addressed, path string, headers []*meshv1alpha1.MeshConfig_ExtensionProvider_HttpHeader) *fields.Error {
	host := at.GetService()[strings.Index(at.GetService(), "/")+1:]
	switch {
	case host == "":
		return fields.Faultf(field+".service", "is missing: the provider is not used")
	case !isServiceName(at.GetService()):
		return fields.Faultf(field+".service", "%q is neither a host name nor <namespace>/<host name>: the provider is not used", at.GetService())
	case !fields.IsPort(at.GetPort()):
		return fields.Faultf(field+".port", "%d is not a port, want 1 to 65535: the provider is not used", at.GetPort())
	case path != "" && path[0] != '/':
		return fields.Faultf(field+".path", "%q does not begin with a slash: the provider is not used", path)
	}
	return collectorHeadersFault(field+".headers", headers)
}

// isServiceName reports whether a text is a host, or a namespace and a host.
func isServiceName(text string) bool {
	namespace, host, two := strings.Cut(text, "/")
	if !two {
		namespace, host = "default", text
	}
	return mesh.IsDNSLabel(namespace) && mesh.IsDNSName(strings.ToLower(host))
}

// collectorHeadersFault checks the headers of calls to a collector.
func collectorHeadersFault(field string, headers []*meshv1alpha1.MeshConfig_ExtensionProvider_HttpHeader) *fields.Error {
	for i, h := range headers {
		switch {
		case !fields.IsHeaderName(h.GetName()):
			return fields.Faultf(fields.At(field, i)+".name", "%q is not the name of a header: the provider is not used", h.GetName())
		case h.GetEnvName() != "":
			return fields.Faultf(fields.At(field, i)+".envName", "is not supported, use value: the provider is not used")
		case strings.ContainsAny(h.GetValue(), "\x00\r\n"):
			return fields.Faultf(fields.At(field, i)+".value", "has a line break: the provider is not used")
		}
	}
	return nil
}

func openTelemetryFault(field string, o *meshv1alpha1.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider) *fields.Error {
	const notUsed = "is not supported: the provider is not used"
	if fault := collectorFault(field, o, "", nil); fault != nil {
		return fault
	}
	switch {
	case o.GetDynatraceSampler() != nil:
		return fields.Faultf(field+".dynatraceSampler", notUsed)
	case o.GetResourceDetectors().GetDynatrace() != nil:
		return fields.Faultf(field+".resourceDetectors.dynatrace", notUsed)
	case o.GetServiceAttributeEnrichment() != meshv1alpha1.MeshConfig_ExtensionProvider_ISTIO_CANONICAL:
		return fields.Faultf(field+".serviceAttributeEnrichment", notUsed)
	case o.GetHttp() != nil && o.GetGrpc() != nil:
		return fields.Faultf(field+".grpc", "http is set, too: the provider is not used")
	}
	if h := o.GetHttp(); h != nil && (h.GetPath() == "" || h.GetPath()[0] != '/') {
		return fields.Faultf(field+".http.path", "%q does not begin with a slash: the provider is not used", h.GetPath())
	}
	if fault := collectorHeadersFault(field+".http.headers", o.GetHttp().GetHeaders()); fault != nil {
		return fault
	}
	return collectorHeadersFault(field+".grpc.initialMetadata", o.GetGrpc().GetInitialMetadata())
}

// checkTracing replaces invalid settings of defaultConfig.tracing by their defaults, with a
// warning.
func (c *Reader) checkTracing(m *meshv1alpha1.MeshConfig, doc yamldoc.Value) {
	const field = "defaultConfig.tracing"
	own := m.GetDefaultConfig().GetTracing()
	if own == nil {
		return
	}
	refuse := func(name, reason string) { c.warn(inText(keyMesh, doc, fields.Faultf(field+name, "%s", reason))) }
	if s := own.GetSampling(); s < 0 || s > 100 {
		refuse(".sampling", "is not a percentage: the default is used")
		own.Sampling = 0
	}
	if address := own.GetZipkin().GetAddress(); address != "" {
		_, number, err := net.SplitHostPort(address)
		if port, wrong := strconv.ParseUint(number, 10, 16); err != nil || wrong != nil || port == 0 {
			refuse(".zipkin.address", "is not host:port: no spans are sent")
			own.Tracer = nil
		}
	}
	for _, name := range slices.Sorted(maps.Keys(own.GetCustomTags())) {
		tag := own.GetCustomTags()[name]
		if tag.GetLiteral().GetValue() == "" && tag.GetEnvironment().GetName() == "" && !fields.IsHeaderName(tag.GetHeader().GetName()) {
			refuse(".customTags."+name, "has no literal value, no name of a variable and no name of a header: it is left out")
			delete(own.CustomTags, name)
		}
	}
}

// TracingFault checks an entry of a Telemetry.
func TracingFault(field string, t *telemetryv1alpha1.Tracing) *fields.Error {
	faults := fields.Each(field+".providers", t.Providers, ProviderNameFault)
	if s := t.GetRandomSamplingPercentage(); s != nil && (s.GetValue() < 0 || s.GetValue() > 100) {
		faults = faults.And(fields.Faultf(field+".randomSamplingPercentage", "%g is not a percentage: want 0 to 100", s.GetValue()))
	}
	for _, name := range slices.Sorted(maps.Keys(t.GetCustomTags())) {
		faults = faults.And(tagFault(field+".customTags."+fields.FieldOf(name), name, t.GetCustomTags()[name]))
	}
	return faults
}

func tagFault(field, name string, t *telemetryv1alpha1.Tracing_CustomTag) *fields.Error {
	if name == "" {
		return fields.Faultf(field, "the name of a tag is empty")
	}
	switch {
	case t.GetLiteral() != nil && t.GetLiteral().GetValue() == "":
		return fields.Faultf(field+".literal.value", "is missing")
	case t.GetEnvironment() != nil && t.GetEnvironment().GetName() == "":
		return fields.Faultf(field+".environment.name", "is missing")
	case t.GetHeader() != nil && !fields.IsHeaderName(t.GetHeader().GetName()):
		return fields.Faultf(field+".header.name", "%q is not the name of a header", t.GetHeader().GetName())
	case t.GetFormatter() != nil && t.GetFormatter().GetValue() == "":
		return fields.Faultf(field+".formatter.value", "is missing")
	case t.GetType() == nil:
		return fields.Faultf(field, "has none of literal, environment, header and formatter")
	}
	if err := fields.CheckTextFormat(t.GetFormatter().GetValue()); err != nil {
		return fields.Faultf(field+".formatter.value", "%w", err)
	}
	return nil
}

// ProviderNameFault checks the name of an extension provider in a Telemetry.
func ProviderNameFault(field string, p *telemetryv1alpha1.ProviderRef) *fields.Error {
	if p.Name == "" {
		return fields.Faultf(field+".name", "is missing")
	}
	return nil
}
