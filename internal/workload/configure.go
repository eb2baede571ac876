// Package workload writes and reads the directory with which a virtual machine, or any process
// outside Kubernetes, joins a mesh: what its WorkloadGroup states, in the form of Istio's files.
package workload

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/istiojson"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/proxysettings"
)

// Names of the files in the directory of a workload.
const (
	EnvironmentFile = "cluster.env"
	MeshFile        = "mesh.yaml"
	HostsFile       = "hosts"
	RootFile        = "root-cert.pem"
	TokenFile       = "istio-token"
)

// Input of Configure.
type Input struct {
	// Group is a WorkloadGroup, YAML or JSON.
	Group   []byte
	Cluster mesh.ClusterID
	// Discovery is host:port of the control plane. Address, if valid, is where its host is.
	Discovery string
	Address   netip.Addr
	// TrustDomain is the trust domain of the mesh; empty for the one of MeshConfig.
	TrustDomain string
	// MeshID is the name of the mesh; empty for the one of the group or of MeshConfig.
	MeshID string
	// MeshConfig is the text of the ConfigMap istio, empty for none.
	MeshConfig string
	// Entry is the name of the workload's WorkloadEntry, empty for none.
	Entry string
	// AutoRegister makes the control plane write the WorkloadEntry of the workload.
	AutoRegister bool
	// Roots are the roots of the mesh, PEM, and Token proves the identity.
	Roots, Token []byte
}

// Group is the part of a WorkloadGroup that its workloads share.
type Group struct {
	Name, Namespace string
	Spec            *networkingv1alpha3.WorkloadGroup
}

// ServiceAccount returns the service account of the workloads.
func (g *Group) ServiceAccount() string {
	return cmp.Or(g.Spec.GetTemplate().GetServiceAccount(), "default")
}

// ParseGroup reads a WorkloadGroup. The namespace def is for a group without one.
func ParseGroup(text []byte, def string) (*Group, error) {
	var object struct {
		APIVersion, Kind string
		Metadata         struct{ Name, Namespace string }
		Spec             json.RawMessage
	}
	if err := yaml.Unmarshal(text, &object); err != nil {
		return nil, fmt.Errorf("WorkloadGroup: %w", err)
	}
	group, _, _ := strings.Cut(object.APIVersion, "/")
	if object.Kind != "WorkloadGroup" || group != "networking.istio.io" {
		return nil, fmt.Errorf("want one WorkloadGroup of networking.istio.io, got kind %q of %q", object.Kind, object.APIVersion)
	}
	g := &Group{Name: object.Metadata.Name, Namespace: cmp.Or(object.Metadata.Namespace, def), Spec: &networkingv1alpha3.WorkloadGroup{}}
	if !mesh.IsDNSName(g.Name) {
		return nil, fmt.Errorf("WorkloadGroup: metadata.name %q is not a DNS name", g.Name)
	}
	if !mesh.IsDNSLabel(g.Namespace) {
		return nil, fmt.Errorf("WorkloadGroup %s: metadata.namespace %q is not a DNS label", g.Name, g.Namespace)
	}
	if len(object.Spec) > 0 {
		if err := istiojson.Unmarshal(protojson.UnmarshalOptions{}, object.Spec, g.Spec); err != nil {
			return nil, fmt.Errorf("WorkloadGroup %s/%s: spec: %w", g.Namespace, g.Name, err)
		}
	}
	if account := g.ServiceAccount(); !mesh.IsDNSName(account) {
		return nil, fmt.Errorf("WorkloadGroup %s/%s: spec.template.serviceAccount %q is not a DNS name", g.Namespace, g.Name, account)
	}
	return g, nil
}

// Configure returns the files of the directory, all for their owner alone.
func Configure(g *Group, in Input) ([]files.File, error) {
	host, port, ok := strings.Cut(in.Discovery, ":")
	if !ok || !mesh.IsDNSName(host) || port == "" {
		return nil, fmt.Errorf("discovery address %q: want name:port, the name in the certificate of the control plane", in.Discovery)
	}
	proxy, err := g.proxyConfig(&in)
	if err != nil {
		return nil, err
	}
	environment, err := g.environment(in)
	if err != nil {
		return nil, err
	}
	settings, err := settingsOf(proxy)
	if err != nil {
		return nil, err
	}
	hosts := ""
	if in.Address.IsValid() {
		hosts = in.Address.String() + " " + host + "\n"
	}
	var out []files.File
	for _, f := range []struct {
		name string
		data []byte
	}{
		{EnvironmentFile, environment}, {MeshFile, settings}, {HostsFile, []byte(hosts)}, {RootFile, in.Roots}, {TokenFile, in.Token},
	} {
		out = append(out, files.File{Name: f.name, Data: f.data, Mode: files.Secret})
	}
	return out, nil
}

// environment returns the variables of Istio's agent, one a line and quoted for shells.
func (g *Group) environment(in Input) ([]byte, error) {
	template := g.Spec.GetTemplate()
	labels := map[string]string{}
	maps.Copy(labels, template.GetLabels())
	maps.Copy(labels, g.Spec.GetMetadata().GetLabels())
	name := mesh.CanonicalName(labels, g.Name)
	labels[mesh.LabelCanonicalName] = name
	labels[mesh.LabelCanonicalRevision] = mesh.CanonicalRevision(labels)
	labelJSON, err := json.Marshal(labels)
	if err != nil {
		return nil, err
	}
	values := map[string]string{
		"CA_ADDR":                   in.Discovery,
		"ISTIO_INBOUND_PORTS":       "*",
		"ISTIO_LOCAL_EXCLUDE_PORTS": "22,15090,15021,15020",
		"ISTIO_SERVICE_CIDR":        "*",
		"ISTIO_META_CLUSTER_ID":     string(in.Cluster),
		"ISTIO_META_DNS_CAPTURE":    "true",
		"ISTIO_META_MESH_ID":        in.MeshID,
		"ISTIO_META_NETWORK":        template.GetNetwork(),
		"ISTIO_META_WORKLOAD_NAME":  g.Name,
		"ISTIO_META_WORKLOAD_ENTRY": in.Entry,
		"ISTIO_METAJSON_LABELS":     string(labelJSON),
		"ISTIO_NAMESPACE":           g.Namespace,
		"ISTIO_SERVICE":             name + "." + g.Namespace,
		"POD_NAMESPACE":             g.Namespace,
		"SERVICE_ACCOUNT":           g.ServiceAccount(),
		"TRUST_DOMAIN":              in.TrustDomain,
	}
	if in.AutoRegister {
		values["ISTIO_META_AUTO_REGISTER_GROUP"] = g.Name
	}
	var out strings.Builder
	for _, variable := range slices.Sorted(maps.Keys(values)) {
		value := values[variable]
		if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c == '\'' || c == 0x7f }) {
			return nil, fmt.Errorf("WorkloadGroup %s/%s: %s would contain a quote or a control character", g.Namespace, g.Name, variable)
		}
		if value != "" {
			fmt.Fprintf(&out, "%s='%s'\n", variable, value)
		}
	}
	return []byte(out.String()), nil
}

// proxyConfig returns the settings of the proxy: those of MeshConfig, of the annotation
// proxy.istio.io/config of the group, and of the input, each above the one before. It completes the
// input with the names of the mesh and its trust domain.
func (g *Group) proxyConfig(in *Input) (*meshv1alpha1.ProxyConfig, error) {
	var config struct {
		DefaultConfig json.RawMessage `json:"defaultConfig"`
		TrustDomain   string          `json:"trustDomain"`
	}
	if err := yaml.Unmarshal([]byte(in.MeshConfig), &config); err != nil {
		return nil, fmt.Errorf("MeshConfig: %w", err)
	}
	// above holds the settings above Istio's defaults, as the agent sees them.
	out, above := &meshv1alpha1.ProxyConfig{}, &meshv1alpha1.ProxyConfig{
		ProxyAdminPort: mesh.PortEnvoyAdmin, StatusPort: mesh.PortAgentStatus, ControlPlaneAuthPolicy: meshv1alpha1.AuthenticationPolicy_MUTUAL_TLS,
	}
	for _, pc := range []*meshv1alpha1.ProxyConfig{out, above} {
		if _, err := istiojson.OverlayProxyConfig(protojson.UnmarshalOptions{DiscardUnknown: true}, pc, string(config.DefaultConfig)); err != nil {
			return nil, fmt.Errorf("MeshConfig: defaultConfig: %w", err)
		}
		if _, err := istiojson.OverlayProxyConfig(protojson.UnmarshalOptions{}, pc, g.Spec.GetMetadata().GetAnnotations()[annotationConfig]); err != nil {
			return nil, fmt.Errorf("WorkloadGroup %s/%s: spec.metadata.annotations[%s]: %w", g.Namespace, g.Name, annotationConfig, err)
		}
		in.MeshID = cmp.Or(in.MeshID, pc.GetMeshId())
		pc.DiscoveryAddress, pc.MeshId = in.Discovery, in.MeshID
		if probe := g.Spec.GetProbe(); probe != nil {
			pc.ReadinessProbe = probe
		}
	}
	in.TrustDomain = cmp.Or(in.TrustDomain, config.TrustDomain, mesh.DefaultTrustDomain)
	var errs []error
	for _, fault := range proxysettings.Faults(above) {
		errs = append(errs, fmt.Errorf("WorkloadGroup %s/%s and MeshConfig: %s of ProxyConfig: %w", g.Namespace, g.Name, fault.Field, fault.Err))
	}
	return out, errors.Join(errs...)
}

// annotationConfig holds settings of the proxies of a group.
const annotationConfig = "proxy.istio.io/config"

// settingsOf returns the mesh configuration of the workload, YAML.
func settingsOf(proxy *meshv1alpha1.ProxyConfig) ([]byte, error) {
	data, err := protojson.Marshal(proxy)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML([]byte(`{"defaultConfig":` + string(data) + `}`))
}

// ParseEnvironment reads the variables of an environment file: lines NAME=value, where the
// value may be quoted. It returns NAME=value for each.
func ParseEnvironment(text []byte) ([]string, error) {
	var out []string
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimPrefix(strings.TrimSpace(line), "export ")
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok || name == "" || strings.Trim(name, variableLetters) != "" {
			return nil, fmt.Errorf("%s:%d: want NAME='value'", EnvironmentFile, n)
		}
		if quote := value; quote != "" && (quote[0] == '\'' || quote[0] == '"') {
			if len(quote) < 2 || quote[len(quote)-1] != quote[0] {
				return nil, fmt.Errorf("%s:%d: the quote of %s is not closed", EnvironmentFile, n, name)
			}
			value = quote[1 : len(quote)-1]
		}
		if strings.ContainsRune(value, 0) {
			return nil, fmt.Errorf("%s:%d: %s contains a zero byte", EnvironmentFile, n, name)
		}
		out = append(out, name+"="+value)
	}
	return out, nil
}

const variableLetters = "_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

// ProxyConfig returns the proxy configuration in a mesh file as JSON.
func ProxyConfig(meshFile []byte) (string, error) {
	var settings struct {
		DefaultConfig map[string]any `json:"defaultConfig"`
	}
	if err := yaml.Unmarshal(meshFile, &settings); err != nil {
		return "", fmt.Errorf("%s: %w", MeshFile, err)
	}
	if settings.DefaultConfig == nil {
		return "", nil
	}
	data, err := json.Marshal(settings.DefaultConfig)
	return string(data), err
}

// Address returns the address of a host in a hosts file, invalid if it has none.
func Address(hosts []byte, host string) (netip.Addr, error) {
	for line := range strings.Lines(string(hosts)) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) > 1 && slices.Contains(fields[1:], host) {
			addr, err := netip.ParseAddr(fields[0])
			return addr, errors.Join(err)
		}
	}
	return netip.Addr{}, nil
}
