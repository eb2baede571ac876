package source

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

var podKind = kubeKind(kind{
	name: "Pod", plural: "pods", versions: v1,
	resources: []Resource{{Without: "endpoints have no identities and no mutual TLS"}},
}, (*conversion).pod)

func (c *conversion) pod(o *corev1.Pod) *fields.Error {
	if o.Status.Phase == corev1.PodFailed || o.Status.Phase == corev1.PodSucceeded {
		return nil // its address may belong to another pod by now
	}
	var texts []string
	for _, ip := range o.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	field := "status.podIPs"
	if len(texts) == 0 && o.Status.PodIP != "" {
		texts, field = []string{o.Status.PodIP}, "status.podIP"
	}
	ips, fault := c.addresses(field, texts)
	if fault != nil || len(ips) == 0 && len(texts) > 0 {
		return fault
	}
	account := o.Spec.ServiceAccountName
	if account == "" {
		account = o.Spec.DeprecatedServiceAccount
	}
	if account == "" {
		account = "default"
	}
	if !mesh.IsDNSName(account) {
		return fields.Faultf("spec.serviceAccountName", "%q is not a DNS name", account)
	}
	c.object = &snapshot.Pod{
		Meta: c.meta, IPs: ips, Node: o.Spec.NodeName, ServiceAccount: account,
		Workload: workloadName(o), HostNetwork: o.Spec.HostNetwork, Ports: podPorts(o),
		Proxyless: mesh.IsProxyless(o.Annotations), Unready: unready(o), Injection: c.injection(o),
	}
	return nil
}

// PodFault returns the first field of a pod, or of a template of pods, whose value has the wrong type,
// or nil.
func PodFault(v yamldoc.Value) *fields.Error {
	fault := fields.DecodeKube(v, "", &corev1.Pod{})
	if fault != nil {
		fault.Line = lineOf(v, fault)
	}
	return fault
}

// unready reports whether a pod that a ServiceEntry selects must get no requests. A pod in
// a file may have no conditions.
func unready(o *corev1.Pod) bool {
	return o.DeletionTimestamp != nil || slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status != corev1.ConditionTrue
	})
}

// ReadsAnnotation reports whether Convert reads the annotation of a Pod, a Service or a Namespace.
// Sources may drop all others.
func ReadsAnnotation(key string) bool {
	switch key {
	case mesh.AnnotationTemplates, mesh.AnnotationExportTo, mesh.AnnotationDistribution, mesh.AnnotationNodeSelector, mesh.AnnotationSuppress:
		return true
	}
	return annotationsWithoutEffect[key] != "" // to report it
}

// workloadName returns the name that a person chose: the name of the Deployment, not
// of its ReplicaSet.
func workloadName(o *corev1.Pod) string {
	if name := o.Labels[mesh.LabelWorkloadName]; name != "" {
		return name
	}
	for _, owner := range o.OwnerReferences {
		if owner.Controller != nil && *owner.Controller {
			return mesh.WorkloadOf(mesh.Workload{Kind: owner.Kind, Name: owner.Name}, o.Labels).Name
		}
	}
	return o.Name
}

func podPorts(o *corev1.Pod) []snapshot.PodPort {
	var ports []snapshot.PodPort
	add := func(containers []corev1.Container, always bool) {
		for _, container := range containers {
			sidecar := container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways
			if !always && !sidecar {
				continue
			}
			for _, p := range container.Ports {
				if p.Name != "" && fields.IsPort(p.ContainerPort) {
					ports = append(ports, snapshot.PodPort{Name: p.Name, Number: uint32(p.ContainerPort)})
				}
			}
		}
	}
	add(o.Spec.Containers, true)
	add(o.Spec.InitContainers, false)
	return ports
}
