package registry

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// ownZipkin is the name of the collector in defaultConfig.tracing. No provider can have it.
const ownZipkin = ""

// defaultSampling is the percentage of requests that are traced by default.
const defaultSampling = 1

// meshTracing returns the tracing of workloads without a Telemetry.
func meshTracing(mc *meshv1alpha1.MeshConfig) snapshot.Tracing {
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

// tracers returns the collectors of spans by name in lower case.
func tracers(mc *meshv1alpha1.MeshConfig) map[string]snapshot.Collector {
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
		zipkin := &meshv1alpha1.MeshConfig_ExtensionProvider_ZipkinTracingProvider{Service: fullHost(host), Port: uint32(port)}
		out[ownZipkin] = collector(&meshv1alpha1.MeshConfig_ExtensionProvider{
			Provider: &meshv1alpha1.MeshConfig_ExtensionProvider_Zipkin{Zipkin: zipkin},
		}, zipkin)
	}
	return out
}

// authorizers returns the providers of external authorization by name. The first of a name
// counts.
func authorizers(mc *meshv1alpha1.MeshConfig) map[string]snapshot.Collector {
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

// fullHost completes a short name of a Kubernetes Service, such as zipkin.istio-system.
func fullHost(host string) string {
	switch parts := strings.Split(host, "."); {
	case len(parts) == 2:
		return host + ".svc." + mesh.DefaultDomain
	case len(parts) == 3 && parts[2] == "svc":
		return host + "." + mesh.DefaultDomain
	}
	return host
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

// foundCollectors describes the collectors and the providers of external authorization whose
// services have the port, and the namespaces that see them.
func (t *tables) foundCollectors(r *derive.Reads) string {
	m := t.mesh.Get(r)
	at := make(map[snapshot.Collector]bool)
	for _, c := range m.Tracers {
		at[snapshot.Collector{Service: c.Service, Port: c.Port}] = true
	}
	for _, c := range m.Authorizers {
		at[snapshot.Collector{Service: c.Service, Port: c.Port}] = true
	}
	for _, log := range m.LogProviders {
		at[snapshot.Collector{Service: log.Collector.Service, Port: log.Collector.Port}] = true
	}
	var lines []string
	for c := range at {
		if svc, ok := t.meshServices.Get(r, c.Host()); ok && svc.Port(c.Port) != nil {
			lines = append(lines, fmt.Sprintf("%s:%d %s %v %v", svc.Key, c.Port, svc.Namespace, svc.ExportTo, svc.Rivals))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
