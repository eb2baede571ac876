package analyze

import (
	"fmt"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// CheckClusters returns the faults of a mesh, of which each view has the configuration of the
// cluster of its control planes. These are the faults of the first view, the faults of the
// configuration of the others, and the differences between clusters where traffic crosses.
func CheckClusters(views []*registry.Contents, o Options) []Finding {
	if len(views) == 1 {
		return Check(views[0], o)
	}
	var found []Finding
	var all []*clusterView
	for i, c := range views {
		v := newClusterView(c, o)
		if all = append(all, v); i == 0 {
			found = Check(c, o)
			continue
		}
		for _, f := range Check(c, o) {
			if f.Object.Cluster == v.id && all[0].objects[f.Object] == nil || f.Code == codes.UnreachableNetwork {
				found = append(found, f)
			}
		}
	}
	for _, v := range all {
		v.unlinked(all)
		for _, other := range all {
			if v != other {
				v.compare(other) // some differences are findings of the other
			}
		}
	}
	faulty := map[snapshot.Key]bool{} // objects of any cluster with faults of their own
	for i := range found {
		if found[i].Severity() != codes.Info {
			faulty[inAnyCluster(found[i].Object)] = true
		}
	}
	for _, v := range all {
		found = append(found, slices.DeleteFunc(v.found, func(f Finding) bool {
			return faulty[inAnyCluster(f.Object)] && isDifference(f.Code) && inSeveral(all, f.Object)
		})...)
	}
	return Sort(found)
}

// isDifference reports whether the command of findings copies an object to another cluster. If two clusters
// have the object, and it has a fault of its own in one of them, then the fault is the cause of the difference,
// and the command might copy the fault.
func isDifference(code codes.Code) bool {
	return code == codes.SecurityDiffers || code == codes.DestinationRuleDiffers || code == codes.RoutesDiffer
}

func inAnyCluster(k snapshot.Key) snapshot.Key {
	k.Cluster = ""
	return k
}

// inSeveral reports whether several clusters have an object of a kind and a name.
func inSeveral(all []*clusterView, k snapshot.Key) bool {
	n := 0
	for _, v := range all {
		if k.Cluster = v.id; v.objects[k] != nil {
			n++
		}
	}
	return n > 1
}

// clusterView is the mesh as the control planes of a cluster know it.
type clusterView struct {
	*checker
	id mesh.ClusterID
	// backends holds the endpoints of services by the key of the service and by cluster.
	backends map[string]map[mesh.ClusterID][]*snapshot.Endpoint
}

func newClusterView(c *registry.Contents, o Options) *clusterView {
	v := &clusterView{checker: newChecker(c, o), id: c.Snapshot.Mesh.LocalCluster, backends: map[string]map[mesh.ClusterID][]*snapshot.Endpoint{}}
	for key, svc := range c.Snapshot.Services.All() {
		if svc.Entry || svc.ClusterLocal {
			continue
		}
		by := map[mesh.ClusterID][]*snapshot.Endpoint{}
		for _, e := range v.backendsOf(svc) {
			by[e.Cluster] = append(by[e.Cluster], e)
		}
		v.backends[key] = by
	}
	return v
}

// compare finds the differences by which requests of clients in the cluster of v to another cluster
// fail, or are less protected there.
func (v *clusterView) compare(far *clusterView) {
	v.compareNetworks(far)
	v.compareSubsets(far)
	v.compareRules(far)
	v.compareRoutes(far)
	v.compareGateways(far)
	v.compareMTLS(far)
	v.comparePolicies(far)
	v.compareMeshConfig(far)
}

// crosses reports whether the cluster's clients reach another cluster through gateways.
func (v *clusterView) crosses(far *clusterView) bool {
	network := v.Snapshot.NetworkOf(far.id)
	return network != "" && network != v.Snapshot.NetworkOf(v.id)
}

// gatewayTo returns a gateway through which the cluster's clients reach another cluster, or nil.
func (v *clusterView) gatewayTo(far *clusterView) *snapshot.NetworkGateway {
	all := v.Snapshot.Gateways.For(v.Snapshot.NetworkOf(far.id), far.id)
	if len(all) == 0 {
		return nil
	}
	return &all[0]
}

// shared is the pods of a service in another cluster that also has pods in the cluster of the view.
type shared struct {
	svc  *snapshot.MeshService
	pods []*snapshot.Pod
}

// sharedWith returns the pods of another cluster whose services have pods in both.
func (v *clusterView) sharedWith(far *clusterView) []shared {
	var out []shared
	for key, by := range v.backends {
		if len(by[v.id]) == 0 || len(by[far.id]) == 0 {
			continue
		}
		s := shared{svc: v.Snapshot.Services.Get(key)}
		for _, e := range by[far.id] {
			if pod := v.Snapshot.Pods.Get(e.Pod); pod != nil && !slices.Contains(s.pods, pod) {
				s.pods = append(s.pods, pod)
			}
		}
		if len(s.pods) > 0 {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b shared) int { return strings.Compare(a.svc.Key, b.svc.Key) })
	return out
}

// copyTo returns the command that copies an object to another cluster.
func (v *clusterView) copyTo(far *clusterView, o snapshot.Object) string {
	k := o.Key()
	if place := o.ReadFrom(); place.File != "" {
		return fmt.Sprintf("add %s %s (%s) to cluster %s, too", k.Kind, nameOf(o), place, far.id)
	}
	return v.copy(k, k.Namespace, far.id)
}

// copy returns the command that copies an object of Istio in the API to a namespace of a cluster.
func (v *clusterView) copy(k snapshot.Key, namespace string, to mesh.ClusterID) string {
	edit := "/^  (creationTimestamp|generation|resourceVersion|uid): /d"
	if namespace != k.Namespace {
		edit += "; s/^  namespace: .*/  namespace: " + namespace + "/"
	}
	return fmt.Sprintf("%s get %s %s -o yaml | sed -E '%s' | kubectl%s apply -f -", v.kubectl(v.id, k.Namespace), resourceOf(k.Kind), k.Name, edit, v.flags(to))
}

// eitherWay returns the command that copies an object to another cluster, and, for the case that the
// object is the mistake, the command for the other way.
func (v *clusterView) eitherWay(far *clusterView, o snapshot.Object) string {
	k := o.Key()
	there := k
	there.Cluster = far.id
	other := far.objects[there]
	back := ""
	switch place := o.ReadFrom(); {
	case other != nil:
		back = far.copyTo(v, other)
	case place.File != "":
		back = "delete it in cluster " + string(v.id)
	default:
		back = fmt.Sprintf("%s delete %s %s", v.kubectl(v.id, k.Namespace), resourceOf(k.Kind), k.Name)
	}
	if o.ReadFrom().File != "" {
		return fmt.Sprintf("%s, or, if cluster %s is right, %s", v.copyTo(far, o), far.id, back)
	}
	return fmt.Sprintf("%s # or, if cluster %s is right: %s", v.copyTo(far, o), far.id, back)
}

// resourceOf returns the name of a kind of Istio in commands of kubectl.
func resourceOf(kind snapshot.Kind) string {
	return strings.ToLower(string(kind)) + ".v1." + groupOf(kind)
}

// groupOf returns the API group of a kind of Istio.
func groupOf(kind snapshot.Kind) string {
	switch kind {
	case snapshot.KindPeerAuthentication, snapshot.KindAuthorizationPolicy, snapshot.KindRequestAuthentication:
		return "security.istio.io"
	}
	return "networking.istio.io"
}

// misnames reports whether the label of a gateway's Service is the mistake, not that of the namespace: pods of
// the cluster have the network of the namespace, and none has that of the Service.
func (m *checker) misnames(id mesh.ClusterID, service string, namespace mesh.NetworkID) bool {
	found := false
	for _, pod := range list[*snapshot.Pod](m, snapshot.KindPod) {
		if pod.Cluster != id {
			continue
		}
		switch pod.Labels[mesh.LabelNetwork] {
		case service:
			return false
		case string(namespace):
			found = namespace != ""
		}
	}
	return found
}

// compareNetworks finds a cluster without a network, or with another one than its gateway, while another
// cluster has a network: clients there call pods directly, or not at all. Pods with a label of their own, such
// as those with a sidecar of an injector that knows the network, are not concerned.
func (v *clusterView) compareNetworks(far *clusterView) {
	network, there := v.Snapshot.NetworkOf(v.id), v.Snapshot.NetworkOf(far.id)
	if network == "" {
		return
	}
	var gateway *snapshot.Service
	for _, svc := range list[*snapshot.Service](v.checker, snapshot.KindService) {
		own := mesh.NetworkID(svc.Labels[mesh.LabelNetwork])
		switch {
		case svc.Cluster != far.id || own == "":
		case own == there:
			return
		case gateway == nil && (there != "" || own != network):
			gateway = svc
		}
	}
	if gateway == nil {
		return
	}
	own := gateway.Labels[mesh.LabelNetwork]
	if v.misnames(far.id, own, there) {
		return // the network has no gateway then, which is a finding itself
	}
	namespace := v.Snapshot.Mesh.RootNamespace
	fix := fmt.Sprintf("kubectl%s label namespace %s %s=%s", v.flags(far.id), namespace, mesh.LabelNetwork, own)
	text := fmt.Sprintf("is missing, but Service %s is a gateway of network %s: clients in cluster %s, which has the network %s, call the pods of cluster %s "+
		"that have no label of this name, such as pods without a sidecar, directly, not through the gateway", nameOf(gateway), own, v.id, network, far.id)
	if there != "" {
		fix += " --overwrite"
		how := "do not reach them"
		switch {
		case there == network:
			how = "call them directly, not through the gateway"
		case v.gatewayTo(far) != nil:
			how = "call them through a gateway of that network"
		}
		text = fmt.Sprintf("is %s, but Service %s is a gateway of network %s: pods of cluster %s without a label of this name, such as pods without a sidecar, "+
			"count as pods of network %[1]s, and clients in cluster %[5]s %[6]s", there, nameOf(gateway), own, far.id, v.id, how)
	}
	key := snapshot.Key{Kind: snapshot.KindNamespace, Cluster: far.id, Name: namespace}
	v.findKeyFix(codes.WrongNetworkLabel, key, fix, "metadata.labels["+mesh.LabelNetwork+"]", text)
}

// unlinked finds control planes in a cluster that read no other one, because it has no remote secret.
func (v *clusterView) unlinked(all []*clusterView) {
	runs := slices.ContainsFunc(list[*snapshot.Pod](v.checker, snapshot.KindPod), func(p *snapshot.Pod) bool {
		return p.Cluster == v.id && p.Labels["app"] == "istiod"
	})
	if !runs || v.Links == nil {
		return
	}
	if links := v.Links(v.id); links == nil || len(links) > 0 {
		return
	}
	var others []string
	contexts := v.contextOf(v.id)
	for _, other := range all {
		if other != v {
			others, contexts = append(others, string(other.id)), contexts+" "+v.contextOf(other.id)
		}
	}
	key := snapshot.Key{Kind: snapshot.KindNamespace, Cluster: v.id, Name: v.Snapshot.Mesh.RootNamespace}
	v.findKeyFix(codes.ClusterNotLinked, key, "meshctl multicluster link "+contexts, "",
		fmt.Sprintf("has no remote secret: the control plane of cluster %s does not read cluster %s, so its clients call no pod there", v.id, listed(others)))
}

// contextOf returns the context of a cluster, or its name.
func (m *checker) contextOf(id mesh.ClusterID) string {
	if _, context, found := strings.Cut(m.flags(id), "--context "); found {
		return context
	}
	return string(id)
}
