package inject

import (
	corev1 "k8s.io/api/core/v1"
)

// Volumes of the proxy.
const (
	volumeSocket     = "workload-socket"
	volumeCredential = "credential-socket"
	volumeCerts      = "workload-certs"
	volumeEnvoy      = "istio-envoy"
	volumeGRPC       = "istio-xds"
	volumeData       = "istio-data"
	volumePod        = "istio-podinfo"
	volumeToken      = "istio-token"
	volumeRoots      = "istiod-ca-cert"
	volumeCRL        = "istio-ca-crl"
)

// ConfigMaps of the namespace of the pod: with the roots of the mesh, and with revocation
// lists, which may be missing.
const (
	rootConfigMap = "istio-ca-root-cert"
	crlConfigMap  = "istio-ca-crl"
)

// tokenSeconds is the lifetime of the token of the pod, which the kubelet renews.
const tokenSeconds = 43200

// tokenAudience is the audience of the token of the pod.
const tokenAudience = "istio-ca"

// Where volumes are mounted that an application with gRPC uses, too.
const (
	mountConfig = "/etc/istio/proxy"
	mountData   = "/var/lib/istio/data"
)

// proxyVolumes returns the volumes that all templates share. config is the name of the volume of
// the configuration.
func proxyVolumes(config string) []corev1.Volume {
	empty := func(name string, medium corev1.StorageMedium) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}}
	}
	file := func(path, of string) corev1.DownwardAPIVolumeFile {
		return corev1.DownwardAPIVolumeFile{Path: path, FieldRef: &corev1.ObjectFieldSelector{FieldPath: of}}
	}
	return []corev1.Volume{
		empty(volumeSocket, ""),
		empty(volumeCredential, ""),
		empty(volumeCerts, ""),
		empty(config, corev1.StorageMediumMemory),
		empty(volumeData, ""),
		{Name: volumePod, VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{
			Items: []corev1.DownwardAPIVolumeFile{file("labels", "metadata.labels"), file("annotations", "metadata.annotations")},
		}}},
		{Name: volumeToken, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
				Audience: tokenAudience, ExpirationSeconds: new(int64(tokenSeconds)), Path: "istio-token",
			}}},
		}}},
		configMapVolume(volumeRoots, rootConfigMap, false),
	}
}

func configMapVolume(name, configMap string, optional bool) corev1.Volume {
	source := &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: configMap}}
	if optional {
		source.Optional = new(true)
	}
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{ConfigMap: source}}
}

// proxyMounts returns the mounts of proxyVolumes.
func proxyMounts(config string) []corev1.VolumeMount {
	return []corev1.VolumeMount{
		{Name: volumeSocket, MountPath: "/var/run/secrets/workload-spiffe-uds"},
		{Name: volumeCredential, MountPath: "/var/run/secrets/credential-uds"},
		{Name: volumeCerts, MountPath: "/var/run/secrets/workload-spiffe-credentials"},
		{Name: volumeRoots, MountPath: "/var/run/secrets/istio"},
		{Name: volumeData, MountPath: mountData},
		{Name: config, MountPath: mountConfig},
		{Name: volumeToken, MountPath: "/var/run/secrets/tokens"},
		{Name: volumePod, MountPath: "/etc/istio/pod"},
	}
}
