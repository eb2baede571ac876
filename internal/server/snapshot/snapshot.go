package snapshot

import "time"

// Snapshot is one consistent set of facts about the whole mesh. It and all it
// points to are immutable; a fact that did not change keeps its address from
// one snapshot to the next, so comparing pointers tells what changed.
type Snapshot struct {
	// Seq counts snapshots from 1.
	Seq uint64
	// Mesh holds what applies everywhere.
	Mesh *Mesh
	// Gateways are the east-west gateways by network.
	Gateways *Gateways
	// Services by host name.
	Services *Table[string, MeshService]
	// Endpoints by host name.
	Endpoints *Table[string, Endpoints]
	// Ports holds, for each TCP port number, the services that have it.
	Ports *Table[uint32, PortServices]
	// Pods by PodKey.String(), and the workloads of WorkloadEntries by
	// WorkloadEntryKey.
	Pods *Table[string, Pod]
	// Secrets of all clusters by SecretKey. Who reads them decides by an
	// authenticated identity who is given what.
	Secrets *Table[string, Secret]
	// ConfigMaps with CA certificates of the configuration cluster by
	// ConfigMapKey.
	ConfigMaps *Table[string, ConfigMap]
	// TrustBundle is nil until the roots are known.
	TrustBundle *TrustBundle
	// Namespaces by name.
	Namespaces *Table[string, NamespaceFacts]
	// Private is set when some service is not exported to every namespace.
	Private bool
	// NodeLocal is set when some service has NodeLocal.
	NodeLocal bool
	// GatewayConfigs are the Gateway objects of the configuration cluster,
	// oldest first.
	GatewayConfigs []*Gateway
}

// Changes names what differs between a snapshot and the one before it.
type Changes struct {
	Services   map[string]struct{} // hosts whose MeshService changed, came or went
	Endpoints  map[string]struct{} // hosts whose Endpoints changed, came or went
	Ports      map[uint32]struct{} // numbers whose PortServices changed, came or went
	Pods       map[string]struct{} // keys of Pods that changed, came or went
	Secrets    map[string]struct{} // SecretKey or ConfigMapKey of those that changed, came or went
	Namespaces map[string]struct{} // namespaces whose NamespaceFacts changed
	// TrustBundle is set when the TrustBundle changed.
	TrustBundle bool
	// Everywhere is set when Mesh, Gateways, Private, NodeLocal or GatewayConfigs
	// changed.
	Everywhere bool
	// Causes are a few of the objects behind the change, for logs and traces,
	// Events is how many there are.
	Causes []Cause
	Events int
	// Since is when the first event of the batch arrived, Taken when the batch was
	// closed, Built when the snapshot was made of it.
	Since, Taken, Built time.Time
}

// Cause is an object that changed.
type Cause struct {
	Key
	Place Place // zero for an object that is gone
	Gone  bool
}

// Kinds is a set of kinds of facts.
type Kinds uint8

// The kinds of facts that lists of resources are made of. By pods and
// namespaces it is only chosen which lists a proxy is given.
const (
	ServiceFacts Kinds = 1 << iota
	EndpointFacts
	PortFacts
	SecretFacts
	TrustFacts
)

// Kinds is what kinds of facts changed; Everywhere is none of them.
func (c *Changes) Kinds() Kinds {
	var k Kinds
	add := func(kind Kinds, changed int) {
		if changed > 0 {
			k |= kind
		}
	}
	add(ServiceFacts, len(c.Services))
	add(EndpointFacts, len(c.Endpoints))
	add(PortFacts, len(c.Ports))
	add(SecretFacts, len(c.Secrets))
	if c.TrustBundle {
		k |= TrustFacts
	}
	return k
}

// Empty reports whether nothing changed.
func (c *Changes) Empty() bool {
	return !c.Everywhere && !c.TrustBundle && len(c.Services) == 0 && len(c.Endpoints) == 0 && len(c.Ports) == 0 &&
		len(c.Pods) == 0 && len(c.Secrets) == 0 && len(c.Namespaces) == 0
}
