package source

import (
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshctl/meshctl/internal/nearest"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// readKinds are the kinds that newObject knows, by group.
var readKinds = map[string][]string{
	"":                    {"Namespace", "Node", "Pod", "Service", "ConfigMap", "Secret", "ServiceAccount"},
	discoveryv1.GroupName: {"EndpointSlice"},
	groupNetworking:       {"Gateway", "Sidecar", "DestinationRule", "VirtualService", "ServiceEntry", "WorkloadEntry", "EnvoyFilter"},
	groupSecurity:         {"PeerAuthentication"},
	groupGatewayAPI:       {"Gateway"},
}

// otherCoreKinds are the kinds of core/v1 that have nothing to do with a mesh.
var otherCoreKinds = strings.Fields(`Binding ComponentStatus Endpoints Event LimitRange List
	PersistentVolume PersistentVolumeClaim PodTemplate ReplicationController ResourceQuota`)

// unread is the result for an object of a kind that is not read. A kind of
// Istio, and one that core/v1 does not have, was meant to have an effect: it
// gets a warning. Those that leave something open are grave.
func unread(key snapshot.Key, group string) Result {
	r := Result{Key: key, Skipped: true}
	kind := string(key.Kind)
	isIstio := strings.HasSuffix(group, ".istio.io")
	if isIstio && r.Key.Namespace == "" {
		r.Key.Namespace = metav1.NamespaceDefault
	}
	hint := kindHint(group, kind)
	switch {
	case !isIstio && hint == "" && (group != "" || slices.Contains(otherCoreKinds, kind)):
		return r
	case group == groupSecurity && hint == "":
		r.Grave = true
		r.Warnings = append(r.Warnings, faultf("kind", "%s is not read: it protects nothing", kind))
	default:
		r.Grave = hint != ""
		r.Warnings = append(r.Warnings, faultf("kind", "%s is not read%s", kind, hint))
	}
	return r
}

// Unread are the kinds of Istio that are not read. A cluster of which the
// configuration counts is looked at for them, so that nobody relies on one.
func Unread() []Resource {
	kind := func(group, kind, name string, versions ...string) Resource {
		return Resource{
			KubeKind: kind, Group: group, Versions: versions, Name: name, Use: ForConfiguration, Custom: true, Optional: true,
			Without: "it is not told whether there is any " + kind + ", which is not read",
		}
	}
	return []Resource{
		kind(groupSecurity, "AuthorizationPolicy", "authorizationpolicies", "v1", "v1beta1"),
		kind(groupSecurity, "RequestAuthentication", "requestauthentications", "v1", "v1beta1"),
		kind(groupNetworking, "WorkloadGroup", "workloadgroups", "v1", "v1beta1", "v1alpha3"),
		kind(groupNetworking, "ProxyConfig", "proxyconfigs", "v1beta1"),
		kind("telemetry.istio.io", "Telemetry", "telemetries", "v1", "v1alpha1"),
		kind("extensions.istio.io", "WasmPlugin", "wasmplugins", "v1alpha1"),
	}
}

// UnreadWarning is what is told of objects of a kind of Unread, wherever they
// come from.
func UnreadWarning(r *Resource) error {
	return unread(snapshot.Key{Kind: snapshot.Kind(r.KubeKind)}, r.Group).Warnings[0]
}

// kindHint suggests what a misspelt kind, or a kind of another group, was
// meant to be; empty when it looks like neither.
func kindHint(group, kind string) string {
	if near := nearest.Word(kind, readKinds[group]); near != "" {
		return fmt.Sprintf(", did you mean %s?", near)
	}
	for _, other := range []string{groupNetworking, groupSecurity} {
		if strings.HasSuffix(group, ".istio.io") && slices.Contains(readKinds[other], kind) {
			return fmt.Sprintf(", did you mean apiVersion %s/v1?", other)
		}
	}
	return ""
}
