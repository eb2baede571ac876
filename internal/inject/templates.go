package inject

import (
	"cmp"
	"context"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Names of the built-in templates.
const (
	sidecarTemplate = "sidecar"
	gatewayTemplate = "gateway"
)

// podTemplate returns the patch of a pod.
type podTemplate func(context.Context, *injection) (map[string]any, error)

// builtIn holds the built-in templates by name.
var builtIn = map[string]podTemplate{
	sidecarTemplate:        withoutContext((*injection).sidecar),
	gatewayTemplate:        withoutContext((*injection).gateway),
	mesh.TemplateGRPCAgent: withoutContext((*injection).grpcAgent),
}

// withoutContext makes a podTemplate of a function that needs no context.
func withoutContext(patch func(*injection) (map[string]any, error)) podTemplate {
	return func(_ context.Context, p *injection) (map[string]any, error) { return patch(p) }
}

// podPatch is a patch of a pod.
type podPatch struct {
	Metadata struct {
		Labels      map[string]string `json:"labels,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	} `json:"metadata,omitzero"`
	Spec struct {
		InitContainers   []corev1.Container            `json:"initContainers,omitempty"`
		Containers       []corev1.Container            `json:"containers,omitempty"`
		Volumes          []corev1.Volume               `json:"volumes,omitempty"`
		ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
		SecurityContext  *corev1.PodSecurityContext    `json:"securityContext,omitempty"`
	} `json:"spec"`
}

// sidecar is the template of the pods of applications.
func (p *injection) sidecar() (map[string]any, error) {
	proxy, err := p.sidecarContainer()
	if err != nil {
		return nil, err
	}
	patch := p.basePatch(volumeEnvoy)
	patch.Metadata.Labels[mesh.LabelTLSMode] = cmp.Or(p.pod.Labels[mesh.LabelTLSMode], mesh.TLSModeIstio)
	if p.proxy.GetInterceptionMode() != meshv1alpha1.ProxyConfig_NONE {
		patch.Spec.InitContainers = append(patch.Spec.InitContainers, p.redirectContainer())
	}
	patch.Spec.Volumes = append(patch.Spec.Volumes, configMapVolume(volumeCRL, crlConfigMap, true))
	if err := p.addSidecar(patch, proxy); err != nil {
		return nil, err
	}
	return decoded[map[string]any](patch)
}

// addSidecar adds the container of a sidecar, and the volumes that the pod wants for it.
func (p *injection) addSidecar(patch *podPatch, proxy corev1.Container) error {
	if p.native() {
		patch.Spec.InitContainers = append(patch.Spec.InitContainers, proxy)
	} else {
		patch.Spec.Containers = append(patch.Spec.Containers, proxy)
	}
	volumes, err := userVolumes(p.annotation(annotationVolume))
	patch.Spec.Volumes = append(patch.Spec.Volumes, volumes...)
	return err
}

// gateway is the template of gateways. Their connections are not redirected, and they may
// listen on all ports.
func (p *injection) gateway() (map[string]any, error) {
	proxy, err := p.proxyBase(mesh.Router)
	if err != nil {
		return nil, err
	}
	proxy.VolumeMounts = proxyMounts(volumeEnvoy)
	patch := p.basePatch(volumeEnvoy)
	patch.Spec.Containers = []corev1.Container{proxy}
	patch.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}}}
	return decoded[map[string]any](patch)
}

// basePatch returns the parts that all templates share. config is the name of the volume of the
// configuration.
func (p *injection) basePatch(config string) *podPatch {
	patch := &podPatch{}
	patch.Metadata.Labels = p.canonicalLabels()
	patch.Spec.Volumes = proxyVolumes(config)
	for _, name := range p.Values.Global.ImagePullSecrets {
		patch.Spec.ImagePullSecrets = append(patch.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	return patch
}
