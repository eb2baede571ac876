// Package proxy describes the proxy that resources are for: its node, its pod, its IP versions, and the
// services that it sees.
package proxy

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// Node holds the content of a proxy's xDS node. Its form is checked, but its claims are
// not: before use they must be compared with the caller's identity.
type Node struct {
	ID             mesh.NodeID
	Cluster        mesh.ClusterID
	Namespace      string
	ServiceAccount string
	Network        mesh.NetworkID
	// Locality is the locality that the proxy itself knows. Usually empty.
	Locality mesh.Locality
	// View holds the networks whose endpoints the proxy requests, sorted. Empty means
	// all.
	View   []mesh.NetworkID
	Labels map[string]string
	// IPs holds the proxy's addresses. The first one is the address in the node id.
	IPs []netip.Addr
	// Captured reports whether connections are redirected to the proxy. Otherwise
	// (interceptionMode NONE) listeners bind the ports that a Sidecar declares.
	Captured bool
	// Transparent reports whether inbound connections keep the address of their client up to the
	// application (interceptionMode TPROXY).
	Transparent bool
	// ResolvesNames reports whether the DNS proxy of the agent answers the workload
	// (DNS_CAPTURE), so that it uses allocated addresses.
	ResolvesNames bool
	// Proxyless reports whether the node is gRPC in an application (GENERATOR grpc),
	// which supports a part of Envoy's resources.
	Proxyless bool
	// Relayed reports whether an agent of meshctl relays the proxy's stream (mesh.MetadataRelay).
	Relayed bool
	// HoldsHosts reports whether the agent also reports the virtual hosts that the proxy has
	// (mesh.MetadataVirtualHosts).
	HoldsHosts bool
	// CountsCalls reports whether the agent makes Istio's standard metrics (mesh.MetadataMetrics).
	CountsCalls bool
	// Unprivileged reports whether the proxy may not open ports below 1024.
	Unprivileged bool
	// MeshID is the mesh to which the proxy claims to belong.
	MeshID string
	// TrustDomain is the trust domain that the proxy claims. Usually empty.
	TrustDomain string
	// Topology is gatewayTopology of the proxy's PROXY_CONFIG, or nil.
	Topology *snapshot.Topology
	// Drain is the time that the proxy takes to drain changed listeners (drainDuration of
	// PROXY_CONFIG).
	Drain time.Duration
	// Tracing is tracing of PROXY_CONFIG, or nil.
	Tracing *meshv1alpha1.Tracing
	// AcceptsHTTP10 reports whether listeners accept HTTP/1.0 (HTTP10).
	AcceptsHTTP10 bool
	// IdleTimeout is IDLE_TIMEOUT: the time after which connections of clients without requests are
	// closed, or 0 for Envoy's default.
	IdleTimeout time.Duration
	// HTTPProxyPort is HTTP_PROXY_PORT: the port at which the proxy is an HTTP proxy for its
	// application, or 0 for none. If it is nil, the mesh's setting applies.
	HTTPProxyPort *uint32
	// Ports holds the ports at which the proxy or its agent reports to listen, in addition to the
	// default ones.
	Ports []uint32
	// WorkloadEntry is the name of the proxy's WorkloadEntry. It is empty for a proxy
	// in a pod.
	WorkloadEntry string
	// WorkloadGroup is the WorkloadGroup of a proxy whose WorkloadEntry the control plane
	// makes (AUTO_REGISTER_GROUP). Then WorkloadEntry is the name of the entry.
	WorkloadGroup string
	// ReportsHealth reports whether the agent checks the health of the application
	// (readinessProbe of PROXY_CONFIG).
	ReportsHealth bool
	// Version is the proxy's ISTIO_VERSION, for tables and EnvoyFilters.
	Version string
	// Metadata holds the metadata entries that are text, which EnvoyFilters may match.
	// Longer entries than maxText are left out.
	Metadata map[string]string
	// Envoy is the version of Envoy as major.minor.patch, or "" if it is not known.
	Envoy string
	// DiscoversHosts reports whether the control plane sends virtual hosts to the proxy one by
	// one. The metadata does not set it.
	DiscoversHosts bool
	// RequestsHosts reports whether a proxy that discovers virtual hosts may get them on demand. The
	// metadata does not set it.
	RequestsHosts bool
	// Moving holds old versions of AuthorizationPolicies that stay in force while the proxy
	// gets the new ones. The metadata does not set it.
	Moving []*snapshot.AuthorizationPolicy
}

// generatorGRPC is the metadata GENERATOR of gRPC without a proxy.
const generatorGRPC = "grpc"

// The bounds of a node's metadata. A stream keeps it as long as it lives.
const (
	maxEntries    = 1024
	maxText       = 1024 // bytes of a value that is kept
	maxLabels     = 1024
	maxLabelsSize = 64 << 10 // bytes of all labels
	maxList       = 64       // addresses or networks
	maxName       = 253      // bytes of the name of an object
	maxTracing    = 32 << 10 // bytes of the settings of tracing, which each listener has; larger ones lose their tags
)

// keptTexts holds the metadata entries whose text is kept or repeated in errors.
var keptTexts = [...]string{
	"CLUSTER_ID", "NAMESPACE", "SERVICE_ACCOUNT", "NETWORK", "REQUESTED_NETWORK_VIEW", "MESH_ID", "ISTIO_VERSION", "TRUST_DOMAIN",
	"WORKLOAD_ENTRY", "AUTO_REGISTER_GROUP",
}

// chooseEntry sets the WorkloadEntry of a proxy that names only a WorkloadGroup.
func (n *Node) chooseEntry() error {
	switch {
	case n.WorkloadEntry != "":
		n.WorkloadGroup = ""
	case n.WorkloadGroup != "":
		n.WorkloadEntry = n.registeredName()
	}
	if n.WorkloadEntry != "" && !mesh.IsDNSName(n.WorkloadEntry) {
		return fmt.Errorf("node %s: metadata WORKLOAD_ENTRY or AUTO_REGISTER_GROUP: %.64q is not a DNS name", n.ID.ProxyID(), n.WorkloadEntry)
	}
	return nil
}

// registeredName returns the name of the WorkloadEntry that the control plane makes for a proxy,
// as Istio's does: group, address and network, of which only the end is used if it is too long.
func (n *Node) registeredName() string {
	parts := []string{n.WorkloadGroup, strings.ReplaceAll(n.ID.IP.String(), ":", "-")}
	if n.Network != "" {
		parts = append(parts, string(n.Network))
	}
	name := strings.Join(parts, "-")
	return name[max(0, len(name)-maxName):]
}

// checkSizes checks the bounds of an xDS node.
func checkSizes(n *corev3.Node, maxMetadata int) error {
	md := n.GetMetadata().GetFields()
	if len(md) > maxEntries {
		return fmt.Errorf("metadata has %d entries, at most %d are accepted", len(md), maxEntries)
	}
	if size := proto.Size(n.GetMetadata()); size > maxMetadata {
		return fmt.Errorf("metadata has %d bytes, at most %d are accepted", size, maxMetadata)
	}
	for _, key := range keptTexts {
		if size := len(md[key].GetStringValue()); size > maxText {
			return fmt.Errorf("metadata %s has %d bytes, at most %d are accepted", key, size, maxText)
		}
	}
	if l := n.GetLocality(); max(len(l.GetRegion()), len(l.GetZone()), len(l.GetSubZone())) > maxText {
		return fmt.Errorf("a part of the locality has more than %d bytes", maxText)
	}
	return nil
}

// ParseNode parses an xDS node with at most maxMetadata bytes of encoded metadata. The
// error names the invalid part.
func ParseNode(n *corev3.Node, maxMetadata int) (Node, error) {
	id, err := mesh.ParseNodeID(n.GetId())
	if err != nil {
		return Node{}, err
	}
	if err := checkSizes(n, maxMetadata); err != nil {
		return Node{}, fmt.Errorf("node %s: %w", id.ProxyID(), err)
	}
	md := n.GetMetadata().GetFields()
	text := func(key string) string { return md[key].GetStringValue() }
	out := Node{
		ID:             id,
		Cluster:        mesh.ClusterID(text("CLUSTER_ID")),
		Namespace:      cmp.Or(text("NAMESPACE"), id.Namespace),
		ServiceAccount: text("SERVICE_ACCOUNT"),
		Network:        mesh.NetworkID(text("NETWORK")),
		Locality:       mesh.Locality{Region: n.GetLocality().GetRegion(), Zone: n.GetLocality().GetZone(), Subzone: n.GetLocality().GetSubZone()},
		Captured:       text("INTERCEPTION_MODE") != "NONE",
		Transparent:    text("INTERCEPTION_MODE") == "TPROXY",
		ResolvesNames:  text("DNS_CAPTURE") == "true" || md["DNS_CAPTURE"].GetBoolValue(),
		Proxyless:      text("GENERATOR") == generatorGRPC,
		Relayed:        text(mesh.MetadataRelay) == "true",
		HoldsHosts:     text(mesh.MetadataVirtualHosts) == "true",
		CountsCalls:    text(mesh.MetadataMetrics) == "true",
		Unprivileged:   text("UNPRIVILEGED_POD") == "true",
		MeshID:         text("MESH_ID"),
		TrustDomain:    text("TRUST_DOMAIN"),
		WorkloadEntry:  text("WORKLOAD_ENTRY"),
		WorkloadGroup:  text("AUTO_REGISTER_GROUP"),
		ReportsHealth:  md["PROXY_CONFIG"].GetStructValue().GetFields()["readinessProbe"] != nil,
		Version:        text("ISTIO_VERSION"),
		Metadata:       textsOf(md),
		Topology:       topologyOf(md["PROXY_CONFIG"].GetStructValue().GetFields()["gatewayTopology"]),
		Tracing:        tracingOfNode(md["PROXY_CONFIG"].GetStructValue().GetFields()["tracing"]),
		AcceptsHTTP10:  text("HTTP10") == "1",
		Drain:          drainOf(md["PROXY_CONFIG"].GetStructValue().GetFields()["drainDuration"]),
		Envoy:          envoyVersion(n),
		Ports:          reportedPorts(md),
	}
	if out.Namespace != id.Namespace {
		return Node{}, fmt.Errorf("node %s: metadata NAMESPACE is %q", id.ProxyID(), out.Namespace)
	}
	if err := out.chooseEntry(); err != nil {
		return Node{}, err
	}
	if out.HTTPProxyPort, err = ownHTTPProxyPort(text("HTTP_PROXY_PORT")); err != nil {
		return Node{}, fmt.Errorf("node %s: metadata HTTP_PROXY_PORT: %w", id.ProxyID(), err)
	}
	if out.IdleTimeout, err = idleTimeout(text("IDLE_TIMEOUT")); err != nil {
		return Node{}, fmt.Errorf("node %s: metadata IDLE_TIMEOUT: %w", id.ProxyID(), err)
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

// ownHTTPProxyPort returns the port that a proxy reports; nil if it reports none.
func ownHTTPProxyPort(text string) (*uint32, error) {
	if text == "" {
		return nil, nil
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%.64q is not a port", text)
	}
	port := uint32(number)
	return &port, nil
}

// reportedPorts returns the ports of the proxy itself that the metadata names.
func reportedPorts(md map[string]*structpb.Value) []uint32 {
	var out []uint32
	config := md["PROXY_CONFIG"].GetStructValue().GetFields()
	for _, v := range []*structpb.Value{config["proxyAdminPort"], config["statusPort"], md["ENVOY_STATUS_PORT"], md["ENVOY_PROMETHEUS_PORT"]} {
		number := v.GetNumberValue()
		if text := v.GetStringValue(); text != "" {
			n, err := strconv.ParseUint(text, 10, 16)
			if err != nil {
				continue
			}
			number = float64(n)
		}
		if number >= 1 && number <= math.MaxUint16 {
			out = append(out, uint32(number))
		}
	}
	return out
}

// topologyOf returns the topology that a proxy reports; nil if it reports none, or an invalid
// one.
func topologyOf(v *structpb.Value) *snapshot.Topology {
	if v.GetStructValue() == nil {
		return nil
	}
	var t meshv1alpha1.Topology
	text, err := protojson.Marshal(v)
	if err != nil || (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, &t) != nil {
		return nil
	}
	out := snapshot.TopologyOf(&t)
	return &out
}

// tracingOfNode returns the tracing of one proxy, without settings that Envoy would refuse.
func tracingOfNode(v *structpb.Value) *meshv1alpha1.Tracing {
	if v.GetStructValue() == nil {
		return nil
	}
	var t meshv1alpha1.Tracing
	text, err := protojson.Marshal(v)
	if err != nil || (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, &t) != nil {
		return nil
	}
	if t.Sampling < 0 || t.Sampling > 100 {
		t.Sampling = 0
	}
	if proto.Size(&t) > maxTracing {
		t.CustomTags = nil
	}
	maps.DeleteFunc(t.CustomTags, func(_ string, tag *meshv1alpha1.Tracing_CustomTag) bool {
		return tag.GetLiteral().GetValue() == "" && tag.GetEnvironment().GetName() == "" && !mesh.IsHeaderName(tag.GetHeader().GetName())
	})
	return &t
}

// idleTimeout parses a duration. None means 0.
func idleTimeout(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%.64q is not a duration, such as 30s", text)
	}
	return d, nil
}

// defaultDrain is the drainDuration of proxies that report none.
const defaultDrain = 45 * time.Second

func drainOf(v *structpb.Value) time.Duration {
	if d, err := time.ParseDuration(v.GetStringValue()); err == nil && d >= 0 {
		return d
	}
	return defaultDrain
}

// textsOf returns the entries that are text, without entries longer than maxText.
func textsOf(md map[string]*structpb.Value) map[string]string {
	out := make(map[string]string, len(md))
	for k, v := range md {
		if text, ok := v.GetKind().(*structpb.Value_StringValue); ok && len(text.StringValue) <= maxText && len(k) <= maxText {
			out[k] = text.StringValue
		}
	}
	return out
}

// maxVersion is the maximum length of a version of Envoy in bytes.
const maxVersion = 64

// envoyVersion returns the node's version of Envoy, or "" if it is too long.
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

// labels returns the labels of a proxy. Values that are not strings become "".
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

// splitList splits a list with commas.
func splitList(key, s string) ([]string, error) {
	if s == "" {
		return nil, nil
	}
	if n := strings.Count(s, ",") + 1; n > maxList {
		return nil, fmt.Errorf("%s has %d parts, at most %d are accepted", key, n, maxList)
	}
	return strings.Split(s, ","), nil
}

// AtLeastEnvoy reports whether a version of Envoy 1 has at least a minor version.
func AtLeastEnvoy(version string, minor int) bool {
	major, rest, _ := strings.Cut(version, ".")
	text, _, _ := strings.Cut(rest, ".")
	number, err := strconv.Atoi(text)
	return major == "1" && err == nil && number >= minor
}
