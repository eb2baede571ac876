package inject

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/mesh"
)

// grpcBootstrap is the file that the xDS client of gRPC reads, and grpcBootstrapVariable the
// variable that names it.
const (
	grpcBootstrap         = mountConfig + "/grpc-bootstrap.json"
	grpcBootstrapVariable = "GRPC_XDS_BOOTSTRAP"
)

// proxyless reports whether the pod gets the agent without Envoy.
func (p *injection) proxyless() bool { return slices.Contains(p.templates, mesh.TemplateGRPCAgent) }

// grpcAgent is the template of the pods of applications whose gRPC library is the xDS client: the
// agent without Envoy. The pod gets no label security.istio.io/tlsMode: only its user knows
// whether its servers use the credentials of xDS.
func (p *injection) grpcAgent() (map[string]any, error) {
	agent, err := p.proxyBase(mesh.Sidecar)
	if err != nil {
		return nil, err
	}
	agent.Args, agent.Ports = []string{"agent", "--type", string(mesh.Sidecar)}, nil
	agent.Env = overridden(append(
		slices.DeleteFunc(agent.Env, func(e corev1.EnvVar) bool { return e.Name == "ISTIO_META_INTERCEPTION_MODE" }),
		value("ISTIO_META_GENERATOR", "grpc"), value("OUTPUT_CERTS", mountData), value(grpcBootstrapVariable, grpcBootstrap),
		value("ISTIO_META_DNS_CAPTURE", "false"), value("DISABLE_ENVOY", "true"),
	))
	p.runBeside(&agent, p.agentPortNumber())
	mounts, err := userMounts(p.annotation(annotationVolumeMount))
	if err != nil {
		return nil, err
	}
	agent.VolumeMounts = append(proxyMounts(volumeGRPC), mounts...)
	patch := p.basePatch(volumeGRPC)
	// The control plane knows by this annotation that the pod has no proxy.
	patch.Metadata.Annotations = map[string]string{
		mesh.AnnotationTemplates: cmp.Or(p.annotation(mesh.AnnotationTemplates), mesh.TemplateGRPCAgent),
	}
	if err := p.addSidecar(patch, agent); err != nil {
		return nil, err
	}
	out, err := decoded[map[string]any](patch)
	if err != nil {
		return nil, err
	}
	for list, containers := range map[string][]corev1.Container{initContainers: p.pod.Spec.InitContainers, appContainers: p.pod.Spec.Containers} {
		if clients := grpcClients(containers); len(clients) > 0 {
			merge(out, map[string]any{"spec": map[string]any{list: clients}})
		}
	}
	return out, nil
}

// grpcClients returns the patches that give containers of the application the files of the agent.
func grpcClients(containers []corev1.Container) []any {
	var patches []any
	for i := range containers {
		c := &containers[i]
		if c.Name == proxyContainer || c.Name == initContainer {
			continue
		}
		patch := map[string]any{"name": c.Name, "volumeMounts": []any{
			map[string]any{"name": volumeData, "mountPath": mountData, "readOnly": true},
			map[string]any{"name": volumeGRPC, "mountPath": mountConfig, "readOnly": true},
		}}
		for _, e := range []corev1.EnvVar{value("GRPC_XDS_EXPERIMENTAL_SECURITY_SUPPORT", "true"), value(grpcBootstrapVariable, grpcBootstrap)} {
			if !slices.ContainsFunc(c.Env, func(own corev1.EnvVar) bool { return own.Name == e.Name }) {
				addEnv(patch, e.Name, e.Value)
			}
		}
		patches = append(patches, patch)
	}
	return patches
}
