package xdsgen

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

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
	// Proxyless says that the node is no Envoy but gRPC in an application
	// (GENERATOR grpc), which understands a part of what an Envoy does.
	Proxyless bool
	// MeshID is the mesh that the proxy says it belongs to.
	MeshID string
	// TrustDomain is what the proxy says of its own, mostly nothing.
	TrustDomain string
	// WorkloadEntry is the name of the WorkloadEntry that the proxy belongs to,
	// empty for one of a pod.
	WorkloadEntry string
	// Version is the proxy's ISTIO_VERSION, for tables.
	Version string
	// Envoy is the version of its Envoy as major.minor.patch, empty when the
	// proxy does not say.
	Envoy string
}

// generatorGRPC is the metadata GENERATOR of gRPC's own xDS clients.
const generatorGRPC = "grpc"

// Bounds of a node's metadata. What is kept of it lives as long as its stream.
const (
	maxEntries    = 1024
	maxText       = 1024 // bytes of a value that is kept
	maxLabels     = 1024
	maxLabelsSize = 64 << 10 // bytes of all labels
	maxList       = 64       // addresses or networks
)

// keptTexts are the entries whose text is kept, whole or in parts, or told.
var keptTexts = [...]string{
	"CLUSTER_ID", "NAMESPACE", "SERVICE_ACCOUNT", "NETWORK", "REQUESTED_NETWORK_VIEW", "MESH_ID", "ISTIO_VERSION", "TRUST_DOMAIN",
	"WORKLOAD_ENTRY",
}

// ParseNode reads an xDS node whose metadata has at most so many bytes,
// encoded. The error names the part that is wrong.
func ParseNode(n *corev3.Node, maxMetadata int) (Node, error) {
	id, err := mesh.ParseNodeID(n.GetId())
	if err != nil {
		return Node{}, err
	}
	md := n.GetMetadata().GetFields()
	if len(md) > maxEntries {
		return Node{}, fmt.Errorf("node %s: metadata has %d entries, at most %d are accepted", id.ProxyID(), len(md), maxEntries)
	}
	if size := proto.Size(n.GetMetadata()); size > maxMetadata {
		return Node{}, fmt.Errorf("node %s: metadata has %d bytes, at most %d are accepted", id.ProxyID(), size, maxMetadata)
	}
	for _, key := range keptTexts {
		if size := len(md[key].GetStringValue()); size > maxText {
			return Node{}, fmt.Errorf("node %s: metadata %s has %d bytes, at most %d are accepted", id.ProxyID(), key, size, maxText)
		}
	}
	text := func(key string) string { return md[key].GetStringValue() }
	out := Node{
		ID:             id,
		Cluster:        mesh.ClusterID(text("CLUSTER_ID")),
		Namespace:      cmp.Or(text("NAMESPACE"), id.Namespace),
		ServiceAccount: text("SERVICE_ACCOUNT"),
		Network:        mesh.NetworkID(text("NETWORK")),
		Captured:       text("INTERCEPTION_MODE") != "NONE",
		Proxyless:      text("GENERATOR") == generatorGRPC,
		MeshID:         text("MESH_ID"),
		TrustDomain:    text("TRUST_DOMAIN"),
		WorkloadEntry:  text("WORKLOAD_ENTRY"),
		Version:        text("ISTIO_VERSION"),
		Envoy:          envoyVersion(n),
	}
	if out.Namespace != id.Namespace {
		return Node{}, fmt.Errorf("node %s: metadata NAMESPACE is %q", id.ProxyID(), out.Namespace)
	}
	if out.WorkloadEntry != "" && !mesh.IsDNSName(out.WorkloadEntry) {
		return Node{}, fmt.Errorf("node %s: metadata WORKLOAD_ENTRY: %.64q is not a DNS name", id.ProxyID(), out.WorkloadEntry)
	}
	view, err := splitList("REQUESTED_NETWORK_VIEW", text("REQUESTED_NETWORK_VIEW"))
	if err != nil {
		return Node{}, fmt.Errorf("node %s: %w", id.ProxyID(), err)
	}
	ips, err := splitList("INSTANCE_IPS", text("INSTANCE_IPS"))
	if err != nil {
		return Node{}, fmt.Errorf("node %s: %w", id.ProxyID(), err)
	}
	if out.Labels, err = labels(md["LABELS"].GetStructValue()); err != nil {
		return Node{}, fmt.Errorf("node %s: metadata LABELS: %w", id.ProxyID(), err)
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
			return Node{}, fmt.Errorf("node %s: INSTANCE_IPS: %.64q is not an IP address", id.ProxyID(), v)
		}
		if !slices.Contains(out.IPs, ip) {
			out.IPs = append(out.IPs, ip)
		}
	}
	return out, nil
}

// maxVersion is how long a version of Envoy may be, in bytes.
const maxVersion = 64

// envoyVersion is the version that the node says. One that is too long counts
// as none.
func envoyVersion(n *corev3.Node) string {
	v := n.GetUserAgentVersion()
	if b := n.GetUserAgentBuildVersion().GetVersion(); b != nil {
		v = fmt.Sprintf("%d.%d.%d", b.GetMajorNumber(), b.GetMinorNumber(), b.GetPatch())
	}
	if len(v) > maxVersion {
		return ""
	}
	return v
}

// labels are the labels of a proxy. Values that are no text count as empty.
func labels(s *structpb.Struct) (map[string]string, error) {
	if n := len(s.GetFields()); n > maxLabels {
		return nil, fmt.Errorf("there are %d, at most %d are accepted", n, maxLabels)
	}
	out := make(map[string]string, len(s.GetFields()))
	size := 0
	for k, v := range s.GetFields() {
		out[k] = v.GetStringValue()
		size += len(k) + len(out[k])
	}
	if size > maxLabelsSize {
		return nil, fmt.Errorf("they have %d bytes, at most %d are accepted", size, maxLabelsSize)
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

// wildcards are the addresses at which a listener takes connections to any
// address of those IP versions. IPv4 comes first, and alone for a proxy without
// any address.
func (f families) wildcards() []string {
	switch f {
	case v6:
		return []string{"::"}
	case v4 | v6:
		return []string{"0.0.0.0", "::"}
	}
	return []string{"0.0.0.0"}
}

func familyOf(ip netip.Addr) families {
	if ip.Is4() || ip.Is4In6() {
		return v4
	}
	return v6
}
