package xdsgen

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Node is what a proxy says of itself in its xDS node, checked for form. The
// claims that matter for access are compared with the caller's identity
// before a Node is used.
type Node struct {
	ID             mesh.NodeID
	Cluster        mesh.ClusterID
	Namespace      string
	ServiceAccount string
	Network        mesh.NetworkID
	// View are the networks whose endpoints the proxy wants, sorted; none
	// means all.
	View   []mesh.NetworkID
	Labels map[string]string
	// IPs are the proxy's own addresses, the first that of the node id.
	IPs []netip.Addr
	// Captured says that connections are redirected to the proxy; without it
	// (interceptionMode NONE) listeners bind what a Sidecar declares.
	Captured bool
	// MeshID is the mesh that the proxy says it belongs to.
	MeshID string
	// Version is the proxy's ISTIO_VERSION, for tables.
	Version string
}

// Bounds of what is looked at in a node's metadata: entries, labels, and
// addresses or networks in a list.
const (
	maxMetadata = 1024
	maxLabels   = 1024
	maxList     = 64
)

// ParseNode reads an xDS node. The error names the part that is wrong.
func ParseNode(n *corev3.Node) (Node, error) {
	id, err := mesh.ParseNodeID(n.GetId())
	if err != nil {
		return Node{}, err
	}
	md := n.GetMetadata().GetFields()
	if len(md) > maxMetadata {
		return Node{}, fmt.Errorf("node %s: metadata has %d entries, at most %d are accepted", id.ProxyID(), len(md), maxMetadata)
	}
	text := func(key string) string { return md[key].GetStringValue() }
	out := Node{
		ID:             id,
		Cluster:        mesh.ClusterID(text("CLUSTER_ID")),
		Namespace:      cmp.Or(text("NAMESPACE"), id.Namespace),
		ServiceAccount: text("SERVICE_ACCOUNT"),
		Network:        mesh.NetworkID(text("NETWORK")),
		Captured:       text("INTERCEPTION_MODE") != "NONE",
		Labels:         make(map[string]string),
		MeshID:         text("MESH_ID"),
		Version:        text("ISTIO_VERSION"),
	}
	if out.Namespace != id.Namespace {
		return Node{}, fmt.Errorf("node %s: metadata NAMESPACE is %q", id.ProxyID(), out.Namespace)
	}
	if labels := md["LABELS"].GetStructValue().GetFields(); len(labels) > maxLabels {
		return Node{}, fmt.Errorf("node %s: %d labels, at most %d are accepted", id.ProxyID(), len(labels), maxLabels)
	}
	view, err := splitList("REQUESTED_NETWORK_VIEW", text("REQUESTED_NETWORK_VIEW"))
	if err != nil {
		return Node{}, fmt.Errorf("node %s: %w", id.ProxyID(), err)
	}
	ips, err := splitList("INSTANCE_IPS", text("INSTANCE_IPS"))
	if err != nil {
		return Node{}, fmt.Errorf("node %s: %w", id.ProxyID(), err)
	}
	for k, v := range md["LABELS"].GetStructValue().GetFields() {
		out.Labels[k] = v.GetStringValue()
	}
	for _, v := range view {
		out.View = append(out.View, mesh.NetworkID(v))
	}
	slices.Sort(out.View)
	out.View = slices.Compact(out.View)
	out.IPs = []netip.Addr{id.IP}
	for _, v := range ips {
		ip, err := netip.ParseAddr(v)
		if err != nil {
			return Node{}, fmt.Errorf("node %s: INSTANCE_IPS: %q is not an IP address", id.ProxyID(), v)
		}
		if !slices.Contains(out.IPs, ip) {
			out.IPs = append(out.IPs, ip)
		}
	}
	return out, nil
}

// splitList reads a list whose parts are joined by commas.
func splitList(key, s string) ([]string, error) {
	if s == "" {
		return nil, nil
	}
	if n := strings.Count(s, ",") + 1; n > maxList {
		return nil, fmt.Errorf("%s has %d parts, at most %d are accepted", key, n, maxList)
	}
	return strings.Split(s, ","), nil
}

// families says which IP versions a proxy has.
type families uint8

const (
	v4 families = 1 << iota
	v6
)

func (n *Node) families() families {
	var f families
	for _, ip := range n.IPs {
		f |= familyOf(ip)
	}
	return f
}

func familyOf(ip netip.Addr) families {
	if ip.Is4() || ip.Is4In6() {
		return v4
	}
	return v6
}
