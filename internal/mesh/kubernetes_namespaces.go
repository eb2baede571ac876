package mesh

import "slices"

// IsKubernetesNamespace reports whether a namespace has only parts of Kubernetes. Their pods are
// never injected, as with Istio.
func IsKubernetesNamespace(name string) bool {
	return slices.Contains([]string{"kube-system", "kube-public", "kube-node-lease", "local-path-storage"}, name)
}
