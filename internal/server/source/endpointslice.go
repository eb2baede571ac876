package source

import (
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

var endpointSliceKind = kubeKind(kind{
	group: discoveryv1.GroupName, name: "EndpointSlice", plural: "endpointslices", versions: v1,
	resources: []Resource{{Without: "services have no endpoints"}},
}, (*conversion).endpointSlice)

func (c *conversion) endpointSlice(o *discoveryv1.EndpointSlice) *fields.Error {
	service := o.Labels[mesh.LabelServiceName]
	if service == "" || o.Labels[mesh.LabelMCSServiceName] != "" || o.AddressType == discoveryv1.AddressTypeFQDN {
		return nil // of no service, imported from another cluster, or names
	}
	if !mesh.IsDNSLabel(service) {
		return fields.Faultf("metadata.labels["+mesh.LabelServiceName+"]", "%q is not a DNS label", service)
	}
	s := &snapshot.EndpointSlice{Meta: c.meta, Service: service}
	for i, p := range o.Ports {
		if p.Port == nil {
			continue // "all ports" matches no port of a service
		}
		if !fields.IsPort(*p.Port) {
			return fields.Faultf(fmt.Sprintf("ports[%d].port", i), "%d is not a port: want 1 to 65535", *p.Port)
		}
		port := snapshot.SlicePort{Number: uint32(*p.Port)}
		if p.Name != nil {
			port.Name = *p.Name
		}
		s.Ports = append(s.Ports, port)
	}
	for i, e := range o.Endpoints {
		addresses, fault := c.addresses(fmt.Sprintf("endpoints[%d].addresses", i), e.Addresses)
		if fault != nil {
			return fault
		}
		if len(addresses) == 0 {
			continue
		}
		out := snapshot.SliceEndpoint{Addresses: addresses, Node: text(e.NodeName), Zone: text(e.Zone)}
		// The API defines the defaults of missing conditions.
		out.Ready = e.Conditions.Ready == nil || *e.Conditions.Ready
		out.Terminating = e.Conditions.Terminating != nil && *e.Conditions.Terminating
		if out.Hostname = text(e.Hostname); out.Hostname != "" && !mesh.IsDNSLabel(out.Hostname) {
			return fields.Faultf(fmt.Sprintf("endpoints[%d].hostname", i), "%q is not a DNS label", out.Hostname)
		}
		if ref := e.TargetRef; ref != nil && ref.Kind == "Pod" && (ref.Namespace == "" || ref.Namespace == c.meta.Namespace) {
			out.Pod = ref.Name
		}
		s.Endpoints = append(s.Endpoints, out)
	}
	c.object = s
	return nil
}

func text(p *string) string {
	if p == nil {
		return ""
	}
	return *p
}
