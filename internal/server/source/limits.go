package source

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/meshctl/meshctl/internal/server/source/fields"
	"github.com/meshctl/meshctl/internal/server/source/routes"
)

// Limits of an object. An object beyond a limit is refused like any other invalid object,
// whichever source reads it. TestGrownObjects measures what objects within the limits cost.
const (
	// maxListeners bounds lists of which each entry becomes a part of many listeners, and clusters that
	// all workloads of a namespace may serve.
	maxListeners = 100
	// maxPorts bounds the ports of a service, and maxSubsets its subsets: each pair is a cluster.
	maxPorts   = 500
	maxSubsets = 200
	// maxPolicyBytes bounds the size of the policy of a subset, times the subsets.
	maxPolicyBytes = 640 << 10
	// maxClusters bounds the clusters that a ServiceEntry becomes, one for each host and port.
	maxClusters = 10_000
	// maxCopies bounds what becomes of other lists that each host of an object gets.
	maxCopies = 100_000
	// maxCopiedBytes bounds the size of what each host of an object gets, times the hosts.
	maxCopiedBytes = 32 << 20
	// maxDistributed bounds the localities of distribute: percentages of at least 1 have the sum 100.
	maxDistributed = 100
	// maxTelemetryBytes bounds a Telemetry: each listener of a workload has its tags and conditions.
	maxTelemetryBytes = 32 << 10
	// maxMatchers bounds the matchers of an AuthorizationPolicy, maxMatchedBytes their size: a value
	// has one matcher for each form of a header, or for each slash of a principal of a token.
	// maxMatchedText bounds a value.
	maxMatchers     = 50_000
	maxMatchedBytes = 8 << 20
	maxMatchedText  = 4 << 10
	// maxPatches bounds the patches of an EnvoyFilter, and maxPatchBytes the size of their
	// values: each resource that a patch matches gets the value.
	maxPatches    = 500
	maxPatchBytes = 128 << 10
)

// entriesOf holds the limits of lists and maps that are other than fields.MaxEntries.
func entriesOf(field protoreflect.FullName) int {
	switch field {
	case "istio.networking.v1alpha3.ServiceEntry.ports":
		return maxPorts
	case "istio.networking.v1alpha3.DestinationRule.subsets":
		return maxSubsets
	case "istio.networking.v1alpha3.EnvoyFilter.config_patches":
		return maxPatches
	case "istio.networking.v1alpha3.Gateway.servers":
		return 1000
	case "istio.networking.v1alpha3.VirtualService.hosts":
		return routes.MaxHosts
	case "istio.networking.v1alpha3.LocalityLoadBalancerSetting.distribute", "istio.networking.v1alpha3.LocalityLoadBalancerSetting.Distribute.to":
		return maxDistributed
	case "istio.networking.v1alpha3.Sidecar.egress", "istio.networking.v1alpha3.Sidecar.ingress",
		"istio.telemetry.v1alpha1.Telemetry.access_logging", "istio.telemetry.v1alpha1.Telemetry.metrics", "istio.telemetry.v1alpha1.Telemetry.tracing",
		"istio.telemetry.v1alpha1.Tracing.custom_tags",
		"istio.security.v1beta1.RequestAuthentication.jwt_rules",
		"istio.networking.v1alpha3.TrafficPolicy.port_level_settings":
		return maxListeners
	}
	switch field.Name() {
	case "export_to", "ports", "port_level_mtls", "target_refs":
		return maxPorts
	}
	return fields.MaxEntries
}

// limitFault checks the sizes of the lists of an object, and the products of those that
// become something together.
func limitFault(object any) *fields.Error {
	switch o := object.(type) {
	case *Istio:
		if fault := entriesFault(o.Spec.ProtoReflect()); fault != nil {
			fault.Field = fields.FieldBelow("spec", fault.Field) // also metadata, which is a field of a WorkloadGroup
			return fault
		}
		return fields.Under("spec", productFault(o.Spec))
	case *corev1.Service:
		return fields.AllFaults(
			lengthFault("spec.ports", len(o.Spec.Ports), maxPorts), lengthFault("spec.clusterIPs", len(o.Spec.ClusterIPs), maxListeners),
			lengthFault("spec.externalIPs", len(o.Spec.ExternalIPs), maxPorts),
			lengthFault("status.loadBalancer.ingress", len(o.Status.LoadBalancer.Ingress), maxPorts),
		)
	case *discoveryv1.EndpointSlice:
		addresses := 0
		for i := range o.Endpoints {
			addresses += len(o.Endpoints[i].Addresses)
		}
		return timesFault("endpoints", maxCopies, count{addresses, "addresses"}, count{len(o.Ports), "ports"})
	case *corev1.Pod:
		ports := 0
		for _, list := range [][]corev1.Container{o.Spec.Containers, o.Spec.InitContainers} {
			for i := range list {
				ports += len(list[i].Ports)
			}
		}
		return fields.AllFaults(lengthFault("spec.containers", ports, fields.MaxEntries), lengthFault("status.podIPs", len(o.Status.PodIPs), maxListeners))
	case *corev1.Node:
		return lengthFault("status.addresses", len(o.Status.Addresses), maxPorts)
	}
	return nil
}

func lengthFault(field string, n, most int) *fields.Error {
	if n <= most {
		return nil
	}
	return fields.Limitf(field, "has %d entries, at most %d are accepted: split the list among several objects", n, most)
}

// entriesFault returns the fault of the first list or map with too many entries in a message. It makes
// a path only of a fault: names in the object may be long, and values may nest.
func entriesFault(m protoreflect.Message) *fields.Error {
	var fault *fields.Error
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		field := f.JSONName()
		switch {
		case f.IsList():
			list := v.List()
			if fault = lengthFault(field, list.Len(), entriesOf(f.FullName())); fault != nil || f.Message() == nil {
				break
			}
			for i := 0; i < list.Len() && fault == nil; i++ {
				if fault = entriesFault(list.Get(i).Message()); fault != nil {
					fault = fields.Under(fields.At(field, i), fault)
				}
			}
		case f.IsMap():
			if fault = lengthFault(field, v.Map().Len(), entriesOf(f.FullName())); fault != nil || f.MapValue().Message() == nil {
				break
			}
			v.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
				if fault = entriesFault(value.Message()); fault != nil {
					fault = fields.Under(field+"["+key.String()+"]", fault)
				}
				return fault == nil
			})
		case f.Message() != nil:
			fault = fields.Under(field, entriesFault(v.Message()))
		}
		return fault == nil
	})
	return fault
}

// count is the number of things of which an object has several.
type count struct {
	n    int
	what string
}

// timesFault checks a product of counts.
func timesFault(field string, most int, of ...count) *fields.Error {
	product := 1
	var texts []string
	for _, c := range of {
		if texts = append(texts, fmt.Sprint(c.n, " ", c.what)); product <= most {
			product *= max(c.n, 1) // which cannot overflow: each is at most maxCopiedBytes
		}
	}
	if product <= most {
		return nil
	}
	return fields.Limitf(field, "has %s: the product may be at most %d; split the object", strings.Join(texts, " times "), most)
}

// productFault checks the products of lists of a spec that become something together.
func productFault(spec proto.Message) *fields.Error {
	switch s := spec.(type) {
	case *networkingv1alpha3.ServiceEntry:
		return serviceEntryProducts(s)
	case *networkingv1alpha3.VirtualService:
		return virtualServiceProducts(s)
	case *networkingv1alpha3.Gateway:
		hosts := 0
		for _, server := range s.Servers {
			hosts += len(server.GetHosts())
		}
		return lengthFault("servers.hosts", hosts, fields.MaxEntries)
	case *networkingv1alpha3.Sidecar:
		hosts := 0
		for _, egress := range s.Egress {
			hosts += len(egress.GetHosts())
		}
		return lengthFault("egress.hosts", hosts, fields.MaxEntries)
	case *networkingv1alpha3.EnvoyFilter:
		size := 0
		for _, p := range s.ConfigPatches {
			size += proto.Size(p.GetPatch().GetValue())
		}
		if size > maxPatchBytes {
			return fields.Limitf("configPatches", "has values of %d bytes, at most %d are accepted: each resource that a patch matches gets them", size, maxPatchBytes)
		}
	case *securityv1beta1.AuthorizationPolicy:
		return matchersFault(s)
	case *telemetryv1alpha1.Telemetry:
		if size := proto.Size(s); size > maxTelemetryBytes {
			return fields.Limitf("", "has %d bytes, at most %d are accepted: each listener of a workload gets them", size, maxTelemetryBytes)
		}
	case *networkingv1alpha3.DestinationRule:
		size := proto.Size(s.TrafficPolicy)
		for _, subset := range s.Subsets {
			size = max(size, proto.Size(subset.GetTrafficPolicy()))
		}
		return timesFault("subsets", maxPolicyBytes, count{len(s.Subsets), "subsets"}, count{size, "bytes of the largest policy"})
	}
	return nil
}

// serviceEntryProducts checks what each host of a ServiceEntry gets: a cluster for each port, and
// all endpoints, addresses, names and exports.
func serviceEntryProducts(s *networkingv1alpha3.ServiceEntry) *fields.Error {
	hosts, ports := count{len(s.Hosts), "hosts"}, count{len(s.Ports), "ports"}
	clusters, names := maxClusters, 0
	if s.WorkloadSelector != nil {
		clusters = maxListeners // each gets all workloads
	}
	for _, name := range s.SubjectAltNames {
		names += len(name)
	}
	for _, fault := range []*fields.Error{
		timesFault("hosts", clusters, hosts, ports),
		timesFault("endpoints", maxCopies, hosts, ports, count{len(s.Endpoints), "endpoints"}),
		timesFault("addresses", maxCopies, hosts, ports, count{len(s.Addresses), "addresses"}),
		timesFault("exportTo", maxCopies, hosts, count{len(s.ExportTo), "namespaces in exportTo"}),
		timesFault("subjectAltNames", maxCopiedBytes, hosts, ports, count{names, "bytes of subjectAltNames"}),
	} {
		if fault != nil {
			return fault
		}
	}
	return nil
}

// virtualServiceProducts checks what each host of a VirtualService gets: all routes.
func virtualServiceProducts(s *networkingv1alpha3.VirtualService) *fields.Error {
	hosts, size, streams := count{len(s.Hosts), "hosts"}, 0, 0
	for _, r := range s.Http {
		size += proto.Size(r)
	}
	for _, r := range s.Tls {
		size += proto.Size(r)
		for _, m := range r.Match {
			streams += max(len(m.GetSniHosts()), 1)
		}
	}
	for _, r := range s.Tcp {
		size += proto.Size(r)
		streams += max(len(r.Match), 1)
	}
	return fields.AllFaults(
		timesFault("gateways", maxCopies, hosts, count{len(s.Gateways), "gateways"}),
		timesFault("exportTo", maxCopies, hosts, count{len(s.ExportTo), "namespaces in exportTo"}),
		timesFault("tls", maxCopies, hosts, count{streams, "matches of tls and tcp"}),
		timesFault("http", maxCopiedBytes, hosts, count{size, "bytes of routes"}),
	)
}
