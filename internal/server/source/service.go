package source

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

var serviceKind = kubeKind(kind{
	name: "Service", plural: "services", versions: v1,
	resources: []Resource{{Without: "the cluster has no services"}},
}, (*conversion).service)

func (c *conversion) service(o *corev1.Service) *fields.Error {
	s := &snapshot.Service{Meta: c.meta, Selector: o.Spec.Selector}
	if policy := o.Spec.InternalTrafficPolicy; policy != nil {
		s.NodeLocal = *policy == corev1.ServiceInternalTrafficPolicyLocal
	}
	s.Sticky = o.Spec.SessionAffinity == corev1.ServiceAffinityClientIP
	if o.Spec.Type == corev1.ServiceTypeExternalName {
		s.ExternalName = strings.TrimSuffix(o.Spec.ExternalName, ".")
		if fault := fields.HostFault("spec.externalName", s.ExternalName); fault != nil {
			return fault
		}
		if why := localHost(s.ExternalName); why != "" {
			c.warn(fields.Faultf("spec.externalName", "%s %s: proxies do not route calls there", s.ExternalName, why))
		}
	} else if fault := c.clusterIPs(s, o); fault != nil {
		return fault
	}
	var fault *fields.Error
	if s.Ports, fault = servicePorts(o.Spec.Ports); fault != nil {
		return fault
	}
	for i, p := range o.Spec.Ports {
		if p.TargetPort.Type == intstr.Int {
			c.checkProxyPort(fmt.Sprintf("spec.ports[%d].targetPort", i), uint32(cmp.Or(p.TargetPort.IntVal, p.Port)))
		}
	}
	if fault = c.external(s, o); fault != nil {
		return fault
	}
	if s.NodePorts, fault = c.nodePorts(o); fault != nil {
		return fault
	}
	if s.ExportTo, fault = fields.ExportTo(o.Annotations[mesh.AnnotationExportTo]); fault != nil {
		return fault
	}
	s.Distribution = c.distribution(o.Spec.TrafficDistribution, o.Annotations)
	c.object = s
	return nil
}

// distribution returns the preference for near endpoints in an annotation of an object, unless its
// field, which may be nil, has one.
func (c *conversion) distribution(field *string, annotations map[string]string) snapshot.Distribution {
	if field != nil {
		if d := c.parseDistribution("spec.trafficDistribution", *field); d != snapshot.NoDistribution {
			return d
		}
	}
	return c.parseDistribution("metadata.annotations["+mesh.AnnotationDistribution+"]", annotations[mesh.AnnotationDistribution])
}

func (c *conversion) parseDistribution(field, value string) snapshot.Distribution {
	switch strings.ToLower(value) {
	case "":
	case "any":
		return snapshot.AnyPlace
	case "preferclose", "prefersamezone": // Kubernetes renamed the first one to the second one
		return snapshot.PreferSameZone
	case "prefersamenode":
		return snapshot.PreferSameNode
	default:
		c.warn(fields.WithoutEffect(field, fmt.Sprintf("%q is none of PreferClose, PreferSameZone, PreferSameNode and Any", value)))
	}
	return snapshot.NoDistribution
}

func (c *conversion) clusterIPs(s *snapshot.Service, o *corev1.Service) *fields.Error {
	texts, field := o.Spec.ClusterIPs, "spec.clusterIPs"
	if len(texts) == 0 && o.Spec.ClusterIP != "" {
		texts, field = []string{o.Spec.ClusterIP}, "spec.clusterIP"
	}
	if slices.Equal(texts, []string{corev1.ClusterIPNone}) {
		s.Headless = true
		return nil
	}
	for i, text := range texts {
		vip, err := fields.ParseAddr(text)
		if err != nil {
			return &fields.Error{Field: fields.ItemOf(field, i), Err: err}
		}
		if why := c.refused(vip); why != "" {
			c.warn(fields.Faultf(fields.ItemOf(field, i), "%s %s: it is not used", vip, why))
			continue
		}
		s.VIPs = append(s.VIPs, vip)
	}
	return nil
}

func servicePorts(in []corev1.ServicePort) ([]snapshot.ServicePort, *fields.Error) {
	var ports []snapshot.ServicePort
	names := map[string]bool{}
	for i, p := range in {
		field := fmt.Sprintf("spec.ports[%d]", i)
		switch {
		case !fields.IsPort(p.Port):
			return nil, fields.Faultf(field+".port", "%d is not a port: want 1 to 65535", p.Port)
		case p.Name == "" && len(in) > 1:
			return nil, fields.Faultf(field+".name", "is missing: a service of several ports names each")
		case names[p.Name]:
			return nil, fields.Faultf(field+".name", "%q is given twice", p.Name)
		}
		names[p.Name] = true
		if p.Protocol == corev1.ProtocolSCTP {
			continue // proxies do not support it, and a TCP port may have the same number
		}
		var app string
		if p.AppProtocol != nil {
			app = *p.AppProtocol
		}
		out := snapshot.ServicePort{
			Name: p.Name, Number: uint32(p.Port),
			Protocol: mesh.ServiceProtocol(string(p.Protocol), app, p.Name, uint32(p.Port)),
		}
		switch {
		case p.TargetPort.Type == intstr.String && p.TargetPort.StrVal != "":
			out.TargetName = p.TargetPort.StrVal
		case p.TargetPort.IntVal == 0:
			out.Target = out.Number
		case !fields.IsPort(p.TargetPort.IntVal):
			return nil, fields.Faultf(field+".targetPort", "%d is not a port: want 1 to 65535", p.TargetPort.IntVal)
		default:
			out.Target = uint32(p.TargetPort.IntVal)
		}
		if p.NodePort != 0 && !fields.IsPort(p.NodePort) {
			return nil, fields.Faultf(field+".nodePort", "%d is not a port: want 1 to 65535", p.NodePort)
		}
		ports = append(ports, out)
	}
	return ports, nil
}

func (c *conversion) external(s *snapshot.Service, o *corev1.Service) *fields.Error {
	add := func(field, address string) *fields.Error {
		a, err := fields.ParseAddr(address)
		if err == nil {
			address = a.String()
		} else if fault := fields.HostFault(field, address); fault != nil {
			return fault
		}
		if why := c.refusedGateway(address); why != "" {
			c.warn(fields.Faultf(field, "%s %s: it is not used", address, why))
		} else if !slices.Contains(s.External, address) {
			s.External = append(s.External, address)
		}
		return nil
	}
	for i, in := range o.Status.LoadBalancer.Ingress {
		field := fmt.Sprintf("status.loadBalancer.ingress[%d]", i)
		if in.IP != "" {
			if fault := add(field+".ip", in.IP); fault != nil {
				return fault
			}
		}
		if in.Hostname != "" {
			if fault := add(field+".hostname", in.Hostname); fault != nil {
				return fault
			}
		}
	}
	for i, ip := range o.Spec.ExternalIPs {
		if fault := add(fmt.Sprintf("spec.externalIPs[%d]", i), ip); fault != nil {
			return fault
		}
	}
	return nil
}

// nodePorts returns how clients reach a Service at nodes, or nil if they do not.
func (c *conversion) nodePorts(o *corev1.Service) (*snapshot.NodePorts, *fields.Error) {
	text, ok := o.Annotations[mesh.AnnotationNodeSelector]
	if !ok {
		return nil, nil
	}
	const field = "metadata.annotations[" + mesh.AnnotationNodeSelector + "]"
	if o.Spec.Type != corev1.ServiceTypeNodePort {
		c.warn(fields.WithoutEffect(field, "the type of the Service is not NodePort"))
		return nil, nil
	}
	out := &snapshot.NodePorts{Ports: make(map[uint32]uint32)}
	if err := json.Unmarshal([]byte(text), &out.Selector); err != nil {
		return nil, fields.Faultf(field, "%q is no JSON object of labels, such as {\"kubernetes.io/hostname\": \"node-1\"}", text)
	}
	for _, p := range o.Spec.Ports {
		if p.NodePort != 0 && p.Protocol != corev1.ProtocolUDP && p.Protocol != corev1.ProtocolSCTP {
			out.Ports[uint32(p.Port)] = uint32(p.NodePort)
		}
	}
	return out, nil
}
