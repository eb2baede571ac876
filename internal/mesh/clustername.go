package mesh

import (
	"strconv"
	"strings"
)

// Direction is the first part of the name of an Envoy cluster.
type Direction string

// The values of Direction.
const (
	Outbound Direction = "outbound"
	Inbound  Direction = "inbound"
)

// Names of the clusters that every sidecar has.
const (
	BlackHoleCluster          = "BlackHoleCluster"
	PassthroughCluster        = "PassthroughCluster"
	InboundPassthroughCluster = "InboundPassthroughCluster"
)

// Names of the clusters in the bootstrap that the agent writes.
const (
	AgentCluster = "agent"
	SDSCluster   = "sds-grpc" // generated configuration refers to it
	XDSCluster   = "xds-grpc"
)

// NoRoute is the name of the routes that answer requests for which a virtual host has no route.
const NoRoute = "no_route"

// ClusterName is the structured name of an Envoy cluster:
// <direction>|<port>|<subset>|<host>.
type ClusterName struct {
	Direction Direction
	Port      uint32
	Subset    string
	Host      string
}

// String renders the name with bars, as CDS and EDS use it.
func (c ClusterName) String() string {
	return string(c.Direction) + "|" + strconv.FormatUint(uint64(c.Port), 10) + "|" + c.Subset + "|" + c.Host
}

// AppendTo appends the form of String.
func (c ClusterName) AppendTo(b []byte) []byte {
	b = strconv.AppendUint(append(append(b, c.Direction...), '|'), uint64(c.Port), 10)
	return append(append(append(append(b, '|'), c.Subset...), '|'), c.Host...)
}

// SNI renders the DNS form, outbound_.<port>_.<subset>_.<host>. It is the server name
// of TLS connections to the cluster, and the name of the cluster to which an east-west
// gateway passes them on.
func (c ClusterName) SNI() string {
	return string(c.Direction) + "_." + strconv.FormatUint(uint64(c.Port), 10) + "_." + c.Subset + "_." + c.Host
}

// ParseClusterName parses the form with bars. ok is false for other names, such as
// BlackHoleCluster.
func ParseClusterName(s string) (c ClusterName, ok bool) {
	return parseClusterName(strings.SplitN(s, "|", 4))
}

// ParseSNI parses the DNS form.
func ParseSNI(s string) (c ClusterName, ok bool) {
	return parseClusterName(strings.SplitN(s, "_.", 4))
}

func parseClusterName(p []string) (ClusterName, bool) {
	if len(p) != 4 {
		return ClusterName{}, false
	}
	d := Direction(p[0])
	if d != Outbound && d != Inbound {
		return ClusterName{}, false
	}
	port, err := strconv.ParseUint(p[1], 10, 16)
	if err != nil || strconv.FormatUint(port, 10) != p[1] {
		return ClusterName{}, false
	}
	return ClusterName{Direction: d, Port: uint32(port), Subset: p[2], Host: p[3]}, true
}

// IsGeneratedName reports whether a name may be the name of a generated listener or cluster.
func IsGeneratedName(name string) bool {
	_, cluster := ParseClusterName(name)
	_, sni := ParseSNI(name)
	switch name {
	case "virtualInbound", "virtualOutbound", BlackHoleCluster, PassthroughCluster, InboundPassthroughCluster:
		return true
	}
	return cluster || sni
}
