package mesh

import "cmp"

// CanonicalName returns the name by which telemetry groups workloads: from labels, or the first of
// others that is not empty.
func CanonicalName(labels map[string]string, others ...string) string {
	return cmp.Or(labels[LabelCanonicalName], labels["app.kubernetes.io/name"], labels["app"], cmp.Or(others...))
}

// CanonicalRevision returns the version by which telemetry groups workloads of a canonical name.
func CanonicalRevision(labels map[string]string) string {
	return cmp.Or(labels[LabelCanonicalRevision], labels["app.kubernetes.io/version"], labels["version"], "latest")
}
