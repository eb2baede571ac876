package server

import (
	"errors"
	"fmt"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
)

// mayReadKeys decides who is given private keys: in a cluster of a directory by
// what the directory says of gateways, in any other by what its API server says.
func (s *Server) mayReadKeys(snap *snapshot.Snapshot, caller mesh.Caller, n xdsgen.Node) error {
	for _, d := range s.cfg.dirs() {
		if d.Cluster == caller.Cluster && d.Dir != "" {
			return mayReadKeys(snap, caller, n)
		}
	}
	pod, _ := xdsgen.AssignReads(n)
	return s.keyReviews.MayRead(caller, pod)
}

// mayReadKeys decides who is given private keys where there is no Kubernetes
// API to ask: gateways. That it is one only the proxy says, so it must run as
// a pod that a Gateway object selects, by the name that it says and with the
// service account that it proved. Who is of which namespace and cluster is not
// looked at here: nobody is given secrets of another.
func mayReadKeys(s *snapshot.Snapshot, caller mesh.Caller, n xdsgen.Node) error {
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
