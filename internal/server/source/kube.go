package source

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Labels of contracts that only conversion reads.
const (
	labelWorkloadName    = "service.istio.io/workload-name"
	labelPodTemplateHash = "pod-template-hash"
)

func nodeLocality(labels map[string]string) mesh.Locality {
	first := func(keys ...string) string {
		for _, k := range keys {
			if v := labels[k]; v != "" {
				return v
			}
		}
		return ""
	}
	return mesh.Locality{
		Region:  first(mesh.LabelRegion, corev1.LabelFailureDomainBetaRegion),
		Zone:    first(mesh.LabelZone, corev1.LabelFailureDomainBetaZone),
		Subzone: labels[mesh.LabelSubzone],
	}
}

func (c *conversion) pod(o *corev1.Pod) *FieldError {
	if o.Status.Phase == corev1.PodFailed || o.Status.Phase == corev1.PodSucceeded {
		return nil // its address may belong to another pod by now
	}
	var texts []string
	for _, ip := range o.Status.PodIPs {
		texts = append(texts, ip.IP)
	}
	field := "status.podIPs"
	if len(texts) == 0 && o.Status.PodIP != "" {
		texts, field = []string{o.Status.PodIP}, "status.podIP"
	}
	ips, fault := c.addresses(field, texts)
	if fault != nil || len(ips) == 0 {
		return fault
	}
	account := o.Spec.ServiceAccountName
	if account == "" {
		account = o.Spec.DeprecatedServiceAccount
	}
	if account == "" {
		account = "default"
	}
	if !mesh.IsDNSName(account) {
		return faultf("spec.serviceAccountName", "%q is not a DNS name", account)
	}
	c.object = &snapshot.Pod{
		Meta: c.meta, IPs: ips, Node: o.Spec.NodeName, ServiceAccount: account,
		Workload: workloadName(o), HostNetwork: o.Spec.HostNetwork, Ports: podPorts(o),
		Proxyless: proxyless(o.Annotations[mesh.AnnotationTemplates]),
	}
	return nil
}

// ReadsAnnotation reports whether Convert reads the annotation of a Pod or a
// Service. Sources need not keep others.
func ReadsAnnotation(key string) bool {
	return key == mesh.AnnotationTemplates || key == mesh.AnnotationExportTo
}

// proxyless reports whether one of the templates, joined by commas, is for
// applications whose gRPC needs no proxy.
func proxyless(templates string) bool {
	for t := range strings.SplitSeq(templates, ",") {
		if t = strings.TrimSpace(t); t == "grpc-agent" || t == "grpc-simple" {
			return true
		}
	}
	return false
}

// workloadName is the name that a person gave: of the Deployment rather than
// of its ReplicaSet.
func workloadName(o *corev1.Pod) string {
	if name := o.Labels[labelWorkloadName]; name != "" {
		return name
	}
	for _, owner := range o.OwnerReferences {
		if owner.Controller == nil || !*owner.Controller {
			continue
		}
		hash := o.Labels[labelPodTemplateHash]
		if deployment, ok := strings.CutSuffix(owner.Name, "-"+hash); ok && hash != "" && owner.Kind == "ReplicaSet" {
			return deployment
		}
		return owner.Name
	}
	return o.Name
}

func podPorts(o *corev1.Pod) []snapshot.PodPort {
	var ports []snapshot.PodPort
	add := func(containers []corev1.Container, always bool) {
		for _, container := range containers {
			sidecar := container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways
			if !always && !sidecar {
				continue
			}
			for _, p := range container.Ports {
				if p.Name != "" && isPort(p.ContainerPort) {
					ports = append(ports, snapshot.PodPort{Name: p.Name, Number: uint32(p.ContainerPort)})
				}
			}
		}
	}
	add(o.Spec.Containers, true)
	add(o.Spec.InitContainers, false)
	return ports
}

func (c *conversion) service(o *corev1.Service) *FieldError {
	s := &snapshot.Service{Meta: c.meta, Selector: o.Spec.Selector}
	if policy := o.Spec.InternalTrafficPolicy; policy != nil {
		s.NodeLocal = *policy == corev1.ServiceInternalTrafficPolicyLocal
	}
	if o.Spec.Type == corev1.ServiceTypeExternalName {
		s.ExternalName = strings.TrimSuffix(o.Spec.ExternalName, ".")
		if fault := hostFault("spec.externalName", s.ExternalName); fault != nil {
			return fault
		}
		if why := localName(s.ExternalName); why != "" {
			c.warn(faultf("spec.externalName", "%s %s: proxies do not route calls there", s.ExternalName, why))
		}
	} else if fault := c.clusterIPs(s, o); fault != nil {
		return fault
	}
	var fault *FieldError
	if s.Ports, fault = servicePorts(o.Spec.Ports); fault != nil {
		return fault
	}
	if fault = c.external(s, o); fault != nil {
		return fault
	}
	if s.ExportTo, fault = exportTo(o.Annotations[mesh.AnnotationExportTo]); fault != nil {
		return fault
	}
	c.object = s
	return nil
}

// localName says why a host name or address leads to no service, or "".
func localName(host string) string {
	name := strings.ToLower(host)
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return "is a loopback name"
	}
	if a, err := parseAddr(host); err == nil {
		if kind := mesh.AddressKindOf(a); kind != mesh.AddressOrdinary {
			return "is an address of the kind " + string(kind)
		}
	}
	return ""
}

func (c *conversion) clusterIPs(s *snapshot.Service, o *corev1.Service) *FieldError {
	texts, field := o.Spec.ClusterIPs, "spec.clusterIPs"
	if len(texts) == 0 && o.Spec.ClusterIP != "" {
		texts, field = []string{o.Spec.ClusterIP}, "spec.clusterIP"
	}
	if slices.Equal(texts, []string{corev1.ClusterIPNone}) {
		s.Headless = true
		return nil
	}
	for i, text := range texts {
		vip, err := parseAddr(text)
		if err != nil {
			return &FieldError{Field: itemOf(field, i), Err: err}
		}
		if why := c.refused(vip); why != "" {
			c.warn(faultf(itemOf(field, i), "%s %s: it is not used", vip, why))
			continue
		}
		s.VIPs = append(s.VIPs, vip)
	}
	return nil
}

// itemOf names an item of a list, or the field that stands for a list of one.
func itemOf(field string, i int) string {
	if strings.HasSuffix(field, "IP") {
		return field
	}
	return at(field, i)
}

func servicePorts(in []corev1.ServicePort) ([]snapshot.ServicePort, *FieldError) {
	var ports []snapshot.ServicePort
	names := map[string]bool{}
	for i, p := range in {
		field := fmt.Sprintf("spec.ports[%d]", i)
		switch {
		case !isPort(p.Port):
			return nil, faultf(field+".port", "%d is not a port: want 1 to 65535", p.Port)
		case p.Name == "" && len(in) > 1:
			return nil, faultf(field+".name", "is missing: a service of several ports names each")
		case names[p.Name]:
			return nil, faultf(field+".name", "%q is given twice", p.Name)
		}
		names[p.Name] = true
		if p.Protocol == corev1.ProtocolSCTP {
			continue // a proxy takes none, and a TCP port may have its number
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
		case !isPort(p.TargetPort.IntVal):
			return nil, faultf(field+".targetPort", "%d is not a port: want 1 to 65535", p.TargetPort.IntVal)
		default:
			out.Target = uint32(p.TargetPort.IntVal)
		}
		if p.NodePort != 0 && !isPort(p.NodePort) {
			return nil, faultf(field+".nodePort", "%d is not a port: want 1 to 65535", p.NodePort)
		}
		ports = append(ports, out)
	}
	return ports, nil
}

func (c *conversion) external(s *snapshot.Service, o *corev1.Service) *FieldError {
	add := func(field, address string) *FieldError {
		a, err := parseAddr(address)
		if err == nil {
			address = a.String()
		} else if fault := hostFault(field, address); fault != nil {
			return fault
		}
		if why := c.refusedHost(address); why != "" {
			c.warn(faultf(field, "%s %s: it is not used", address, why))
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

// exportTo reads the annotation; nil means everywhere.
func exportTo(text string) ([]string, *FieldError) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var out []string
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part != "*" && part != "." && part != "~" && !mesh.IsDNSLabel(part) {
			return nil, faultf("metadata.annotations["+mesh.AnnotationExportTo+"]", "%q is neither a namespace nor one of * . ~", part)
		}
		out = append(out, part)
	}
	return out, nil
}

func (c *conversion) endpointSlice(o *discoveryv1.EndpointSlice) *FieldError {
	service := o.Labels[mesh.LabelServiceName]
	if service == "" || o.Labels[mesh.LabelMCSServiceName] != "" || o.AddressType == discoveryv1.AddressTypeFQDN {
		return nil // of no service, imported from another cluster, or names
	}
	if !mesh.IsDNSLabel(service) {
		return faultf("metadata.labels["+mesh.LabelServiceName+"]", "%q is not a DNS label", service)
	}
	s := &snapshot.EndpointSlice{Meta: c.meta, Service: service}
	for i, p := range o.Ports {
		if p.Port == nil {
			continue // "all ports" fits no port of a service
		}
		if !isPort(*p.Port) {
			return faultf(fmt.Sprintf("ports[%d].port", i), "%d is not a port: want 1 to 65535", *p.Port)
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
		// What a condition means when it is not given is part of the API.
		out.Ready = e.Conditions.Ready == nil || *e.Conditions.Ready
		out.Terminating = e.Conditions.Terminating != nil && *e.Conditions.Terminating
		if out.Hostname = text(e.Hostname); out.Hostname != "" && !mesh.IsDNSLabel(out.Hostname) {
			return faultf(fmt.Sprintf("endpoints[%d].hostname", i), "%q is not a DNS label", out.Hostname)
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
