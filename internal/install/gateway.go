package install

import (
	"cmp"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/mesh"
)

// envNetworkView restricts the endpoints of a gateway to the networks in its value.
const envNetworkView = "ISTIO_META_REQUESTED_NETWORK_VIEW"

// istioLabel returns the value of the label istio of a gateway.
func istioLabel(gateway string) string { return strings.TrimPrefix(gateway, "istio-") }

// addGateway adds a gateway. The control plane's injector fills in its container.
func (s *set) addGateway(g *Gateway) {
	namespace := cmp.Or(g.Namespace, s.values.Namespace)
	selector := map[string]string{"app": g.Labels["app"], "istio": g.Labels["istio"]}
	labels := maps.Clone(g.Labels)
	env := g.Env
	if g.Network != "" {
		labels[mesh.LabelNetwork] = g.Network
		env = append([]corev1.EnvVar{{Name: envNetworkView, Value: g.Network}}, env...)
	}
	meta := metav1.ObjectMeta{Name: g.Name, Namespace: namespace, Labels: labels}
	s.add(&corev1.ServiceAccount{TypeMeta: kindOf(corev1.SchemeGroupVersion, "ServiceAccount"), ObjectMeta: meta})
	if s.values.readsSecrets(g) {
		s.addSecretReader(meta)
	}
	podLabels := joined(labels, map[string]string{
		"sidecar.istio.io/inject": "true", labelRevision: s.values.revision(),
		mesh.LabelCanonicalName: g.Name, mesh.LabelCanonicalRevision: "latest",
	})
	container := corev1.Container{
		Name: "istio-proxy", Image: "auto", Env: env, Resources: g.Workload.Resources, SecurityContext: restricted(),
		Ports: []corev1.ContainerPort{{Name: "http-envoy-prom", ContainerPort: mesh.PortEnvoyPrometheus, Protocol: corev1.ProtocolTCP}},
	}
	container.SecurityContext.RunAsNonRoot = new(true)
	container.SecurityContext.RunAsUser, container.SecurityContext.RunAsGroup = new(int64(meshUser)), new(int64(meshUser))
	pod := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: podLabels, Annotations: map[string]string{
			mesh.AnnotationTemplates: "gateway", "sidecar.istio.io/inject": "true",
			"prometheus.io/port": "15020", "prometheus.io/scrape": "true", "prometheus.io/path": "/stats/prometheus",
		}},
		Spec: corev1.PodSpec{
			ServiceAccountName: g.Name, AutomountServiceAccountToken: new(false), // the injector mounts another one
			SecurityContext: &corev1.PodSecurityContext{
				Sysctls:        []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{container},
		},
	}
	s.addWorkload(meta, selector, pod, &g.Workload)
	service := meta
	service.Annotations = g.ServiceAnnotations
	s.add(&corev1.Service{
		TypeMeta: kindOf(corev1.SchemeGroupVersion, "Service"), ObjectMeta: service,
		Spec: corev1.ServiceSpec{
			Type: g.ServiceType, Selector: selector, Ports: g.Ports, LoadBalancerIP: g.LoadBalancerIP, ExternalIPs: g.ExternalIPs,
		},
	})
}

// addSecretReader adds the right by which the control plane gives a gateway the
// certificates in the Secrets of its namespace.
func (s *set) addSecretReader(meta metav1.ObjectMeta) {
	s.add(&rbacv1.Role{
		TypeMeta: kindOf(rbacv1.SchemeGroupVersion, "Role"), ObjectMeta: meta,
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "list", "watch"}}},
	})
	s.add(&rbacv1.RoleBinding{
		TypeMeta: kindOf(rbacv1.SchemeGroupVersion, "RoleBinding"), ObjectMeta: meta,
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: meta.Name, Namespace: meta.Namespace}},
	})
}

const networkingV1 = "networking.istio.io/v1"

// eastWest returns the selector of the east-west gateway in Gateways.
func eastWest() map[string]any { return map[string]any{"istio": istioLabel(eastWestName)} }

// server returns a server of a Gateway.
func server(port int64, name, mode, host string) map[string]any {
	return map[string]any{
		"port":  map[string]any{"number": port, "name": name, "protocol": "TLS"},
		"tls":   map[string]any{"mode": mode},
		"hosts": []any{host},
	}
}

// addExposed adds the Gateways by which other clusters use services and the control plane.
func (s *set) addExposed() {
	if s.values.ExposeServices {
		s.custom(networkingV1, "Gateway", "cross-network-gateway", map[string]any{
			"selector": eastWest(), "servers": []any{server(mesh.PortEastWest, "tls", "AUTO_PASSTHROUGH", "*.local")},
		})
	}
	if !s.values.ExposeControlPlane {
		return
	}
	name := s.values.suffixed("istiod-gateway")
	s.custom(networkingV1, "Gateway", name, map[string]any{
		"selector": eastWest(),
		"servers": []any{
			server(mesh.PortSecureXDS, "tls-istiod", "PASSTHROUGH", "*"), server(portWebhook, "tls-istiodwebhook", "PASSTHROUGH", "*"),
		},
	})
	route := func(at, to int64) map[string]any {
		return map[string]any{
			"match": []any{map[string]any{"port": at, "sniHosts": []any{"*"}}},
			"route": []any{map[string]any{"destination": map[string]any{
				"host": s.values.DiscoveryHost() + "." + mesh.DefaultDomain, "port": map[string]any{"number": to},
			}}},
		}
	}
	s.custom(networkingV1, "VirtualService", s.values.suffixed("istiod-vs"), map[string]any{
		"hosts": []any{"*"}, "gateways": []any{name}, "tls": []any{route(mesh.PortSecureXDS, mesh.PortSecureXDS), route(portWebhook, 443)},
	})
}
