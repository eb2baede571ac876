package inject

import (
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Workload names the object that makes pods from a template.
type Workload struct{ APIVersion, Kind, Name string }

// cronJobTime is the end of the name of a Job that a CronJob made.
var cronJobTime = regexp.MustCompile(`-\d{8,}$`)

// ownerOf returns the workload of a pod. A pod without an owner is its own workload.
func ownerOf(pod *corev1.Pod) Workload {
	for i := range pod.OwnerReferences {
		o := &pod.OwnerReferences[i]
		if o.Controller == nil || !*o.Controller {
			continue
		}
		w := Workload{o.APIVersion, o.Kind, o.Name}
		switch hash := pod.Labels["pod-template-hash"]; {
		case o.Kind == "ReplicaSet" && hash != "" && strings.HasSuffix(o.Name, "-"+hash):
			w = Workload{"apps/v1", "Deployment", strings.TrimSuffix(o.Name, "-"+hash)}
		case o.Kind == "Job" && cronJobTime.MatchString(o.Name):
			w = Workload{"batch/v1", "CronJob", cronJobTime.ReplaceAllString(o.Name, "")}
		}
		return w
	}
	name := pod.Name
	if name == "" {
		name = strings.TrimSuffix(pod.GenerateName, "-")
	}
	return Workload{"v1", "Pod", name}
}

// uri returns the name of the workload in node metadata.
func (w Workload) uri(namespace string) string {
	return "kubernetes://apis/" + w.APIVersion + "/namespaces/" + namespace + "/" + strings.ToLower(w.Kind) + "s/" + w.Name
}
