package inject

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/istiojson"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxysettings"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/source/meshconfig"
)

// ParseProxyConfig returns the ProxyConfig in JSON of the Kubernetes API.
func ParseProxyConfig(text []byte) (*snapshot.ProxyConfig, error) {
	made, err := (&source.Converter{}).DecodeJSON(text)
	if err != nil {
		return nil, err
	}
	c, ok := made.Object.(*snapshot.ProxyConfig)
	if !ok {
		return nil, errors.New("is not a ProxyConfig")
	}
	return c, nil
}

// proxyConfig returns defaultConfig of MeshConfig overlaid with the ProxyConfigs of the mesh
// and of the namespace, the annotations of the pod, and the ProxyConfig that selects the pod.
func (p *injection) proxyConfig() (*meshv1alpha1.ProxyConfig, error) {
	pc := &meshv1alpha1.ProxyConfig{}
	proto.Merge(pc, p.Mesh.GetDefaultConfig())
	if p.revision() != mesh.DefaultRevision && pc.GetDiscoveryAddress() == defaultProxyConfig().GetDiscoveryAddress() {
		pc.DiscoveryAddress = p.controlPlane()
	}
	root := cmp.Or(p.Mesh.GetRootNamespace(), p.SystemNamespace)
	overlayKind(pc, p.findProxyConfig(root, false))
	if p.namespace != root {
		overlayKind(pc, p.findProxyConfig(p.namespace, false))
	}
	if text := p.annotation(annotationConfig); text != "" {
		if _, err := istiojson.OverlayProxyConfig(protojson.UnmarshalOptions{}, pc, text); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", annotationConfig, err)
		}
	}
	if c := p.findProxyConfig(p.namespace, true); c != nil {
		overlayKind(pc, c)
		p.concurrency = c.Spec.GetConcurrency().GetValue()
	}
	pc.DiscoveryAddress = cmp.Or(p.annotation(annotationDiscovery), pc.GetDiscoveryAddress())
	if text := p.annotation(annotationStatusPort); text != "" {
		port, _ := strconv.ParseUint(text, 10, 16) // checked before
		pc.StatusPort = int32(port)
	}
	switch port := pc.GetStatusPort(); {
	case port == 0:
		p.warnf("the proxy has no status port: the kubelet does not ask whether it is ready, the probes of the application stay as they are, and metrics are not merged")
	case port < 0 || port > 65535 || port == mesh.PortEnvoyReadiness || port == mesh.PortEnvoyPrometheus:
		return nil, fmt.Errorf("statusPort of ProxyConfig is %d: want a port that Envoy does not use, such as %d, or 0 for none", port, mesh.PortAgentStatus)
	}
	targets, _ := mesh.ScrapeTargets(p.annotation(annotationScrapeTargets)) // checked before
	if slices.ContainsFunc(targets, func(t mesh.ScrapeTarget) bool { return t.Port == strconv.Itoa(int(pc.GetStatusPort())) }) {
		return nil, fmt.Errorf("annotation %s: port %d is the status port of the proxy", annotationScrapeTargets, pc.GetStatusPort())
	}
	var errs []error
	for _, fault := range proxysettings.Faults(pc) {
		errs = append(errs, fmt.Errorf("%s of ProxyConfig: %w", fault.Field, fault.Err))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if text := p.annotation(annotationInterception); text != "" {
		pc.InterceptionMode = meshv1alpha1.ProxyConfig_InboundInterceptionMode(meshv1alpha1.ProxyConfig_InboundInterceptionMode_value[text])
	}
	for name, list := range map[string]func(*meshv1alpha1.ProxyConfig_ProxyStatsMatcher) *[]string{
		annotationStatsPrefixes: func(m *meshv1alpha1.ProxyConfig_ProxyStatsMatcher) *[]string { return &m.InclusionPrefixes },
		annotationStatsSuffixes: func(m *meshv1alpha1.ProxyConfig_ProxyStatsMatcher) *[]string { return &m.InclusionSuffixes },
		annotationStatsRegexps:  func(m *meshv1alpha1.ProxyConfig_ProxyStatsMatcher) *[]string { return &m.InclusionRegexps },
	} {
		if items := splitList(p.annotation(name)); len(items) > 0 {
			if pc.ProxyStatsMatcher == nil {
				pc.ProxyStatsMatcher = &meshv1alpha1.ProxyConfig_ProxyStatsMatcher{}
			}
			*list(pc.ProxyStatsMatcher) = items
		}
	}
	return pc, nil
}

// merged returns the items of both maps; over has precedence.
func merged(under, over map[string]string) map[string]string {
	out := make(map[string]string, len(under)+len(over))
	maps.Copy(out, under)
	maps.Copy(out, over)
	return out
}

// findProxyConfig returns the oldest ProxyConfig of a namespace that selects the pod by labels
// or, if selecting is false, that has no selector. It returns nil if there is none.
func (p *injection) findProxyConfig(namespace string, selecting bool) *snapshot.ProxyConfig {
	for _, c := range p.ProxyConfigs {
		selector := c.Spec.GetSelector().GetMatchLabels()
		if c.Namespace == namespace && (len(selector) > 0) == selecting && snapshot.Selects(selector, p.pod.Labels) {
			return c
		}
	}
	return nil
}

// overlayKind replaces the fields of pc that a ProxyConfig sets, which may be nil.
func overlayKind(pc *meshv1alpha1.ProxyConfig, c *snapshot.ProxyConfig) {
	if c == nil {
		return
	}
	if n := c.Spec.GetConcurrency(); n != nil {
		pc.Concurrency = n
	}
	if variables := c.Spec.GetEnvironmentVariables(); len(variables) > 0 {
		pc.ProxyMetadata = merged(pc.ProxyMetadata, variables)
	}
}

func defaultProxyConfig() *meshv1alpha1.ProxyConfig {
	return meshconfig.Default().GetDefaultConfig()
}

// proxyConfigText returns the fields of pc that differ from the defaults, as JSON.
func proxyConfigText(pc *meshv1alpha1.ProxyConfig) (string, error) {
	var given, all map[string]json.RawMessage
	for into, emit := range map[*map[string]json.RawMessage]bool{&given: false, &all: true} {
		text, err := protojson.MarshalOptions{EmitUnpopulated: emit}.Marshal(pc)
		if err == nil {
			err = json.Unmarshal(text, into)
		}
		if err != nil {
			return "", fmt.Errorf("encode ProxyConfig: %w", err)
		}
	}
	m, def := pc.ProtoReflect(), defaultProxyConfig().ProtoReflect()
	list := m.Descriptor().Fields()
	for i := range list.Len() {
		fd := list.Get(i)
		switch name := fd.JSONName(); {
		case m.Has(fd) == def.Has(fd) && m.Get(fd).Equal(def.Get(fd)):
			delete(given, name)
		case !m.Has(fd) && all[name] != nil: // zero differs from the default
			given[name] = all[name]
		}
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(given); err != nil {
		return "", err
	}
	return string(bytes.TrimSpace(out.Bytes())), nil
}
