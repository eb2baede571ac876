package analyze

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// compareRules finds the DestinationRules that clients in another cluster do not have, although they may
// call the service.
func (v *clusterView) compareRules(far *clusterView) {
	for _, d := range v.rules {
		svc := v.service(snapshot.RuledHost(d), d.Namespace)
		if svc == nil || d.Spec.GetTrafficPolicy() == nil || v.comparedBy(far, d) || !far.mayCall(svc, v.exportsOfRule(d)) {
			continue
		}
		same := func(o *snapshot.DestinationRule) bool {
			return o.Namespace == d.Namespace && snapshot.RuledHost(o) == snapshot.RuledHost(d) && proto.Equal(o.Spec.GetTrafficPolicy(), d.Spec.GetTrafficPolicy())
		}
		if !slices.ContainsFunc(far.rules, same) && !v.lacksSubset(far, d) {
			v.findFix(codes.DestinationRuleDiffers, d, v.eitherWay(far, d), "spec.trafficPolicy", "does not apply to clients in cluster %s, which %s", far.id, far.instead(d))
		}
	}
}

// compareRoutes finds the VirtualServices for sidecars that clients in another cluster do not have,
// although they may call the hosts.
func (v *clusterView) compareRoutes(far *clusterView) {
	for _, vs := range v.virtual {
		if !slices.Contains(vs.Gateways, snapshot.MeshGateway) || v.comparedBy(far, vs) {
			continue
		}
		called := slices.IndexFunc(vs.Hosts, func(host string) bool {
			svc := v.service(host, vs.Namespace)
			return svc != nil && far.mayCall(svc, v.exports(vs))
		})
		same := func(o *snapshot.VirtualService) bool {
			if o.Namespace != vs.Namespace || !slices.Equal(o.Hosts, vs.Hosts) || !slices.Contains(o.Gateways, snapshot.MeshGateway) {
				return false
			}
			renamed := *o
			renamed.Meta, renamed.Gateways = vs.Meta, vs.Gateways
			return renamed.SameAs(vs)
		}
		if called >= 0 && !slices.ContainsFunc(far.virtual, same) {
			v.findFix(codes.RoutesDiffer, vs, v.eitherWay(far, vs), "", "does not apply to clients in cluster %s, which %s: their requests to %s do not use its routes",
				far.id, far.instead(vs), vs.Hosts[called])
		}
	}
}

// comparedBy reports whether the other cluster compares an object that both clusters have.
func (v *clusterView) comparedBy(far *clusterView, o snapshot.Object) bool {
	k := o.Key()
	k.Cluster = far.id
	return far.objects[k] != nil && v.id > far.id
}

// lacksSubset reports whether there is an error about a subset of a DestinationRule that the other cluster
// lacks. The same command mends both.
func (v *clusterView) lacksSubset(far *clusterView, d *snapshot.DestinationRule) bool {
	fix := v.copyTo(far, d)
	return slices.ContainsFunc(v.found, func(f Finding) bool {
		return f.Code == codes.SubsetMissingInCluster && f.Object == d.Key() && f.Fix == fix
	})
}

// mayCall reports whether the cluster has the service, and a client to which an object for the service
// would apply. The pods of the service themselves are no clients.
func (v *clusterView) mayCall(svc *snapshot.MeshService, to exports) bool {
	own := v.Snapshot.Services.Get(svc.Key)
	if own == nil || !own.Entry && own.In(v.id) == nil {
		return false
	}
	backends := map[string]bool{}
	for _, e := range v.backends[svc.Key][v.id] {
		backends[e.Pod] = true
	}
	isClient := func(w *snapshot.Pod) bool {
		return w.Cluster == v.id && hasProxy(w) && !backends[snapshot.PodKey{Cluster: w.Cluster, Namespace: w.Namespace, Name: w.Name}.String()]
	}
	for namespace, all := range v.workloads {
		if namespace == v.Snapshot.Mesh.RootNamespace || !to.all() && !to.includes(namespace) || !own.VisibleTo(namespace) {
			continue
		}
		if slices.ContainsFunc(all, isClient) {
			return true
		}
	}
	return false
}

// hasProxy reports whether a workload has a proxy, or gRPC in its place.
func hasProxy(w *snapshot.Pod) bool {
	return w.Proxyless || w.Labels[mesh.LabelTLSMode] != "" || w.Injection != nil && w.Injection.Proxy != ""
}

// exportsOfRule returns the exports of a DestinationRule.
func (m *checker) exportsOfRule(d *snapshot.DestinationRule) exports {
	to := d.Spec.GetExportTo()
	if len(to) == 0 && m.Settings != nil {
		to = m.Settings.Mesh.GetDefaultDestinationRuleExportTo()
	}
	return exports{d.Namespace, to}
}
