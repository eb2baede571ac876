package registry

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// apply enters one event into the indexes and marks the facts that it may change.
func (s *state) apply(e snapshot.Event) {
	c := s.cluster(e.Key.Cluster)
	n := name{e.Key.Namespace, e.Key.Name}
	switch e.Key.Kind {
	case snapshot.KindNamespace:
		ns := as[*snapshot.Namespace](e)
		if e.Key.Name == s.cfg.SystemNamespace && networkLabel(ns) != networkLabel(c.namespaces[e.Key.Name]) {
			s.dirty.mesh = true
		}
		put(c.namespaces, e.Key.Name, ns)
	case snapshot.KindNode:
		s.applyNode(c, e.Key.Name, as[*snapshot.Node](e))
	case snapshot.KindPod:
		if pod := as[*snapshot.Pod](e); differs(c.pods, n, pod) {
			s.applyPod(c, n, pod)
		}
	case snapshot.KindService:
		if svc := as[*snapshot.Service](e); differs(c.services, n, svc) {
			s.applyService(c, n, svc)
		}
	case snapshot.KindEndpointSlice:
		if slice := as[*snapshot.EndpointSlice](e); differs(c.slices, n, slice) {
			s.applySlice(c, n, slice)
		}
	case snapshot.KindWorkloadEntry:
		s.applyEntry(c, n, as[*snapshot.WorkloadEntry](e))
	case snapshot.KindSecret:
		if secret := as[*snapshot.Secret](e); differs(c.secrets, n, secret) {
			put(c.secrets, n, secret)
			s.dirty.secrets.add(secretKey{c.id, n})
		}
	case snapshot.KindKubeGateway:
		if g := as[*snapshot.KubeGateway](e); differs(c.gateways, n, g) {
			put(c.gateways, n, g)
			s.dirty.gateways = true
		}
	case snapshot.KindMeshSettings:
		settings := as[*snapshot.MeshSettings](e)
		if !equalSettings(c.settings, settings) {
			s.dirty.mesh = true
		}
		c.settings = settings
	default:
		if e.Key.Cluster == s.cfg.Local {
			s.applyConfig(n, e)
		}
	}
}

// as returns the object of an event, or nil if it is gone.
func as[O snapshot.Object](e snapshot.Event) O {
	o, _ := e.Object.(O)
	return o
}

func put[K comparable, V any](m map[K]*V, k K, v *V) {
	if v == nil {
		delete(m, k)
		return
	}
	m[k] = v
}

// differs reports whether v differs from the object in m. Most do not: a repeated list
// has mostly unchanged objects, and many changes concern fields that objects do not
// keep.
func differs[K comparable, V any](m map[K]*V, k K, v *V) bool { return !reflect.DeepEqual(m[k], v) }

func networkLabel(ns *snapshot.Namespace) string {
	if ns == nil {
		return ""
	}
	return ns.Labels[mesh.LabelNetwork]
}

func equalSettings(a, b *snapshot.MeshSettings) bool {
	if a == nil || b == nil {
		return a == b
	}
	return proto.Equal(a.Mesh, b.Mesh) && proto.Equal(a.Networks, b.Networks)
}

// applyNode stores a node. If its locality changed, it marks the services with
// endpoints on the node.
func (s *state) applyNode(c *clusterState, id string, node *snapshot.Node) {
	old := c.nodes[id]
	put(c.nodes, id, node)
	if (old == nil) == (node == nil) && (old == nil || old.Locality == node.Locality) {
		return
	}
	s.markEndpoints(c.byNode[id])
	for pod := range c.podsOn[id] {
		s.markEndpoints(c.byPod[pod])
		for _, ip := range c.pods[pod].IPs {
			s.markEndpoints(c.byIP[ip])
		}
	}
}

func (s *state) markEndpoints(services map[name]int) {
	for n := range services {
		s.dirty.endpoints.add(n)
	}
}

func (s *state) applyPod(c *clusterState, n name, pod *snapshot.Pod) {
	if old := c.pods[n]; old != nil {
		c.podsOn.change(old.Node, n, -1)
		for _, ip := range old.IPs {
			c.leave(ip, old)
			s.markEndpoints(c.byIP[ip])
		}
	}
	put(c.pods, n, pod)
	if pod != nil {
		c.podsOn.change(pod.Node, n, 1)
	}
	if pod != nil && !pod.HostNetwork {
		for _, ip := range pod.IPs {
			c.enter(ip, pod)
			s.markEndpoints(c.byIP[ip])
		}
	}
	s.markEndpoints(c.byPod[n])
	s.dirty.pods.add(snapshot.PodKey{Cluster: c.id, Namespace: n.namespace, Name: n.name})
}

// enter indexes the pod by an address. Two pods may have one address for a moment,
// while one replaces the other.
func (c *clusterState) enter(ip netip.Addr, pod *snapshot.Pod) {
	list := c.podsByIP[ip]
	i, _ := slices.BinarySearchFunc(list, pod, func(a, b *snapshot.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	c.podsByIP[ip] = slices.Insert(list, i, pod)
}

func (c *clusterState) leave(ip netip.Addr, pod *snapshot.Pod) {
	list := slices.DeleteFunc(c.podsByIP[ip], func(p *snapshot.Pod) bool { return p == pod })
	if len(list) == 0 {
		delete(c.podsByIP, ip)
		return
	}
	c.podsByIP[ip] = list
}

func (s *state) applyService(c *clusterState, n name, svc *snapshot.Service) {
	for _, o := range []*snapshot.Service{c.services[n], svc} {
		if o != nil && (o.Labels[mesh.LabelNetwork] != "" || s.namedGateway(n)) {
			s.dirty.gateways = true
		}
	}
	s.removeVIPs(c, n, c.services[n])
	s.addVIPs(c, n, svc)
	put(c.services, n, svc)
	for _, other := range s.clusters { // the service may get or lose these addresses
		if same := other.services[n]; same != nil {
			for _, vip := range same.VIPs {
				s.dirty.addresses.add(vip)
			}
		}
	}
	within(c.servicesIn, n.namespace, n, svc != nil)
	s.dirty.services.add(n)
	s.dirty.endpoints.add(n)
}

func (s *state) applySlice(c *clusterState, n name, slice *snapshot.EndpointSlice) {
	if old := c.slices[n]; old != nil {
		c.index(n, old, -1)
		s.dirty.endpoints.add(serviceOf(old))
	}
	put(c.slices, n, slice)
	if slice != nil {
		c.index(n, slice, 1)
		s.dirty.endpoints.add(serviceOf(slice))
	}
}

func serviceOf(e *snapshot.EndpointSlice) name { return name{e.Namespace, e.Service} }

// index adds an EndpointSlice to the reverse indexes (by is 1) or removes it (by is
// -1).
func (c *clusterState) index(n name, e *snapshot.EndpointSlice, by int) {
	svc := serviceOf(e)
	c.slicesOf.change(svc, n, by)
	for _, ep := range e.Endpoints {
		if ep.Pod != "" {
			c.byPod.change(name{e.Namespace, ep.Pod}, svc, by)
		}
		if ep.Pod == "" || c.remote {
			for _, a := range ep.Addresses {
				c.byIP.change(a, svc, by)
			}
		}
		if ep.Node != "" {
			c.byNode.change(ep.Node, svc, by)
		}
	}
}

func (s *state) applyConfig(n name, e snapshot.Event) {
	switch e.Key.Kind {
	case snapshot.KindSidecar:
		put(s.sidecars, n, as[*snapshot.Sidecar](e))
		s.dirty.namespaces.add(n.namespace)
	case snapshot.KindPeerAuthentication:
		put(s.peerAuth, n, as[*snapshot.PeerAuthentication](e))
		s.dirty.namespaces.add(n.namespace)
	case snapshot.KindEnvoyFilter:
		put(s.filters, n, as[*snapshot.EnvoyFilter](e))
		s.dirty.namespaces.add(n.namespace)
		s.dirty.filters = true
	case snapshot.KindConfigMap:
		put(s.configMaps, n, as[*snapshot.ConfigMap](e))
		s.dirty.configMaps.add(n)
	case snapshot.KindGateway:
		put(s.gateways, n, as[*snapshot.Gateway](e))
		s.dirty.configs = true
	}
}

// within adds a name to the set of a key, or removes it if is is false.
func within[K comparable](of map[K]set[name], k K, n name, is bool) {
	if is {
		if of[k] == nil {
			of[k] = set[name]{}
		}
		of[k].add(n)
		return
	}
	if delete(of[k], n); len(of[k]) == 0 {
		delete(of, k)
	}
}
