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

// WorkloadLabels describe a workload in Istio's standard metrics. Empty fields are not known.
type WorkloadLabels struct {
	Name              string
	Service, Revision string // canonical
	App, Version      string // labels
	Cluster           string
}

// WorkloadLabelsOf describes the workload of a pod with this name of its workload and these labels.
func WorkloadLabelsOf(workload string, labels map[string]string, cluster ClusterID) WorkloadLabels {
	return WorkloadLabels{
		Name: workload, Service: CanonicalName(labels, workload), Revision: CanonicalRevision(labels),
		App: labels["app"], Version: labels["version"], Cluster: string(cluster),
	}
}

// Common returns the fields in which both agree. Only a workload of the same name is the same.
func (w WorkloadLabels) Common(other WorkloadLabels) WorkloadLabels {
	if w.Name != other.Name {
		return WorkloadLabels{}
	}
	for _, field := range []struct{ own, other *string }{
		{&w.Service, &other.Service}, {&w.Revision, &other.Revision}, {&w.App, &other.App}, {&w.Version, &other.Version}, {&w.Cluster, &other.Cluster},
	} {
		if *field.own != *field.other {
			*field.own = ""
		}
	}
	return w
}

// PodTemplatePath returns the path of the template of pods in an object of a kind, which is empty
// for a Pod itself. ok is false for kinds without one.
func PodTemplatePath(kind string) (path []string, ok bool) {
	switch kind {
	case "Pod":
		return nil, true
	case "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController", "DeploymentConfig", "Job":
		return []string{"spec", "template"}, true
	case "CronJob":
		return []string{"spec", "jobTemplate", "spec", "template"}, true
	}
	return nil, false
}
