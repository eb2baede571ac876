package mesh

import (
	"strconv"
	"strings"
)

// Direction of a cluster or listener as its name says it.
type Direction string

// The two directions of Istio's names.
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

// SNI renders the DNS form, which is the server name of a TLS connection to
// the cluster and the name of the gateway's pass-through cluster:
// outbound_.<port>_.<subset>_.<host>.
func (c ClusterName) SNI() string {
	return string(c.Direction) + "_." + strconv.FormatUint(uint64(c.Port), 10) + "_." + c.Subset + "_." + c.Host
}

// ParseClusterName reads the form with bars. ok is false for every other
// name, such as BlackHoleCluster or the SNI form.
func ParseClusterName(s string) (c ClusterName, ok bool) {
	return parseClusterName(strings.SplitN(s, "|", 4))
}

// ParseSNI reads the DNS form.
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
