package inject

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/meshctl/meshctl/internal/mesh"
)

// proxyUser is the user and the group of the agent and Envoy. Connections of the user are not
// redirected.
const proxyUser = 1337

// Defaults of Istio's probes.
const (
	readyPath       = "/healthz/ready"
	startupFailures = 600
	readyFailures   = 4
	readyPeriod     = 15
	probeTimeout    = 3
)

// image returns the image of the Values.
func (i *Injector) image() string {
	g := &i.Values.Global
	name := g.Proxy.Image
	if name == "" && g.Hub == "" && g.Tag == nil {
		return i.Image
	}
	if strings.ContainsAny(name, "/:") {
		return name
	}
	name = cmp.Or(name, "meshctl")
	if g.Hub != "" {
		name = g.Hub + "/" + name
	}
	if g.Tag != nil {
		name += ":" + fmt.Sprint(g.Tag)
	}
	return name
}

// native reports whether the sidecar is an init container that runs as long as the pod.
func (p *injection) native() bool {
	if text := p.annotation(annotationNative); text != "" {
		return text == "true"
	}
	native, _ := boolean(p.Values.Pilot.Env.NativeSidecars, true) // checked by New
	return native
}

// holds reports whether the application starts after the proxy.
func (p *injection) holds() bool {
	return p.proxy.GetHoldApplicationUntilProxyStarts().GetValue() || p.Values.Global.Proxy.HoldApplicationUntilProxyStarts
}

// proxyBase returns the parts that the containers of all templates share.
func (p *injection) proxyBase(nodeType mesh.NodeType) (corev1.Container, error) {
	env, err := p.proxyEnv()
	if err != nil {
		return corev1.Container{}, err
	}
	v := &p.Values.Global
	components := "misc:error"
	if v.Proxy.ComponentLogLevel != nil {
		components = *v.Proxy.ComponentLogLevel
	}
	levels := []string{
		cmp.Or(p.annotation(annotationLogLevel), v.Proxy.LogLevel, "warning"),
		cmp.Or(p.annotation(annotationComponentLevel), components),
	}
	levels = slices.DeleteFunc(levels, func(level string) bool { return level == "" })
	args := []string{"agent", "--type", string(nodeType), "--proxy-log-level=" + strings.Join(levels, ",")}
	// The agent prefers the annotation proxy.istio.io/config to PROXY_CONFIG, but not to a flag.
	if p.concurrency > 0 {
		args = append(args, fmt.Sprintf("--concurrency=%d", p.concurrency))
	}
	return corev1.Container{
		Name:            proxyContainer,
		Image:           cmp.Or(p.annotation(annotationImage), p.image()),
		ImagePullPolicy: corev1.PullPolicy(v.ImagePullPolicy),
		Args:            args,
		Ports:           []corev1.ContainerPort{{Name: "http-envoy-prom", ContainerPort: mesh.PortEnvoyPrometheus, Protocol: corev1.ProtocolTCP}},
		Env:             env,
		ReadinessProbe:  p.readinessProbe(mesh.PortEnvoyReadiness),
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false),
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			Privileged:               new(false),
			ReadOnlyRootFilesystem:   new(true),
			RunAsGroup:               new(int64(proxyUser)),
			RunAsNonRoot:             new(true),
			RunAsUser:                new(int64(proxyUser)),
			SeccompProfile:           v.Proxy.SeccompProfile,
		},
		Resources: p.resources(),
	}, nil
}

// readinessProbe returns the readiness probe of the proxy, nil if it has no status port.
func (p *injection) readinessProbe(port int32) *corev1.Probe {
	if p.proxy.GetStatusPort() == 0 {
		return nil
	}
	v := &p.Values.Global.Proxy
	return &corev1.Probe{
		ProbeHandler:        readyHandler(port),
		InitialDelaySeconds: p.readiness(annotationReadyDelay, v.ReadinessInitialDelaySeconds),
		PeriodSeconds:       cmp.Or(p.readiness(annotationReadyPeriod, v.ReadinessPeriodSeconds), readyPeriod),
		TimeoutSeconds:      probeTimeout,
		FailureThreshold:    cmp.Or(p.readiness(annotationReadyFailures, v.ReadinessFailureThreshold), readyFailures),
	}
}

func readyHandler(port int32) corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: readyPath, Port: intstr.FromInt32(port)}}
}

// readiness returns the number in an annotation, else the one of the Values.
func (p *injection) readiness(annotation string, number int32) int32 {
	if n, err := strconv.ParseInt(p.annotation(annotation), 10, 32); err == nil {
		return int32(n)
	}
	return number
}

// resources returns the resources of the proxy. If an annotation sets one of them, those of
// the Values do not count.
func (p *injection) resources() corev1.ResourceRequirements {
	var out corev1.ResourceRequirements
	for _, a := range []struct {
		name string
		list *corev1.ResourceList
		kind corev1.ResourceName
	}{
		{annotationCPU, &out.Requests, corev1.ResourceCPU},
		{annotationMemory, &out.Requests, corev1.ResourceMemory},
		{annotationCPULimit, &out.Limits, corev1.ResourceCPU},
		{annotationMemoryLimit, &out.Limits, corev1.ResourceMemory},
	} {
		if text := p.annotation(a.name); text != "" {
			if *a.list == nil {
				*a.list = corev1.ResourceList{}
			}
			(*a.list)[a.kind] = resource.MustParse(text) // checked before
		}
	}
	switch {
	case out.Requests != nil || out.Limits != nil:
		return out
	case p.Values.Global.Proxy.Resources != nil:
		return *p.Values.Global.Proxy.Resources
	}
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi")},
	}
}

// sidecarContainer returns the container of a sidecar.
func (p *injection) sidecarContainer() (corev1.Container, error) {
	c, err := p.proxyBase(mesh.Sidecar)
	if err != nil {
		return c, err
	}
	p.runBeside(&c, mesh.PortEnvoyReadiness)
	if p.proxy.GetInterceptionMode() == meshv1alpha1.ProxyConfig_TPROXY {
		// Only root keeps a capability. The redirection recognizes the proxy by its group.
		c.SecurityContext.RunAsUser, c.SecurityContext.RunAsNonRoot = new(int64(0)), new(false)
		c.SecurityContext.Capabilities.Add = []corev1.Capability{"NET_ADMIN"}
	}
	c.VolumeMounts = append(proxyMounts(volumeEnvoy), corev1.VolumeMount{Name: volumeCRL, MountPath: "/var/run/secrets/istio/crl"})
	mounts, err := userMounts(p.annotation(annotationVolumeMount))
	c.VolumeMounts = append(c.VolumeMounts, mounts...)
	return c, err
}

// runBeside makes the container start before the application and end after the application. The
// kubelet probes at readyPort whether the container is ready.
func (p *injection) runBeside(c *corev1.Container, readyPort int32) {
	c.ReadinessProbe = p.readinessProbe(readyPort)
	startup := &p.Values.Global.Proxy.StartupProbe
	if c.ReadinessProbe != nil && (startup.Enabled == nil || *startup.Enabled) {
		c.StartupProbe = &corev1.Probe{
			ProbeHandler: readyHandler(readyPort), PeriodSeconds: 1, TimeoutSeconds: probeTimeout,
			FailureThreshold: cmp.Or(startup.FailureThreshold, startupFailures),
		}
	}
	if p.native() {
		c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
	}
	c.Lifecycle = p.lifecycle(c.StartupProbe != nil, readyPort)
}

// lifecycle returns the hooks of the Values, and those of the injector that the Values do not have.
func (p *injection) lifecycle(startupProbe bool, readyPort int32) *corev1.Lifecycle {
	hooks := p.Values.Global.Proxy.Lifecycle.DeepCopy()
	if hooks == nil {
		hooks = &corev1.Lifecycle{}
	}
	if p.native() && hooks.PreStop == nil {
		hooks.PreStop = command("agent", "request", "--debug-port="+p.agentPort(), "POST", "drain")
	}
	// The kubelet starts the application when the startup probe of a native sidecar succeeds.
	if waits := p.native() && startupProbe; p.holds() && !waits {
		if hooks.PostStart != nil {
			p.warnf("holdApplicationUntilProxyStarts has no effect: the application waits for the hook postStart of global.proxy.lifecycle instead")
		} else {
			wait := []string{"agent", "wait"}
			if readyPort != mesh.PortEnvoyReadiness {
				wait = append(wait, fmt.Sprintf("--url=http://localhost:%d%s", readyPort, readyPath))
			}
			hooks.PostStart = command(wait...)
		}
	}
	if *hooks == (corev1.Lifecycle{}) {
		return nil
	}
	return hooks
}

// agentPortNumber returns the port of the agent. An agent without a status port serves its own
// processes at the default.
func (p *injection) agentPortNumber() int32 {
	return cmp.Or(p.proxy.GetStatusPort(), mesh.PortAgentStatus)
}

func (p *injection) agentPort() string { return strconv.Itoa(int(p.agentPortNumber())) }

// command returns a hook that runs a command of meshctl, which is in PATH of the image.
func command(args ...string) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: append([]string{"meshctl"}, args...)}}
}

// redirectContainer returns the init container that redirects the connections of the pod to
// Envoy.
func (p *injection) redirectContainer() corev1.Container {
	v := &p.Values.Global
	// An empty annotation means none, an empty value the default.
	included := func(annotation, value, def string) string {
		if text, ok := p.pod.Annotations[annotation]; ok {
			return text
		}
		return cmp.Or(value, def)
	}
	kept := append([]string{strconv.Itoa(mesh.PortEnvoyPrometheus), strconv.Itoa(mesh.PortEnvoyReadiness), p.agentPort()},
		splitList(included(annotationExInbound, v.Proxy.ExcludeInboundPorts, ""))...)
	args := []string{
		"agent", "redirect",
		"-p", strconv.Itoa(int(cmp.Or(p.Mesh.GetProxyListenPort(), mesh.PortOutbound))),
		"-z", strconv.Itoa(int(cmp.Or(p.Mesh.GetProxyInboundListenPort(), mesh.PortInbound))),
		"-u", strconv.Itoa(proxyUser),
		"-m", p.proxy.GetInterceptionMode().String(),
		"-i", included(annotationInRanges, v.Proxy.IncludeIPRanges, "*"),
		"-x", included(annotationExRanges, v.Proxy.ExcludeIPRanges, ""),
		"-b", included(annotationInInbound, v.Proxy.IncludeInboundPorts, "*"),
		"-d", strings.Join(kept, ","),
	}
	for _, o := range []struct{ flag, value string }{
		{"-q", included(annotationInOutbound, v.Proxy.IncludeOutboundPorts, "")},
		{"-o", included(annotationExOutbound, v.Proxy.ExcludeOutboundPorts, "")},
		{"-k", cmp.Or(p.annotation(annotationReroute), p.annotation(annotationKubevirt))},
		{"-c", p.annotation(annotationExInterfaces)},
	} {
		if o.value != "" {
			args = append(args, o.flag, o.value)
		}
	}
	if v.ProxyInit.ForceApplyIptables {
		args = append(args, "--force-apply")
	}
	return corev1.Container{
		Name:            initContainer,
		Image:           cmp.Or(p.annotation(annotationImage), p.image()),
		ImagePullPolicy: corev1.PullPolicy(v.ImagePullPolicy),
		Args:            args,
		Env:             p.metadataEnv(),
		Resources:       p.resources(),
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: new(false),
			Capabilities:             &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN", "NET_RAW"}, Drop: []corev1.Capability{"ALL"}},
			Privileged:               new(false),
			ReadOnlyRootFilesystem:   new(false),
			RunAsGroup:               new(int64(0)),
			RunAsNonRoot:             new(false),
			RunAsUser:                new(int64(0)),
		},
	}
}

// warnPorts warns about ports of the application that the proxy needs.
func (p *injection) warnPorts() {
	taken := []int32{p.agentPortNumber()}
	if !p.proxyless() {
		taken = append(taken, mesh.PortEnvoyAdmin, mesh.PortOutbound, mesh.PortInbound, mesh.PortEnvoyReadiness, mesh.PortEnvoyPrometheus)
	}
	for _, c := range p.apps() {
		for _, port := range c.Ports {
			if slices.Contains(taken, port.ContainerPort) {
				p.warnf("container %s: port %d belongs to the proxy: one of them cannot listen", c.Name, port.ContainerPort)
			}
		}
	}
}
