// Package providers converts the extension providers of MeshConfig to facts: access logs, metrics,
// collectors of traces and external authorizers.
package providers

import (
	"cmp"
	"encoding/json"
	"net"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// OwnZipkin is the name of the collector in defaultConfig.tracing. No provider can have it.
const OwnZipkin = ""

// defaultSampling is the percentage of requests that are traced by default.
const defaultSampling = 1

// Tracing returns the tracing of workloads without a Telemetry.
func Tracing(mc *meshv1alpha1.MeshConfig) snapshot.Tracing {
	own := mc.GetDefaultConfig().GetTracing()
	out := snapshot.Tracing{On: mc == nil || mc.GetEnableTracing(), Sampling: cmp.Or(own.GetSampling(), defaultSampling), MaxPathTag: own.GetMaxPathTagLength()}
	out.Tags = snapshot.TraceTagsOf(own)
	return out
}

// encoded encodes a value that always encodes.
func encoded(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic("registry: " + err.Error())
	}
	return string(b)
}

// Collectors returns the collectors of spans by name in lower case.
func Collectors(mc *meshv1alpha1.MeshConfig) map[string]snapshot.Collector {
	out := make(map[string]snapshot.Collector)
	for _, p := range mc.GetExtensionProviders() {
		name := strings.ToLower(p.GetName())
		if _, dup := out[name]; dup {
			continue // the first of a name counts
		}
		switch {
		case p.GetZipkin() != nil:
			out[name] = collector(p, p.GetZipkin())
		case p.GetOpentelemetry() != nil:
			out[name] = collector(p, p.GetOpentelemetry())
		}
	}
	if host, number, err := net.SplitHostPort(mc.GetDefaultConfig().GetTracing().GetZipkin().GetAddress()); err == nil {
		port, _ := strconv.ParseUint(number, 10, 16)
		zipkin := &meshv1alpha1.MeshConfig_ExtensionProvider_ZipkinTracingProvider{Service: mesh.FullHost(host), Port: uint32(port)}
		out[OwnZipkin] = collector(&meshv1alpha1.MeshConfig_ExtensionProvider{
			Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_Zipkin{Zipkin: zipkin},
		}, zipkin)
	}
	return out
}

// Authorizers returns the providers of external authorization by name. The first of a name
// counts.
func Authorizers(mc *meshv1alpha1.MeshConfig) map[string]snapshot.Collector {
	out := make(map[string]snapshot.Collector)
	for _, p := range slices.Backward(mc.GetExtensionProviders()) {
		switch {
		case p.GetEnvoyExtAuthzGrpc() != nil:
			out[p.GetName()] = collector(p, p.GetEnvoyExtAuthzGrpc())
		case p.GetEnvoyExtAuthzHttp() != nil:
			out[p.GetName()] = collector(p, p.GetEnvoyExtAuthzHttp())
		}
	}
	return out
}

// addressed is a provider with the service that it uses.
type addressed interface {
	GetService() string
	GetPort() uint32
}

func collector(p *meshv1alpha1.MeshConfig_ExtensionProvider, at addressed) snapshot.Collector {
	spec, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		panic("registry: " + err.Error()) // it came from YAML
	}
	return snapshot.Collector{Service: at.GetService(), Port: at.GetPort(), Spec: string(spec)}
}

// otlpLog returns the access log of a collector. own is the access log of MeshConfig, whose
// line is the default.
func otlpLog(p *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyOpenTelemetryLogProvider, own snapshot.AccessLog) snapshot.AccessLog {
	log := snapshot.AccessLog{
		Collector: snapshot.Collector{Service: p.GetService(), Port: p.GetPort()}, LogName: cmp.Or(p.GetLogName(), "otel_envoy_accesslog"),
		Format: p.GetLogFormat().GetText(),
	}
	if log.Format == "" && !own.JSON {
		log.Format = own.Format
	}
	if labels := p.GetLogFormat().GetLabels().GetFields(); len(labels) > 0 {
		log.Labels = encoded(p.GetLogFormat().GetLabels().AsMap())
	}
	return log
}

// AccessLogs returns the access logs of the providers, by name in lower case. Unless a
// provider is named envoy, this name stands for the access log of MeshConfig, and for the
// standard output if MeshConfig has no file.
func AccessLogs(providers []*meshv1alpha1.MeshConfig_ExtensionProvider, own snapshot.AccessLog) map[string]snapshot.AccessLog {
	const builtIn, stdout = "envoy", "/dev/stdout"
	out := make(map[string]snapshot.AccessLog)
	for _, p := range providers {
		name, file := strings.ToLower(p.GetName()), p.GetEnvoyFileAccessLog()
		if _, dup := out[name]; dup {
			continue // the first of a name counts
		}
		if otlp := p.GetEnvoyOtelAls(); otlp != nil {
			out[name] = otlpLog(otlp, own)
		}
		if file == nil {
			continue
		}
		log := snapshot.AccessLog{File: cmp.Or(file.GetPath(), stdout), OmitEmpty: file.GetOmitEmptyValues()}
		switch format := file.GetLogFormat().GetLogFormat().(type) {
		case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider_LogFormat_Text:
			log.Format = format.Text
		case *meshv1alpha1.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider_LogFormat_Labels:
			log.JSON = true
			if len(format.Labels.GetFields()) > 0 {
				b, _ := json.Marshal(format.Labels.AsMap()) // a JSON object always encodes
				log.Format = string(b)
			}
		default:
			if name == builtIn && !log.OmitEmpty {
				log.Format, log.JSON = own.Format, own.JSON
			}
		}
		out[name] = log
	}
	if _, ok := out[builtIn]; !ok {
		own.File = cmp.Or(own.File, stdout)
		out[builtIn] = own
	}
	return out
}

// Metrics returns the names of the providers of metrics, in lower case. Unless another
// provider is named prometheus, this name is one of them.
func Metrics(providers []*meshv1alpha1.MeshConfig_ExtensionProvider) map[string]bool {
	out := map[string]bool{"prometheus": true}
	for _, p := range slices.Backward(providers) { // the first of a name counts
		out[strings.ToLower(p.GetName())] = p.GetPrometheus() != nil
	}
	return out
}
