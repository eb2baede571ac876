package mesh

import "testing"

func TestWorkloadOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		controller Workload
		labels     map[string]string
		want       Workload
	}{
		{Workload{"apps/v1", "ReplicaSet", "web-abc12"}, map[string]string{"pod-template-hash": "abc12"}, Workload{"apps/v1", "Deployment", "web"}},
		{Workload{"apps/v1", "ReplicaSet", "web-abc12"}, map[string]string{"rollouts-pod-template-hash": "abc12"}, Workload{"argoproj.io/v1alpha1", "Rollout", "web"}},
		{Workload{"v1", "ReplicationController", "web-3"}, map[string]string{"deploymentconfig": "web", "deployment": "web-3"}, Workload{"apps.openshift.io/v1", "DeploymentConfig", "web"}},
		{Workload{"batch/v1", "Job", "report-29384756"}, nil, Workload{"batch/v1", "CronJob", "report"}},
		// Other objects, and labels that do not fit, change nothing.
		{Workload{"apps/v1", "ReplicaSet", "web"}, map[string]string{"pod-template-hash": "web"}, Workload{"apps/v1", "ReplicaSet", "web"}},
		{Workload{"apps/v1", "ReplicaSet", "web-abc12"}, map[string]string{"rollouts-pod-template-hash": "c12"}, Workload{"apps/v1", "ReplicaSet", "web-abc12"}},
		{Workload{"apps/v1", "ReplicaSet", "web-"}, map[string]string{"pod-template-hash": ""}, Workload{"apps/v1", "ReplicaSet", "web-"}},
		{Workload{"v1", "ReplicationController", "web-3"}, nil, Workload{"v1", "ReplicationController", "web-3"}},
		{Workload{"apps/v1", "StatefulSet", "web-abc12"}, map[string]string{"pod-template-hash": "abc12", "deploymentconfig": "x"}, Workload{"apps/v1", "StatefulSet", "web-abc12"}},
		{Workload{"batch/v1", "Job", "report-1"}, nil, Workload{"batch/v1", "Job", "report-1"}},
		{Workload{"batch/v1", "Job", "-29384756"}, nil, Workload{"batch/v1", "Job", "-29384756"}},
	} {
		if got := WorkloadOf(c.controller, c.labels); got != c.want {
			t.Errorf("%v with %v: %v, want %v", c.controller, c.labels, got, c.want)
		}
	}
}
