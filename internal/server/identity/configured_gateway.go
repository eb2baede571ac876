package identity

import (
	"errors"
	"fmt"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// ConfiguredGateway returns why a proxy gets no private keys in a cluster without a
// Kubernetes API to ask, nil if it does. Only gateways do. A proxy alone claims to be
// one, so a Gateway object must select its pod: the pod of the name that it claims,
// with the service account that it proved. Namespace and cluster need no check here:
// secrets never leave theirs.
func ConfiguredGateway(s *snapshot.Snapshot, caller mesh.Caller, n proxy.Node) error {
	if n.ID.Type != mesh.Router {
		return errors.New("it is not a gateway")
	}
	id := caller.Identity
	key := snapshot.PodKey{Cluster: caller.Cluster, Namespace: id.Namespace, Name: n.ID.Name}
	pod := s.Pods.Get(key.String())
	switch {
	case pod == nil:
		return fmt.Errorf("pod %s/%s of cluster %s is not known", id.Namespace, n.ID.Name, caller.Cluster)
	case pod.ServiceAccount != id.ServiceAccount:
		return fmt.Errorf("pod %s/%s runs as another service account than %s", id.Namespace, n.ID.Name, id.ServiceAccount)
	}
	if !slices.ContainsFunc(s.GatewayConfigs, func(gw *snapshot.Gateway) bool {
		selector := gw.Spec.GetSelector()
		return len(selector) > 0 && snapshot.Selects(selector, pod.Labels)
	}) {
		return fmt.Errorf("no Gateway selects pod %s/%s", id.Namespace, n.ID.Name)
	}
	return nil
}
