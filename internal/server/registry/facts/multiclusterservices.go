package facts

import (
	"cmp"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// exported returns the Services behind a host of clusterset.local: those of the clusters that
// export them. There are none unless some cluster imports the service.
func (t *Tables) exported(r *derive.Reads, name, namespace, host string) []*snapshot.Service {
	if t.importsOf.Len(r, host) == 0 {
		return nil
	}
	var out []*snapshot.Service
	for _, svc := range t.servicesOf.Lookup(r, mesh.ServiceHost(name, namespace, mesh.DefaultDomain)) {
		if _, ok := t.exports.Get(r, ObjectKey{svc.Cluster, namespace, name}); ok && svc.ExternalName == "" {
			out = append(out, svc)
		}
	}
	return out
}

// importedParts returns the parts of a service of clusterset.local: one for each cluster that
// imports it, with the addresses there.
func (t *Tables) importedParts(r *derive.Reads, host string, d definition) []snapshot.ClusterService {
	var out []snapshot.ClusterService
	for _, i := range t.importsOf.Lookup(r, host) {
		part := snapshot.ClusterService{Cluster: i.Cluster, VIPs: i.VIPs, Ports: d.services[0].Ports, ExportTo: d.exportTo}
		if at := slices.IndexFunc(d.services, func(s *snapshot.Service) bool { return s.Cluster == i.Cluster }); at >= 0 {
			part.ExportTo = t.exportTo(r, i.Cluster, d.services[at].ExportTo)
		}
		out = append(out, part)
	}
	slices.SortFunc(out, func(x, y snapshot.ClusterService) int { return cmp.Compare(x.Cluster, y.Cluster) })
	return out
}
