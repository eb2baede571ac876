package mesh

import (
	"fmt"
	"net/netip"
	"strings"
)

// NodeType is the kind of a proxy.
type NodeType string

// The values of NodeType.
const (
	Sidecar NodeType = "sidecar"
	Router  NodeType = "router"
)

// NodeID is the xDS node id of Istio's contract:
// <type>~<ip>~<name>.<namespace>~<dns domain>.
type NodeID struct {
	Type      NodeType
	IP        netip.Addr
	Name      string
	Namespace string
	Domain    string
}

// String renders the id as on the wire.
func (n NodeID) String() string {
	return fmt.Sprintf("%s~%s~%s.%s~%s", n.Type, n.IP, n.Name, n.Namespace, n.Domain)
}

// ProxyID returns the short form for tables and status pages, name.namespace.
func (n NodeID) ProxyID() string { return n.Name + "." + n.Namespace }

// ParseNodeID parses a node id. The error names the invalid part.
func ParseNodeID(s string) (NodeID, error) {
	if len(s) > maxNodeID {
		return NodeID{}, fmt.Errorf("node id is longer than %d bytes", maxNodeID)
	}
	parts := strings.Split(s, "~")
	if len(parts) != 4 {
		return NodeID{}, fmt.Errorf("node id %q: want <type>~<ip>~<name>.<namespace>~<domain>", s)
	}
	n := NodeID{Type: NodeType(parts[0]), Domain: parts[3]}
	if n.Type != Sidecar && n.Type != Router {
		return NodeID{}, fmt.Errorf("node id %q: type %q is neither sidecar nor router", s, parts[0])
	}
	ip, err := netip.ParseAddr(parts[1])
	if err != nil {
		return NodeID{}, fmt.Errorf("node id %q: %q is not an IP address", s, parts[1])
	}
	n.IP = ip
	dot := strings.LastIndexByte(parts[2], '.')
	if dot <= 0 || dot == len(parts[2])-1 {
		return NodeID{}, fmt.Errorf("node id %q: %q is not <name>.<namespace>", s, parts[2])
	}
	n.Name, n.Namespace = parts[2][:dot], parts[2][dot+1:]
	if !IsDNSLabel(n.Namespace) {
		return NodeID{}, fmt.Errorf("node id %q: namespace %q is not a DNS label", s, n.Namespace)
	}
	return n, nil
}

// maxNodeID is the limit of a node id in bytes.
const maxNodeID = 1024
