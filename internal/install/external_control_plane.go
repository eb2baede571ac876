package install

import (
	"cmp"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

// Directories in the pod of an external control plane.
const (
	caDir         = "/etc/cacerts"
	kubeconfigDir = "/var/run/secrets/remote"
)

// external reports whether the installation is an external control plane: it reads the
// configuration of the mesh from the API server of another cluster.
func (v *Values) external() bool {
	return v.ConfigCluster != "" && !v.Remote.Enabled && !v.ControlPlane.Disabled
}

// configCluster returns ConfigCluster, or this cluster if it has the configuration.
func (v *Values) configCluster() string {
	if v.Remote.Enabled && v.Remote.Configures {
		return v.ClusterID
	}
	return v.ConfigCluster
}

// Configures reports whether the cluster has the configuration of an external control plane.
func (v *Values) Configures() bool {
	return v.Remote.Enabled && v.configCluster() == v.ClusterID
}

// controlPlaneID returns the cluster ID of the control plane.
func (v *Values) controlPlaneID() string {
	if v.Remote.Enabled {
		return cmp.Or(v.configCluster(), v.Remote.Cluster)
	}
	return cmp.Or(v.ConfigCluster, v.ClusterID)
}

// RequiredSecret is a Secret without which the control plane does not start.
type RequiredSecret struct{ Name, Fix string }

// RequiredSecrets returns the Secrets in the namespace of the control plane that users create.
func (v *Values) RequiredSecrets() []RequiredSecret {
	if !v.external() {
		return nil
	}
	return []RequiredSecret{
		{remotesecret.ConfigName, "create it: meshctl create-remote-secret --type config --name " + v.ConfigCluster},
		{store.CACerts, "give install the flag --ca-dir"},
	}
}

// addExternalControlPlane adds a control plane that uses no API server of its own cluster.
// The signing CA stays in that cluster.
func (s *set) addExternalControlPlane() {
	v := s.values
	pod := s.controlPlanePod()
	pod.Annotations = joined(pod.Annotations, map[string]string{mesh.AnnotationConfigCluster: v.ConfigCluster})
	pod.Spec.AutomountServiceAccountToken = new(false)
	container := &pod.Spec.Containers[0]
	container.Args = append([]string{
		"serve", "--kubeconfig=" + kubeconfigDir + "/" + remotesecret.ConfigKey, "--ca-dir=" + caDir,
		"--system-namespace=" + v.Namespace, fmt.Sprintf("--https-addr=:%d", mesh.PortWebhooks),
	}, container.Args[1:]...)
	for _, m := range []struct{ volume, secret, dir string }{
		{"config-cluster", remotesecret.ConfigName, kubeconfigDir},
		{"cacerts", store.CACerts, caDir},
	} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: m.volume, VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: m.secret, DefaultMode: new(int32(0o440))},
		}})
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: m.volume, MountPath: m.dir, ReadOnly: true})
	}
	s.add(&corev1.ServiceAccount{
		TypeMeta: kindOf(corev1.SchemeGroupVersion, "ServiceAccount"), ObjectMeta: metav1.ObjectMeta{Namespace: v.Namespace, Name: pod.Spec.ServiceAccountName},
	})
	s.addControlPlaneWorkload(pod)
}

// checkExternal returns the faults of the use of a cluster with the configuration.
func (v *Values) checkExternal() []error {
	cluster := v.configCluster()
	if cluster == "" {
		return nil
	}
	var errs []error
	if !mesh.ClusterID(cluster).Valid() {
		errs = append(errs, fmt.Errorf("cluster %q with the configuration: want letters, digits, '.', '-' and '_', at most 63", cluster))
	}
	if v.Revision != "" {
		errs = append(errs, errors.New("--revision does not work with --config-cluster: install a second external control plane in a namespace of its own"))
	}
	switch {
	case v.Remote.Enabled:
		return errs
	case v.ControlPlane.Disabled:
		return append(errs, errors.New("--config-cluster has no effect without a control plane: leave it out"))
	case v.ConfigCluster == v.ClusterID:
		return append(errs, fmt.Errorf("cluster %s has the configuration, and is this one: give --control-plane if the control plane is in another cluster, else leave out --config-cluster", v.ClusterID))
	}
	return append(errs, withoutEffect("in the cluster of an external control plane: leave it out, and set it in cluster "+cluster, []setting{
		{"--network, or global.network,", v.Network != ""},
		{"meshConfig", len(v.MeshConfig) > 0},
		{"a value of the injector", len(v.Injector) > 0},
		{"--crds", v.CRDs},
		{"--revision-tag", len(v.Tags) > 0},
		{"a gateway", len(v.Gateways) > 0},
		{"--expose-istiod", v.ExposeControlPlane},
	})...)
}
