package mesh

import (
	"regexp"
	"strings"
)

// LabelWorkloadName is the label by which a workload chooses its name in metrics.
const LabelWorkloadName = "service.istio.io/workload-name"

// Workload names an object that makes pods, such as a Deployment.
type Workload struct{ APIVersion, Kind, Name string }

// cronJobTime is the end of the name of a Job that a CronJob made.
var cronJobTime = regexp.MustCompile(`-\d{8,}$`)

// WorkloadOf returns the workload of a pod, from the controller that owns the pod and from the labels
// of the pod. If the controller is only one revision or one run of another object, such as a
// ReplicaSet of a Deployment, the other object is the workload: its name stays the same.
func WorkloadOf(controller Workload, labels map[string]string) Workload {
	name := controller.Name
	switch controller.Kind {
	case "ReplicaSet":
		if name, ok := cutHash(name, labels["pod-template-hash"]); ok {
			return Workload{"apps/v1", "Deployment", name}
		}
		if name, ok := cutHash(name, labels["rollouts-pod-template-hash"]); ok { // Argo Rollouts
			return Workload{"argoproj.io/v1alpha1", "Rollout", name}
		}
	case "ReplicationController":
		if name := labels["deploymentconfig"]; name != "" { // OpenShift
			return Workload{"apps.openshift.io/v1", "DeploymentConfig", name}
		}
	case "Job":
		if cronJob := cronJobTime.ReplaceAllString(name, ""); cronJob != name && cronJob != "" {
			return Workload{"batch/v1", "CronJob", cronJob}
		}
	}
	return controller
}

func cutHash(name, hash string) (string, bool) {
	before, ok := strings.CutSuffix(name, "-"+hash)
	return before, ok && hash != "" && before != ""
}
