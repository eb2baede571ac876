package source

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

var serviceEntryKind = istioKind(kind{
	group: groupNetworking, name: "ServiceEntry", plural: "serviceentries", versions: istioVersions,
	support: fields.Partly, meaning: "see [its fields](#serviceentry)", fields: serviceEntryFields,
}, (*conversion).serviceEntry)

var serviceEntryFields = []fields.Field{
	{Path: "hosts", Support: fields.Works},
	{Path: "addresses", Support: fields.Works, Meaning: "a host without addresses gets [addresses](#serviceentry), to which the DNS proxy of an agent resolves the host"},
	{Path: "ports", Support: fields.Works, Meaning: "proxies do not forward UDP"},
	{Path: "location", Support: fields.Works},
	{Path: "resolution", Support: fields.Partly, Meaning: "a ServiceEntry with `DYNAMIC_DNS` has no effect"},
	{Path: "endpoints", Support: fields.Partly, Meaning: "`network` has no effect with resolution by DNS; a path (`unix://`) must be below `--socket-dir`; objects in a Kubernetes API cannot use one"},
	{Path: "workloadSelector", Support: fields.Works, Meaning: "it selects pods and WorkloadEntries of the cluster of the control plane; with `resolution: NONE` it has no effect, and is reported"},
	{Path: "exportTo", Support: fields.Works},
	{Path: "subjectAltNames", Support: fields.Works, Meaning: "the names that clients accept in the certificates of the servers: with mTLS of the mesh, in addition to the identities of the endpoints; with TLS of a DestinationRule, if the rule has no `subjectAltNames`"},
}

// labelAllocate disables the allocation of addresses if it is false.
const labelAllocate = "networking.istio.io/enable-autoallocate-ip"

// serviceEntry delivers a ServiceEntry.
func (c *conversion) serviceEntry(spec *networkingv1alpha3.ServiceEntry) *fields.Error {
	if fault := checkServiceEntry(spec); fault != nil {
		return fault
	}
	if c.Remote { // the analysis of its own control plane has the warnings
		before := c.warnings
		defer func() { c.warnings = before }()
	}
	e := &snapshot.ServiceEntry{
		Meta: c.meta, External: spec.Location == networkingv1alpha3.ServiceEntry_MESH_EXTERNAL,
		Selector: spec.WorkloadSelector.GetLabels(), SubjectAltNames: spec.SubjectAltNames, ExportTo: spec.ExportTo,
		Distribution: c.distribution(nil, c.istio.Annotations),
	}
	switch spec.Resolution {
	case networkingv1alpha3.ServiceEntry_NONE:
		e.Resolution = snapshot.ByDestination
	case networkingv1alpha3.ServiceEntry_STATIC:
		e.Resolution = snapshot.ByEndpoints
	case networkingv1alpha3.ServiceEntry_DNS:
		e.Resolution = snapshot.ByDNS
	case networkingv1alpha3.ServiceEntry_DNS_ROUND_ROBIN:
		e.Resolution = snapshot.ByFirstOfDNS
	default:
		c.warn(fields.Faultf("spec.resolution", "%s is not supported: the ServiceEntry has no effect", spec.Resolution))
		return nil
	}
	if spec.WorkloadSelector != nil && e.Resolution == snapshot.ByDestination {
		c.warn(fields.WithoutEffect("spec.workloadSelector", "with resolution NONE, proxies connect to the addresses that clients choose"))
	}
	hosts := make(map[string]bool, len(spec.Hosts))
	for i, host := range spec.Hosts {
		if why := c.refusedHost(host); why != "" && e.Resolution.DNS() && len(spec.Endpoints) == 0 {
			// Proxies would resolve it.
			c.warn(fields.Faultf(fields.At("spec.hosts", i), "%s %s: it is not used", host, why))
		} else if host = mesh.CanonicalHost(host); !hosts[host] {
			e.Hosts, hosts[host] = append(e.Hosts, host), true
		}
	}
	if len(e.Hosts) == 0 {
		return nil
	}
	for _, p := range spec.Ports {
		protocol, _ := mesh.ParseProtocol(p.Protocol)
		e.Ports = append(e.Ports, snapshot.ServicePort{Name: p.Name, Number: p.Number, Protocol: protocol, Target: p.TargetPort})
	}
	if fault := c.entryAddresses(e, spec.Addresses); fault != nil {
		return fault
	}
	for i, endpoint := range spec.Endpoints {
		c.entryEndpoint(e, fields.At("spec.endpoints", i), endpoint)
	}
	if e.Resolution.DNS() && len(e.Endpoints) == 0 && len(spec.Endpoints) > 0 {
		// Without endpoints proxies would resolve the hosts themselves.
		c.warn(fields.Faultf("spec.endpoints", "no endpoint is used: the ServiceEntry has no effect"))
		return nil
	}
	e.AnyAddress = len(spec.Addresses) == 0
	e.Allocate = e.AnyAddress && e.Resolution != snapshot.ByDestination && c.meta.Labels[labelAllocate] != "false"
	for _, a := range c.istio.Status.Addresses {
		if ip, err := fields.ParseAddr(a.Value); err == nil && c.refused(ip) == "" && e.Allocate {
			if e.Allocated == nil {
				e.Allocated = make(map[string][]netip.Addr)
			}
			host := mesh.CanonicalHost(a.Host)
			e.Allocated[host] = append(e.Allocated[host], ip)
		}
	}
	c.object = e
	return nil
}

func (c *conversion) entryAddresses(e *snapshot.ServiceEntry, addresses []string) *fields.Error {
	for i, text := range addresses {
		prefix, fault := entryAddress(fields.At("addresses", i), text)
		if fault != nil {
			return fault
		}
		if why := c.refused(prefix.Addr()); why != "" && (prefix.IsSingleIP() || !prefix.Addr().IsUnspecified()) {
			c.warn(fields.Faultf(fields.At("spec.addresses", i), "%s %s: it is not used", text, why))
			continue
		}
		switch {
		case !prefix.IsSingleIP():
			e.CIDRs = append(e.CIDRs, prefix)
		case !slices.Contains(e.VIPs, prefix.Addr()):
			e.VIPs = append(e.VIPs, prefix.Addr())
		}
	}
	if len(addresses) > 0 && len(e.VIPs)+len(e.CIDRs) == 0 {
		c.dropOpaquePorts(e)
	}
	return nil
}

// dropOpaquePorts removes the ports whose connections only an address can tell from others: without
// one, they would be all connections to the port.
func (c *conversion) dropOpaquePorts(e *snapshot.ServiceEntry) {
	e.Ports = slices.DeleteFunc(e.Ports, func(p snapshot.ServicePort) bool {
		byHost := p.Protocol.IsHTTP() || p.Protocol == mesh.TLS || p.Protocol == mesh.HTTPS || p.Protocol == mesh.UDP
		if !byHost {
			c.warn(fields.Faultf("spec.addresses", "none is used: port %d has no effect, because its connections do not name their host", p.Number))
		}
		return !byHost
	})
}

// entryAddress parses an address or an address range.
func entryAddress(field, text string) (netip.Prefix, *fields.Error) {
	if !strings.Contains(text, "/") {
		ip, err := fields.ParseAddr(text)
		if err != nil {
			return netip.Prefix{}, &fields.Error{Field: field, Err: err}
		}
		return netip.PrefixFrom(ip, ip.BitLen()), nil
	}
	prefix, err := netip.ParsePrefix(text)
	if err != nil || prefix.Addr().Is4In6() {
		return netip.Prefix{}, fields.Faultf(field, "%q is neither an IP address nor an address range", text)
	}
	return prefix.Masked(), nil
}

// entryEndpoint adds an endpoint that proxies can use.
func (c *conversion) entryEndpoint(e *snapshot.ServiceEntry, field string, spec *networkingv1alpha3.WorkloadEntry) {
	why := c.refusedHost(spec.Address)
	if isPath(spec.Address) {
		why = c.refusedSocket(spec.Address)
	}
	if why != "" {
		c.warn(fields.Faultf(field+".address", "%s %s: it is not used", spec.Address, why))
		return
	}
	endpoint := snapshot.EntryEndpoint{
		Network: mesh.NetworkID(spec.Network), Locality: mesh.ParseLocality(spec.Locality), Weight: min(spec.Weight, mesh.MaxWeight),
	}
	if spec.Weight > mesh.MaxWeight {
		c.warn(fields.Faultf(field+".weight", "%d counts as %d, the most there is", spec.Weight, mesh.MaxWeight))
	}
	if e.Resolution.DNS() && spec.Network != "" {
		endpoint.Network = ""
		c.warn(fields.WithoutEffect(field+".network", "proxies connect to the addresses of the name"))
	}
	w := &endpoint.Workload
	w.Meta = snapshot.Meta{Cluster: c.meta.Cluster, Namespace: c.meta.Namespace, Name: c.meta.Name, Labels: entryLabels(spec, nil)}
	w.External, w.ServiceAccount = true, spec.ServiceAccount
	w.Workload = w.Labels[mesh.LabelWorkloadName]
	if w.Workload == "" {
		w.Workload = c.meta.Name
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Ports)) {
		w.Ports = append(w.Ports, snapshot.PodPort{Name: name, Number: spec.Ports[name]})
	}
	if endpoint.Target = spec.Address; !isPath(spec.Address) {
		w.IPs, endpoint.Target = endpointAddress(spec.Address)
	}
	e.Endpoints = append(e.Endpoints, endpoint)
}

// isPath reports whether an address is the path of a socket.
func isPath(address string) bool { return snapshot.IsUnixSocket(address) }

func checkServiceEntry(s *networkingv1alpha3.ServiceEntry) *fields.Error {
	var hosts *fields.Error
	if len(s.Hosts) == 0 {
		hosts = fields.Faultf("hosts", "is empty")
	}
	return fields.AllFaults(
		hosts,
		fields.EachText("hosts", s.Hosts, func(field, host string) *fields.Error {
			if host == "*" {
				return fields.Faultf(field, "\"*\" would take every host: name a domain")
			}
			return fields.HostFault(field, host)
		}),
		fields.EachText("addresses", s.Addresses, func(field, text string) *fields.Error {
			prefix, fault := entryAddress(field, text)
			if fault == nil && !prefix.IsSingleIP() && s.Resolution != networkingv1alpha3.ServiceEntry_NONE && s.Resolution != networkingv1alpha3.ServiceEntry_STATIC {
				fault = fields.Faultf(field, "%q is an address range, which resolution %s does not allow", text, s.Resolution)
			}
			return fault
		}),
		entryPortsFault(s.Ports),
		resolutionFault(s),
		entrySelectorFault(s),
		fields.EachText("exportTo", s.ExportTo, fields.ExportToFault),
	)
}

func entrySelectorFault(s *networkingv1alpha3.ServiceEntry) *fields.Error {
	if s.WorkloadSelector != nil && len(s.Endpoints) > 0 {
		return fields.Faultf("workloadSelector", "does not go with endpoints: use one of them")
	}
	return fields.LabelsFault("workloadSelector.labels", s.GetWorkloadSelector().GetLabels())
}

func entryPortsFault(ports []*networkingv1alpha3.ServicePort) *fields.Error {
	names, numbers := map[string]bool{}, map[uint32]bool{}
	return fields.Each("ports", ports, func(field string, p *networkingv1alpha3.ServicePort) *fields.Error {
		faults := fields.PortFault(field, p.Number, p.Protocol)
		if fields.IsPort(p.Number) && numbers[p.Number] {
			faults = fields.Faultf(field+".number", "%d is given twice", p.Number).And(faults)
		}
		switch {
		case p.Name == "":
			faults = faults.And(fields.Faultf(field+".name", "is missing"))
		case names[p.Name]:
			faults = faults.And(fields.Faultf(field+".name", "%q is given twice", p.Name))
		}
		if p.TargetPort != 0 && !fields.IsPort(p.TargetPort) {
			faults = faults.And(fields.Faultf(field+".targetPort", "%d is not a port: want 1 to 65535", p.TargetPort))
		}
		names[p.Name], numbers[p.Number] = true, true
		return faults
	})
}

func resolutionFault(s *networkingv1alpha3.ServiceEntry) *fields.Error {
	byDNS := s.Resolution == networkingv1alpha3.ServiceEntry_DNS || s.Resolution == networkingv1alpha3.ServiceEntry_DNS_ROUND_ROBIN
	switch {
	case s.Resolution == networkingv1alpha3.ServiceEntry_NONE && len(s.Endpoints) > 0:
		return fields.Faultf("endpoints", "needs a resolution other than NONE")
	case s.Resolution == networkingv1alpha3.ServiceEntry_DNS_ROUND_ROBIN && len(s.Endpoints) > 1:
		return fields.Faultf("endpoints", "has more than one entry, which resolution DNS_ROUND_ROBIN does not allow")
	case byDNS && len(s.Endpoints) == 0 && s.WorkloadSelector == nil:
		return fields.EachText("hosts", s.Hosts, func(field, host string) *fields.Error {
			if strings.HasPrefix(host, "*.") {
				return fields.Faultf(field, "%q stands for many names, which resolution %s does not allow without endpoints", host, s.Resolution)
			}
			return nil
		})
	}
	return fields.Each("endpoints", s.Endpoints, func(field string, e *networkingv1alpha3.WorkloadEntry) *fields.Error {
		return fields.Under(field, entryEndpointFault(s, e, byDNS))
	})
}

func entryEndpointFault(s *networkingv1alpha3.ServiceEntry, e *networkingv1alpha3.WorkloadEntry, byDNS bool) *fields.Error {
	if fault := checkWorkloadEntry(e); fault != nil {
		return fault
	}
	static := s.Resolution == networkingv1alpha3.ServiceEntry_STATIC
	_, target := endpointAddress(e.Address)
	switch {
	case static && isPath(e.Address):
		if len(e.Ports) > 0 {
			return fields.Faultf("ports", "does not go with a path")
		}
		return nil
	case static && target != "":
		return fields.Faultf("address", "%q is not an IP address, which resolution STATIC needs", e.Address)
	case byDNS:
		if e.Address == "" {
			return fields.Faultf("address", "is missing, which resolution %s needs", s.Resolution)
		}
		if fault := targetFault(target); fault != nil {
			return fault
		}
	}
	var faults *fields.Error
	for _, name := range slices.Sorted(maps.Keys(e.Ports)) {
		if !slices.ContainsFunc(s.Ports, func(p *networkingv1alpha3.ServicePort) bool { return p.GetName() == name }) {
			faults = faults.And(fields.Faultf(fmt.Sprintf("ports[%s]", name), "is not the name of a port of the ServiceEntry"))
		}
	}
	return faults
}
