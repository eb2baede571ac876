// Package nametable generates the DNS names of services for agents that answer DNS.
package nametable

import (
	"net/netip"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/endpoints"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// nameTable is the name of the only resource of its type, which has none on the wire.
// Agents take the first resource of any name.
const nameTable = ""

// View is the view of the DNS table, from which the DNS proxies of agents answer. It
// has the services that the proxy sees, with their addresses in the proxy's cluster or,
// for headless services, the addresses of their pods.
type View struct {
	Scope    proxy.Scope
	Cluster  mesh.ClusterID
	Network  mesh.NetworkID
	families proxy.Families
}

// Of returns the DNS table of proxies that see the services of the scope and reach
// endpoints like the proxies of v.
func Of(v endpoints.View, sc proxy.Scope) View {
	return View{Scope: sc, Cluster: v.Cluster, Network: v.Network, families: v.Families}
}

// Type implements units.View.
func (v View) Type() string { return xdswire.NameTableType }

// Keys implements units.View.
func (v View) Keys() units.Keys {
	return units.Keys{ServiceFacts: snapshot.ServiceFacts | snapshot.EndpointFacts, Scope: v.Scope}
}

// Unit implements units.View.
func (v View) Unit(s *snapshot.Snapshot, k units.Key) units.Unit {
	return v.serviceUnit(s, s.Services.Get(k.Name))
}

func (v View) serviceUnit(s *snapshot.Snapshot, svc *snapshot.MeshService) units.Unit {
	switch {
	case svc == nil || svc.ExternalName != "" || !v.Scope.Sees(svc):
		return nil
	case svc.Headless:
		return headlessNames{
			service: svc, endpoints: s.Endpoints.Get(svc.Key), cluster: v.Cluster, network: v.Network, families: v.families,
		}
	}
	return serviceName{service: svc, cluster: v.Cluster, families: v.families}
}

// Join returns the table. Its encoding is the concatenation of its encoded entries.
func (v View) Join(e *xdswire.Encoder, pieces *xdswire.List) *xdswire.Resource {
	entries := make([][]byte, 0, pieces.Len())
	for p := range pieces.All {
		entries = append(entries, p.Message())
	}
	return e.Raw(xdswire.NameTableType, nameTable, entries...)
}

// serviceName generates the entry of a service with addresses.
type serviceName struct {
	service  *snapshot.MeshService
	cluster  mesh.ClusterID
	families proxy.Families
}

func (u serviceName) Type() string { return xdswire.NameTableType }

func (u serviceName) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var ips []netip.Addr
	if in := u.service.For(u.cluster); in != nil {
		ips = ofFamilies(in.VIPs, u.families)
	}
	if len(ips) == 0 {
		ips = ofFamilies(u.service.Allocated, u.families)
	}
	if len(ips) == 0 {
		return nil, nil
	}
	return nameEntry(enc, u.service, "", ips), nil
}

// headlessNames generates the entries of a headless service: one with the addresses of
// all its pods, and one for each pod with a host name, as in a StatefulSet. As in the
// DNS of Kubernetes, unhealthy pods are missing. So are pods in other networks, because a
// gateway cannot take their place here.
type headlessNames struct {
	service   *snapshot.MeshService
	endpoints *snapshot.Endpoints
	cluster   mesh.ClusterID
	network   mesh.NetworkID
	families  proxy.Families
}

func (u headlessNames) Type() string { return xdswire.NameTableType }

func (u headlessNames) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	if u.endpoints == nil {
		return nil, nil
	}
	var all []netip.Addr
	pods := make(map[string][2][]netip.Addr) // by host name: in other clusters, in the proxy's cluster
	for _, list := range u.endpoints.ByPort {
		for i := range list {
			e := &list[i]
			if e.Health != snapshot.Healthy || !endpoints.HeadlessReaches(u.service, e, u.cluster, u.network) {
				continue
			}
			all = append(all, e.Address)
			if e.Hostname != "" {
				of := pods[e.Hostname]
				own := 0
				if e.Cluster == u.cluster {
					own = 1
				}
				of[own] = append(of[own], e.Address)
				pods[e.Hostname] = of
			}
		}
	}
	all = ofFamilies(all, u.families)
	if len(all) == 0 {
		return nil, nil
	}
	out := nameEntry(enc, u.service, "", all)
	for pod, of := range pods {
		ips := of[1] // a pod in the proxy's cluster hides pods of its name in other clusters
		if len(ips) == 0 {
			ips = of[0]
		}
		if ips = ofFamilies(ips, u.families); len(ips) > 0 {
			out = append(out, nameEntry(enc, u.service, pod+".", ips)...)
		}
	}
	return out, nil
}

// ofFamilies returns the addresses of these IP versions, sorted, each once. The caller must not
// change them.
func ofFamilies(ips []netip.Addr, f proxy.Families) []netip.Addr {
	if len(ips) == 1 && proxy.FamilyOf(ips[0])&f != 0 {
		return ips
	}
	ips = slices.DeleteFunc(slices.Clone(ips), func(ip netip.Addr) bool { return proxy.FamilyOf(ip)&f == 0 })
	slices.SortFunc(ips, netip.Addr.Compare)
	return slices.Compact(ips)
}

// Field numbers of istio.networking.nds.v1.NameTable and its parts. No module that this
// one may import has the message.
const (
	fieldTable     = 1 // of NameTable: a map
	fieldIPs       = 1 // of NameInfo
	fieldRegistry  = 2
	fieldShortName = 3
	fieldNamespace = 4
)

// The registries of services. Agents find only the services of Kubernetes by short names.
const (
	kubernetes = "Kubernetes"
	external   = "External"
)

// nameEntry returns a part of the table: one entry, encoded as a field of the table. It is for
// a service or, with the prefix "<pod>.", for a pod of it.
func nameEntry(enc *xdswire.Encoder, svc *snapshot.MeshService, prefix string, ips []netip.Addr) []*xdswire.Resource {
	registry, host, short := kubernetes, prefix+svc.Host, prefix+svc.Name
	if svc.Entry || svc.Imported {
		registry, short = external, host
	}
	var room [256]byte // enough for most services
	info := room[:0]
	for _, ip := range ips {
		var text [48]byte
		info = protowire.AppendBytes(wire.AppendField(info, fieldIPs), ip.AppendTo(text[:0]))
	}
	info = protowire.AppendString(wire.AppendField(info, fieldRegistry), registry)
	info = protowire.AppendString(wire.AppendField(info, fieldShortName), short)
	info = protowire.AppendString(wire.AppendField(info, fieldNamespace), svc.Namespace)
	size := protowire.SizeTag(wire.FieldKey) + protowire.SizeBytes(len(host)) + protowire.SizeTag(wire.FieldValue) + protowire.SizeBytes(len(info))
	var space [512]byte // for the entry
	entry := protowire.AppendVarint(wire.AppendField(space[:0], fieldTable), uint64(size))
	entry = protowire.AppendString(wire.AppendField(entry, wire.FieldKey), host)
	return enc.Piece(xdswire.NameTableType, host, protowire.AppendBytes(wire.AppendField(entry, wire.FieldValue), info))
}
