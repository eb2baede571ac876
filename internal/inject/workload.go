package inject

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/mesh"
)

// ownerOf returns the workload of a pod. A pod without an owner is its own workload.
func ownerOf(pod *corev1.Pod) mesh.Workload {
	for i := range pod.OwnerReferences {
		if o := &pod.OwnerReferences[i]; o.Controller != nil && *o.Controller {
			return mesh.WorkloadOf(mesh.Workload{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name}, pod.Labels)
		}
	}
	name := pod.Name
	if name == "" {
		name = strings.TrimSuffix(pod.GenerateName, "-")
	}
	return mesh.Workload{APIVersion: "v1", Kind: "Pod", Name: name}
}

// ownerURI returns the name of a workload in node metadata.
func ownerURI(w mesh.Workload, namespace string) string {
	return "kubernetes://apis/" + w.APIVersion + "/namespaces/" + namespace + "/" + strings.ToLower(w.Kind) + "s/" + w.Name
}
