package config

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/istiojson"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Annotations of a pod that configure its agent, as with Istio.
const (
	annotationProxyConfig = "proxy.istio.io/config"
	annotationDiscovery   = "sidecar.istio.io/discoveryAddress"
	annotationStatusPort  = "status.sidecar.istio.io/port"
	annotationStatTags    = "sidecar.istio.io/extraStatTags"
)

// proxyConfig returns Istio's defaults overlaid with defaultConfig of the mesh file, with
// PROXY_CONFIG and with the pod's annotations, then with the environment and flags of the same
// meaning, field by field. The node's metadata contains the result.
func (r *resolver) proxyConfig(meshFile []byte, annotations map[string]string) *meshv1alpha1.ProxyConfig {
	pc := &meshv1alpha1.ProxyConfig{
		ConfigPath:               DefaultConfigPath,
		ClusterName:              &meshv1alpha1.ProxyConfig_ServiceCluster{ServiceCluster: anonymousCluster},
		DrainDuration:            durationpb.New(45 * time.Second),
		TerminationDrainDuration: durationpb.New(5 * time.Second),
		DiscoveryAddress:         DefaultDiscovery,
		ProxyAdminPort:           mesh.PortEnvoyAdmin,
		StatusPort:               mesh.PortAgentStatus,
		StatNameLength:           189, // Istio's agent reports it; Envoy does not read it
		ControlPlaneAuthPolicy:   meshv1alpha1.AuthenticationPolicy_MUTUAL_TLS,
	}
	r.overlayMeshFile(pc, meshFile)
	r.overlayProxyConfig(pc, "PROXY_CONFIG", r.env["PROXY_CONFIG"])
	r.overlayProxyConfig(pc, "annotation "+annotationProxyConfig, annotations[annotationProxyConfig])
	pc.DiscoveryAddress = cmp.Or(annotations[annotationDiscovery], pc.GetDiscoveryAddress())
	if text := annotations[annotationStatusPort]; text != "" {
		port, ok := parsePort(text)
		if !ok && text != "0" {
			r.errorf("annotation %s=%q is not a port, 1 to 65535, or 0 for none", annotationStatusPort, text)
		}
		pc.StatusPort = int32(port)
	}
	if pc.GetConcurrency() == nil {
		if n, err := strconv.Atoi(r.env["ISTIO_CPU_LIMIT"]); err == nil && n > 0 {
			pc.Concurrency = wrapperspb.Int32(int32(min(n, maxConcurrency)))
		}
	}
	r.overlayFlags(pc)
	return pc
}

// overlayMeshFile replaces the fields of pc that defaultConfig of a MeshConfig contains.
func (r *resolver) overlayMeshFile(pc *meshv1alpha1.ProxyConfig, file []byte) {
	var config struct {
		DefaultConfig map[string]any `json:"defaultConfig"`
	}
	if err := yaml.Unmarshal(file, &config); err != nil {
		r.errorf("mesh configuration (--mesh-config): %w", err)
		return
	}
	if len(config.DefaultConfig) == 0 {
		return
	}
	text, err := json.Marshal(config.DefaultConfig)
	if err != nil {
		r.errorf("mesh configuration (--mesh-config): %w", err)
		return
	}
	r.overlayProxyConfig(pc, "defaultConfig of the mesh configuration", string(text))
}

// overlayProxyConfig replaces the fields of pc that text, YAML or JSON, contains. An
// unknown field is only a warning: it may come from a newer control plane.
func (r *resolver) overlayProxyConfig(pc *meshv1alpha1.ProxyConfig, source, text string) {
	fields, err := istiojson.OverlayProxyConfig(protojson.UnmarshalOptions{DiscardUnknown: true}, pc, text)
	if err != nil {
		r.errorf("%s: %w", source, err)
		return
	}
	descriptor := pc.ProtoReflect().Descriptor()
	for _, name := range unknownFields(descriptor, fields, "") {
		r.warnf("%s: field %s is not known and has no effect", source, name)
	}
	r.warnFields(source, descriptor, fields, "")
}

// warnFields warns of the fields below a path that have no effect.
func (r *resolver) warnFields(source string, md protoreflect.MessageDescriptor, fields map[string]any, path string) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		fd := istiojson.FieldNamed(md, name)
		if fd == nil {
			continue
		}
		if reason := withoutEffect[path+fd.JSONName()]; reason != "" {
			r.warnf("%s: field %s has no effect here: %s", source, path+name, reason)
		} else if below, ok := fields[name].(map[string]any); ok && fd.JSONName() == "tracing" {
			r.warnFields(source, fd.Message(), below, "tracing.")
		}
	}
}

const useProviders = "use Telemetry and extensionProviders of the mesh configuration"

// withoutEffect holds the fields for agents that neither this agent nor the control plane reads, with
// the reason.
var withoutEffect = map[string]string{
	"proxyBootstrapTemplatePath": "templates are not supported; merge parts of a bootstrap with ISTIO_BOOTSTRAP_OVERRIDE",
	"tracing.zipkin":             useProviders,
	"tracing.lightstep":          useProviders,
	"tracing.datadog":            useProviders,
	"tracing.stackdriver":        useProviders,
	"tracing.openCensusAgent":    useProviders,
	"tracing.tlsSettings":        useProviders,
	"tracingServiceName":         "it is for tracers of older versions of Istio",
	"zipkinAddress":              useProviders,
	"envoyAccessLogService":      useProviders,
	"image":                      "the image of the proxy has one variant",
	"proxyHeaders":               "the control plane does not read it; change headers with an EnvoyFilter",
	"statsdUdpAddress":           "Envoy's statistics are read from /stats/prometheus",
	"envoyMetricsService":        "Envoy's statistics are read from /stats/prometheus",
	"envoyMetricsServiceAddress": "Envoy's statistics are read from /stats/prometheus",
	"statNameLength":             "Envoy does not limit the names of statistics",
	"availabilityZone":           "the control plane knows the locality",
	"discoveryRefreshDelay":      "the control plane sends changes at once",
	"controlPlaneAuthPolicy":     "connections to the control plane always use TLS",
	"sds":                        "Envoy always gets its certificate by SDS",
	"statsCompression":           "statistics are not compressed",
	"caCertificatesPem":          "roots come from the control plane and --root-ca",
	"privateKeyProvider":         "keys stay in memory",
	"connectionSettings":         "the control plane does not generate them",
}

// unknownFields returns the paths of the keys of decoded JSON that the message lacks.
func unknownFields(md protoreflect.MessageDescriptor, fields map[string]any, prefix string) []string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		fd := istiojson.FieldNamed(md, key)
		if fd == nil {
			out = append(out, prefix+key)
			continue
		}
		if fd.Message() == nil || fd.IsMap() || strings.HasPrefix(string(fd.Message().FullName()), "google.protobuf.") {
			continue
		}
		items, ok := fields[key].([]any)
		if !ok {
			items = []any{fields[key]}
		}
		for _, item := range items {
			if object, ok := item.(map[string]any); ok {
				out = append(out, unknownFields(fd.Message(), object, prefix+key+".")...)
			}
		}
	}
	return out
}
