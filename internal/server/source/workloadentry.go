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

var workloadEntryKind = istioKind(kind{
	group: groupNetworking, name: "WorkloadEntry", plural: "workloadentries", versions: istioVersions,
	support: fields.Partly, meaning: "an endpoint of the Services and ServiceEntries that select it; an entry with a host name is an endpoint only of ServiceEntries with `DNS` or `DNS_ROUND_ROBIN`",
	resources: []Resource{{Custom: true, Optional: true, Without: "workloads outside of Kubernetes are no endpoints"}},
}, (*conversion).workloadEntry)

// Status is the part of an Istio object's status that this package reads.
type Status struct {
	Conditions []struct {
		Type   string `json:"type"`
		Status string `json:"status"`
	} `json:"conditions"`
	// Addresses holds the addresses allocated to the hosts of a ServiceEntry.
	Addresses []struct {
		Value string `json:"value"`
		Host  string `json:"host"`
	} `json:"addresses"`
}

func (c *Status) of(typ string) snapshot.Condition {
	for _, is := range c.Conditions {
		if is.Type != typ {
			continue
		}
		switch strings.ToLower(is.Status) {
		case "true":
			return snapshot.True
		case "false":
			return snapshot.False
		}
	}
	return snapshot.Unknown
}

// workloadEntry delivers a workload that Services may select.
func (c *conversion) workloadEntry(spec *networkingv1alpha3.WorkloadEntry) *fields.Error {
	if fault := checkWorkloadEntry(spec); fault != nil {
		return fault
	}
	if spec.Address == "" {
		c.warn(fields.Faultf("spec.address", "is missing: a workload behind the gateways of its network is no endpoint, so the entry has no effect"))
		return nil
	}
	if isPath(spec.Address) {
		c.warn(fields.WithoutEffect("spec.address", "only an endpoint that a ServiceEntry lists may be a path"))
		return nil
	}
	address, target := endpointAddress(spec.Address)
	if fault := targetFault(target); fault != nil {
		return fault
	}
	if why := c.refusedHost(spec.Address); why != "" {
		c.warn(fields.Faultf("spec.address", "%s %s: it is not used", spec.Address, why))
		return nil
	}
	w := &snapshot.WorkloadEntry{
		Target:  target,
		Network: mesh.NetworkID(spec.Network), Locality: mesh.ParseLocality(spec.Locality), Weight: spec.Weight,
		HealthChecked: snapshot.HealthChecked(c.istio.Annotations),
		Health:        c.istio.Status.of(mesh.ConditionHealthy),
	}
	if w.Weight > mesh.MaxWeight {
		c.warn(fields.Faultf("spec.weight", "%d counts as %d, the most there is", w.Weight, mesh.MaxWeight))
		w.Weight = mesh.MaxWeight
	}
	if w.HealthChecked && spec.ServiceAccount == "" {
		c.warn(fields.Faultf("spec.serviceAccount", "is missing: proxies cannot report the health of the entry, only its status counts"))
	}
	w.Meta, w.External = c.meta, true
	w.Labels = entryLabels(spec, c.meta.Labels)
	w.IPs = address
	w.ServiceAccount = spec.ServiceAccount
	w.Workload = w.Labels[mesh.LabelWorkloadName]
	if w.Workload == "" {
		w.Workload = c.meta.Name
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Ports)) {
		w.Ports = append(w.Ports, snapshot.PodPort{Name: name, Number: spec.Ports[name]})
	}
	c.object = w
	return nil
}

// entryLabels returns the labels of the spec, overridden by the labels of the object.
// An entry with a service account has a proxy unless a label states otherwise.
func entryLabels(spec *networkingv1alpha3.WorkloadEntry, object map[string]string) map[string]string {
	labels := make(map[string]string, len(spec.Labels)+len(object)+1)
	if spec.ServiceAccount != "" {
		labels[mesh.LabelTLSMode] = mesh.TLSModeIstio
	}
	maps.Copy(labels, spec.Labels)
	maps.Copy(labels, object)
	return labels
}

// endpointAddress returns the IP address of an endpoint, or the host name that proxies
// resolve.
func endpointAddress(text string) (ips []netip.Addr, target string) {
	if ip, err := fields.ParseAddr(text); err == nil {
		return []netip.Addr{ip}, ""
	}
	return nil, strings.ToLower(strings.TrimSuffix(text, "."))
}

// targetFault checks the host name of an endpoint, if it has one.
func targetFault(target string) *fields.Error {
	if target == "" || mesh.IsDNSName(target) {
		return nil
	}
	return fields.Faultf("address", "%q is neither a host name nor an IP address", target)
}

func checkWorkloadEntry(spec *networkingv1alpha3.WorkloadEntry) *fields.Error {
	var faults *fields.Error
	if spec.Address == "" && spec.Network == "" {
		faults = fields.Faultf("address", "is missing")
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Ports)) {
		field := fmt.Sprintf("ports[%s]", name)
		switch {
		case name == "":
			faults = faults.And(fields.Faultf("ports", "has a port without a name"))
		case !fields.IsPort(spec.Ports[name]):
			faults = faults.And(fields.Faultf(field, "%d is not a port: want 1 to 65535", spec.Ports[name]))
		}
	}
	faults = faults.And(fields.LabelsFault("labels", spec.Labels))
	if strings.Count(spec.Locality, "/") > 2 {
		faults = faults.And(fields.Faultf("locality", "%q has more than region/zone/subzone", spec.Locality))
	}
	if spec.ServiceAccount != "" && !mesh.IsDNSName(spec.ServiceAccount) {
		faults = faults.And(fields.Faultf("serviceAccount", "%q is not a DNS name", spec.ServiceAccount))
	}
	return faults
}
