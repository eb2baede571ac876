package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Prefixes of the environment variables that become node metadata, as text and as the fields
// of a JSON object.
const (
	metaPrefix     = "ISTIO_META_"
	metaJSONPrefix = "ISTIO_METAJSON_"
	labelsVariable = metaJSONPrefix + "LABELS"
)

// nodeMetadata completes cfg.Metadata. Variables cannot contradict values that the agent sets
// itself.
func (r *resolver) nodeMetadata(cfg *Config, pc *meshv1alpha1.ProxyConfig, podLabels []byte, annotations map[string]string) {
	labels, static := r.labels(podLabels)
	known := cfg.Metadata
	known["NAME"] = cfg.Node.Name
	known["NAMESPACE"] = cfg.Node.Namespace
	known["SERVICE_ACCOUNT"] = cfg.Identity.ServiceAccount
	known["PILOT_SAN"] = []any{cfg.Discovery.Name}
	known["ENVOY_STATUS_PORT"] = int(cfg.ReadyPort)
	known["ENVOY_PROMETHEUS_PORT"] = int(cfg.StatsPort)
	known["LABELS"] = labels
	if len(static) > 0 {
		known["STATIC_LABELS"] = static
	}
	if !cfg.Direct && !cfg.NoEnvoy {
		known[mesh.MetadataRelay], known[mesh.MetadataVirtualHosts] = "true", "true"
	}
	if !cfg.NoEnvoy {
		known[mesh.MetadataMetrics] = "true"
	}
	if shown := shownAnnotations(annotations); len(shown) > 0 {
		known["ANNOTATIONS"] = shown
	}
	known["PROXY_CONFIG"] = r.proxyConfigObject(pc)

	given, from := r.givenMetadata()
	overlay := func(key, flag, value string) {
		if value != "" {
			given[key], from[key] = value, "--"+flag
		}
	}
	overlay("CLUSTER_ID", "cluster-id", r.flags.ClusterID)
	overlay("NETWORK", "network", r.flags.Network)
	overlay("OUTLIER_LOG_PATH", "outlier-log-path", r.flags.OutlierLog)
	setDefault := func(key, value string, known bool) {
		if _, ok := given[key]; !ok && known {
			given[key] = value
		}
	}
	setDefault("ISTIO_VERSION", mesh.AgentVersion(r.version), r.version != "")
	// Istio's agent always reports these settings.
	setDefault(skipDeprecatedLogs, strconv.FormatBool(!cfg.DeprecatedLogs), true)
	setDefault("METADATA_DISCOVERY", "false", true)
	setDefault("WORKLOAD_IDENTITY_SOCKET_FILE", workloadSocketName, true)
	setDefault("MESH_ID", pc.GetMeshId(), pc.GetMeshId() != "")
	setDefault("INTERCEPTION_MODE", pc.GetInterceptionMode().String(), pc.GetInterceptionMode() != meshv1alpha1.ProxyConfig_REDIRECT)
	if mode, ok := given["INTERCEPTION_MODE"]; ok && !slices.Contains([]any{"REDIRECT", "TPROXY", "NONE"}, mode) {
		if s := (setting{fmt.Sprint(mode), from["INTERCEPTION_MODE"]}); !s.isReported() {
			r.errorf("%s=%q: want REDIRECT, TPROXY or NONE", s.from, s.value)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(given)) {
		if own, ok := known[key]; ok && !reflect.DeepEqual(own, given[key]) {
			r.errorf("%s gives the node's metadata %s a value that the agent sets itself (%v): remove the variable", from[key], key, own)
		}
	}
	maps.Copy(given, known)
	cfg.Metadata = given
	cfg.OutlierLog, _ = given["OUTLIER_LOG_PATH"].(string)
	cfg.NodeCluster = nodeCluster(cfg, pc.GetServiceCluster(), labels)
}

// shownAnnotations returns the annotations for the node. The configuration that kubectl applied
// last may be as large as the object.
func shownAnnotations(annotations map[string]string) map[string]any {
	out := map[string]any{}
	for key, value := range annotations {
		if key != "kubectl.kubernetes.io/last-applied-configuration" {
			out[key] = value
		}
	}
	return out
}

// givenMetadata returns the metadata of ISTIO_META_X and of the fields of ISTIO_METAJSON_X,
// and the variable of each key. JSON overrides text.
func (r *resolver) givenMetadata() (given map[string]any, from map[string]string) {
	given, from = map[string]any{}, map[string]string{}
	all := map[string]string{}
	maps.Copy(all, r.metadata)
	maps.Copy(all, r.env)
	names := slices.Sorted(maps.Keys(all))
	for _, name := range names {
		if key, ok := strings.CutPrefix(name, metaPrefix); ok && key != "" && all[name] != "" {
			given[key], from[key] = all[name], name
		}
	}
	for _, name := range names {
		if !strings.HasPrefix(name, metaJSONPrefix) || name == labelsVariable || all[name] == "" {
			continue
		}
		var fields map[string]any
		if err := json.Unmarshal([]byte(all[name]), &fields); err != nil {
			r.errorf("%s is not a JSON object: %w", name, err)
		}
		for key, value := range fields {
			given[key], from[key] = value, name
		}
	}
	return given, from
}

// labels returns the pod's labels from the file of Kubernetes and ISTIO_METAJSON_LABELS, and
// the labels from the variable alone.
func (r *resolver) labels(file []byte) (all, static map[string]any) {
	all, static = map[string]any{}, map[string]any{}
	for key, value := range r.podFile(DefaultPodLabelsFile, file) {
		all[key] = value
	}
	if text := r.lookup(labelsVariable); text != "" {
		var given map[string]string
		_ = json.Unmarshal([]byte(text), &given) // checked before
		for key, value := range given {
			all[key], static[key] = value, value
		}
	}
	// It changes with each rollout and has no meaning in the mesh.
	delete(all, "pod-template-hash")
	return all, static
}

// podFile reads a file of labels or annotations that Kubernetes mounts.
func (r *resolver) podFile(name string, content []byte) map[string]string {
	out, err := ParsePodFile(name, content)
	if err != nil {
		r.errs = append(r.errs, err)
	}
	return out
}

// ParsePodFile returns the labels or annotations in a file that Kubernetes mounts: lines
// key="value". The error names all wrong lines.
func ParsePodFile(name string, content []byte) (map[string]string, error) {
	out := map[string]string{}
	var errs []error
	n := 0
	for line := range strings.Lines(string(content)) {
		n++
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		key, quoted, _ := strings.Cut(line, "=")
		value, err := strconv.Unquote(quoted)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: want key=\"value\"", name, n))
			continue
		}
		out[key] = value
	}
	return out, errors.Join(errs...)
}

func (r *resolver) proxyConfigObject(pc *meshv1alpha1.ProxyConfig) map[string]any {
	data, err := protojson.Marshal(pc)
	if err != nil {
		r.errorf("PROXY_CONFIG: %w", err)
		return nil
	}
	var object map[string]any
	if err := json.Unmarshal(data, &object); err != nil {
		r.errorf("PROXY_CONFIG: %w", err)
	}
	return object
}

// nodeCluster returns the name by which telemetry groups the proxy.
func nodeCluster(cfg *Config, serviceCluster string, labels map[string]any) string {
	if serviceCluster != "" && serviceCluster != anonymousCluster {
		return serviceCluster
	}
	name := anonymousCluster
	if workload, ok := cfg.Metadata["WORKLOAD_NAME"].(string); ok && workload != "" {
		name = workload
	}
	if app, ok := labels["app"].(string); ok && app != "" {
		name = app
	}
	return name + "." + cfg.Node.Namespace
}
