package inject

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/meshctl/meshctl/internal/mesh"
)

func (i *Injector) revision() string { return cmp.Or(i.Values.Revision, mesh.DefaultRevision) }

// controlPlane returns the address of the control plane of the revision.
func (i *Injector) controlPlane() string {
	name := "istiod"
	if r := i.revision(); r != mesh.DefaultRevision {
		name += "-" + r
	}
	return fmt.Sprintf("%s.%s.svc:%d", name, i.SystemNamespace, mesh.PortSecureXDS)
}

// cluster returns the cluster of the pod, and network its network or "".
func (p *injection) cluster() string {
	return cmp.Or(string(p.in.Cluster), p.Values.Global.MultiCluster.ClusterName, string(p.Cluster), "Kubernetes")
}

func (p *injection) network() string {
	return cmp.Or(p.pod.Labels[mesh.LabelNetwork], string(p.in.Network), p.Values.Global.Network, string(p.Network))
}

// trustDomain returns the trust domain of the mesh.
func (i *Injector) trustDomain() string {
	return cmp.Or(i.TrustDomain, i.Mesh.GetTrustDomain(), mesh.DefaultTrustDomain)
}

// proxyEnv returns the environment of the agent, in the order of Istio.
func (p *injection) proxyEnv() ([]corev1.EnvVar, error) {
	proxyConfig, err := proxyConfigText(p.proxy)
	if err != nil {
		return nil, err
	}
	ports, err := json.Marshal(p.appPorts())
	if err != nil {
		return nil, err
	}
	env := []corev1.EnvVar{
		value("PILOT_CERT_PROVIDER", cmp.Or(p.Values.Global.PilotCertProvider, "istiod")),
		value("CA_ADDR", cmp.Or(p.Values.Global.CAAddress, p.proxy.GetDiscoveryAddress(), p.controlPlane())),
		field("POD_NAME", "metadata.name"),
		field("POD_NAMESPACE", "metadata.namespace"),
		field("INSTANCE_IP", "status.podIP"),
		field("SERVICE_ACCOUNT", "spec.serviceAccountName"),
		field("HOST_IP", "status.hostIP"),
		limit("ISTIO_CPU_LIMIT", "limits.cpu"),
		value("PROXY_CONFIG", proxyConfig),
		value("ISTIO_META_POD_PORTS", string(ports)),
		value("ISTIO_META_APP_CONTAINERS", strings.Join(p.appContainers(), ",")),
		limit("GOMEMLIMIT", "limits.memory"),
		value("ISTIO_META_CLUSTER_ID", p.cluster()),
		field("ISTIO_META_NODE_NAME", "spec.nodeName"),
		value("ISTIO_META_INTERCEPTION_MODE", p.proxy.GetInterceptionMode().String()),
	}
	if network := p.network(); network != "" {
		env = append(env, value("ISTIO_META_NETWORK", network))
	}
	if w := p.workload; w.Name != "" {
		env = append(env, value("ISTIO_META_WORKLOAD_NAME", cmp.Or(p.pod.Labels[mesh.LabelWorkloadName], w.Name)), value("ISTIO_META_OWNER", ownerURI(w, p.namespace)))
	}
	env = append(env, value("ISTIO_META_MESH_ID", cmp.Or(p.Values.Global.MeshID, p.MeshID, p.proxy.GetMeshId(), p.trustDomain())), value("TRUST_DOMAIN", p.trustDomain()))
	for _, name := range slices.Sorted(maps.Keys(p.in.Metadata)) {
		env = append(env, value(name, p.in.Metadata[name]))
	}
	return overridden(append(env, p.metadataEnv()...)), nil
}

// metadataEnv returns the environment in proxyMetadata.
func (p *injection) metadataEnv() []corev1.EnvVar {
	var env []corev1.EnvVar
	given := p.proxy.GetProxyMetadata()
	for _, name := range slices.Sorted(maps.Keys(given)) {
		env = append(env, value(name, given[name]))
	}
	return env
}

// overridden drops a variable that a later one of the same name overrides.
func overridden(env []corev1.EnvVar) []corev1.EnvVar {
	last := map[string]int{}
	for i := range env {
		last[env[i].Name] = i
	}
	var out []corev1.EnvVar
	for i := range env {
		if last[env[i].Name] == i {
			out = append(out, env[i])
		}
	}
	return out
}

func value(name, text string) corev1.EnvVar { return corev1.EnvVar{Name: name, Value: text} }

func field(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

func limit(name, of string) corev1.EnvVar {
	from := &corev1.ResourceFieldSelector{Resource: of}
	if of == "limits.cpu" {
		from.Divisor = resource.MustParse("1")
	}
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: from}}
}

// apps returns the containers of the application, native sidecars included.
func (p *injection) apps() []*corev1.Container {
	var out []*corev1.Container
	for i := range p.pod.Spec.InitContainers {
		if c := &p.pod.Spec.InitContainers[i]; isNative(c) && c.Name != proxyContainer {
			out = append(out, c)
		}
	}
	for i := range p.pod.Spec.Containers {
		if c := &p.pod.Spec.Containers[i]; c.Name != proxyContainer {
			out = append(out, c)
		}
	}
	return out
}

// isNative reports whether an init container runs as long as the pod.
func isNative(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

func (p *injection) appContainers() []string {
	var names []string
	for i := range p.pod.Spec.Containers {
		if name := p.pod.Spec.Containers[i].Name; name != proxyContainer {
			names = append(names, name)
		}
	}
	return names
}

func (p *injection) appPorts() []corev1.ContainerPort {
	ports := []corev1.ContainerPort{}
	for _, c := range p.apps() {
		ports = append(ports, c.Ports...)
	}
	return ports
}
