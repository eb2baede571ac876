package source

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

var kubeGatewayKind = kubeKind(kind{
	group: groupGatewayAPI, name: "Gateway", kind: snapshot.KindKubeGateway, plural: "gateways", versions: []string{"v1", "v1beta1"},
	support: fields.Partly, meaning: "with the label `topology.istio.io/network` it is a gateway of that network at `spec.addresses`. Proxies call its TLS listeners that have port 15443 " +
		"(or the port in the label `networking.istio.io/gatewayPort`) or the option `gateway.istio.io/listener-protocol: auto-passthrough`. No proxy is started for it",
	resources: []Resource{{Custom: true, Optional: true, Without: "Gateways of the Kubernetes API are no gateways of networks"}},
}, (*conversion).kubeGateway)

const (
	// optionListenerProtocol with the value autoPassthrough makes a TLS listener on
	// any port a listener of an east-west gateway.
	optionListenerProtocol = "gateway.istio.io/listener-protocol"
	autoPassthrough        = "auto-passthrough"
	// classRemote is the class of Gateways that describe a gateway of another cluster.
	classRemote = "istio-remote"
	// classPrefix begins the names of the classes whose Gateways Istio implements.
	classPrefix = "istio"
)

// kubeGateway delivers a Gateway of the Kubernetes Gateway API with the label of a
// network as a gateway into that network. Other Gateways have no effect. It reports Gateways
// of Istio's classes: the others belong to other controllers.
func (c *conversion) kubeGateway(o *gatewayv1.Gateway) *fields.Error {
	network := o.Labels[mesh.LabelNetwork]
	if network == "" {
		if strings.HasPrefix(string(o.Spec.GatewayClassName), classPrefix) {
			c.warn(fields.WithoutEffect("spec", "without the label "+mesh.LabelNetwork+" it is no gateway of a network, and no proxy is started for it"))
		}
		return nil
	}
	g := &snapshot.KubeGateway{Meta: c.meta, Network: mesh.NetworkID(network), Remote: o.Spec.GatewayClassName == classRemote}
	port := gatewayv1.PortNumber(mesh.PortEastWest)
	if label := o.Labels[mesh.LabelGatewayPort]; label != "" {
		n, err := strconv.ParseUint(label, 10, 16)
		if err != nil || n == 0 {
			return fields.Faultf("metadata.labels["+mesh.LabelGatewayPort+"]", "%q is not a port", label)
		}
		port = gatewayv1.PortNumber(n)
	}
	for i, l := range o.Spec.Listeners {
		if l.TLS == nil || l.Port != port && l.TLS.Options[optionListenerProtocol] != autoPassthrough {
			continue
		}
		if !fields.IsPort(l.Port) {
			return fields.Faultf(fields.At("spec.listeners", i)+".port", "%d is not a port: want 1 to 65535", l.Port)
		}
		if number := uint32(l.Port); !slices.Contains(g.Ports, number) {
			g.Ports = append(g.Ports, number)
		}
	}
	if fault := c.gatewayAddresses(g, o.Spec.Addresses); fault != nil {
		return fault
	}
	if len(g.Ports) == 0 {
		c.warn(fields.Faultf("spec.listeners", "none of TLS on port %d, nor with the option %s: %s: so it is no gateway of network %s",
			port, optionListenerProtocol, autoPassthrough, network))
		return nil
	}
	c.object = g
	return nil
}

func (c *conversion) gatewayAddresses(g *snapshot.KubeGateway, addresses []gatewayv1.GatewaySpecAddress) *fields.Error {
	for i, a := range addresses {
		field := fmt.Sprintf("spec.addresses[%d].value", i)
		isIP := a.Type == nil || *a.Type == gatewayv1.IPAddressType
		if a.Value == "" || !isIP && *a.Type != gatewayv1.HostnameAddressType {
			continue
		}
		address := a.Value
		if ip, err := fields.ParseAddr(address); err == nil {
			address = ip.String()
		} else if isIP {
			return &fields.Error{Field: field, Err: err}
		} else if fault := fields.HostFault(field, address); fault != nil {
			return fault
		}
		if why := c.refusedGateway(address); why != "" {
			c.warn(fields.Faultf(field, "%s %s: it is not used", address, why))
			continue
		}
		g.Addresses = append(g.Addresses, address)
	}
	return nil
}
