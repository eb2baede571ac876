package inject

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/meshctl/meshctl/internal/mesh"
)

// movedProbe is a probe or a hook of the application that the kubelet sends to the agent. The
// agent passes it on to the application.
type movedProbe struct {
	HTTPGet        *corev1.HTTPGetAction   `json:"httpGet,omitempty"`
	TCPSocket      *corev1.TCPSocketAction `json:"tcpSocket,omitempty"`
	GRPC           *corev1.GRPCAction      `json:"grpc,omitempty"`
	TimeoutSeconds int32                   `json:"timeoutSeconds,omitempty"`
}

// moved names a probe or a hook of a container, and its path at the agent.
type moved struct{ parent, field, path string }

var movedFields = []moved{
	{"", "livenessProbe", "/app-health/%s/livez"},
	{"", "readinessProbe", "/app-health/%s/readyz"},
	{"", "startupProbe", "/app-health/%s/startupz"},
	{"lifecycle", "preStop", "/app-lifecycle/%s/prestopz"},
	{"lifecycle", "postStart", "/app-lifecycle/%s/poststartz"},
}

// moveProbes directs the probes and hooks of the application that need a connection to the
// agent: mutual TLS keeps the kubelet from the application.
func (p *injection) moveProbes(ctx context.Context, object map[string]any) error {
	webhook := &p.Values.SidecarInjectorWebhook
	move := (webhook.RewriteAppHTTPProbe == nil || *webhook.RewriteAppHTTPProbe) && !p.proxyless()
	if text := p.annotation(annotationProbers); text != "" {
		move = text == "true"
	}
	proxy := findContainer(object, proxyContainer)
	if !move || proxy == nil || p.proxy.GetStatusPort() == 0 {
		return nil
	}
	probes := map[string]movedProbe{}
	for _, app := range p.apps() {
		if err := ctx.Err(); err != nil {
			return err
		}
		c := findContainer(object, app.Name)
		for _, m := range movedFields {
			if err := p.moveProbe(probes, c, app, m); err != nil {
				return fmt.Errorf("container %s: %s: %w", app.Name, m.field, err)
			}
		}
	}
	if len(probes) == 0 {
		return nil
	}
	text, err := json.Marshal(probes)
	if err != nil {
		return err
	}
	addEnv(proxy, "ISTIO_KUBE_APP_PROBERS", string(text))
	if _, own := p.proxy.GetProxyMetadata()[mesh.VariableProbesAtLoopback]; p.passesToLoopback() && !own {
		addEnv(proxy, mesh.VariableProbesAtLoopback, "true")
	}
	return nil
}

// passesToLoopback reports whether the application gets its connections at the loopback address.
func (p *injection) passesToLoopback() bool {
	return p.Mesh.GetInboundTrafficPolicy().GetMode() == meshv1alpha1.MeshConfig_InboundTrafficPolicy_LOCALHOST &&
		p.proxy.GetInterceptionMode() != meshv1alpha1.ProxyConfig_NONE && !p.proxyless()
}

func (p *injection) moveProbe(probes map[string]movedProbe, container map[string]any, app *corev1.Container, m moved) error {
	parent := container
	if m.parent != "" {
		parent, _ = container[m.parent].(map[string]any)
	}
	own, ok := parent[m.field].(map[string]any)
	if !ok {
		return nil
	}
	probe, err := decoded[movedProbe](own)
	if err != nil {
		return err
	}
	status := int(p.proxy.GetStatusPort())
	var port *intstr.IntOrString
	switch {
	case probe.HTTPGet != nil:
		port = &probe.HTTPGet.Port
		if port.IntValue() == status && strings.HasPrefix(probe.HTTPGet.Path, "/app-") {
			return nil
		}
	case probe.TCPSocket != nil:
		port = &probe.TCPSocket.Port
	case probe.GRPC == nil:
		return nil // a command, or a pause
	}
	if port != nil && port.Type == intstr.String {
		number := namedPort(app, port.StrVal)
		if number == 0 {
			p.warnf("container %s: %s is not directed to the agent: the container has no port %q", app.Name, m.field, port.StrVal)
			return nil
		}
		*port = intstr.FromInt32(number)
	}
	path := fmt.Sprintf(m.path, app.Name)
	probes[path] = probe
	for _, handler := range handlers {
		delete(own, handler)
	}
	own["httpGet"] = map[string]any{"path": path, "port": status}
	return nil
}

// namedPort returns the number of a port of a container, or 0.
func namedPort(c *corev1.Container, name string) int32 {
	for _, port := range c.Ports {
		if port.Name == name {
			return port.ContainerPort
		}
	}
	return 0
}

// addEnv adds a variable to the container.
func addEnv(container map[string]any, name, text string) {
	container["env"] = mergeList("env", container["env"], []any{map[string]any{"name": name, "value": text}})
}
