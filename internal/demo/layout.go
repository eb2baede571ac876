package demo

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Names in both clusters.
const (
	meshID          = "mesh1"
	sampleNamespace = "sample"
	helloworld      = "helloworld"
	clientName      = "client"
	gatewayName     = "istio-eastwestgateway"
	helloworldPort  = 5000
	// clientProxyPort is the port at which a client's Envoy is a forward proxy: the demo
	// redirects nothing, so clients name their proxy.
	clientProxyPort = 15080
	controlPlane    = "istiod"
	// podTemplateHash stands for the hash of the ReplicaSet controller.
	podTemplateHash = "demo"
)

// target returns the Envoy cluster of the service that clients call.
func target() mesh.ClusterName {
	return mesh.ClusterName{
		Direction: mesh.Outbound,
		Port:      helloworldPort,
		Host:      mesh.ServiceHost(helloworld, sampleNamespace, mesh.DefaultDomain),
	}
}

// clientIdentity is the identity that the servers must see.
func clientIdentity() mesh.Identity {
	return mesh.Identity{TrustDomain: mesh.DefaultTrustDomain, Namespace: sampleNamespace, ServiceAccount: clientName}
}

// cluster is one simulated cluster: a network of loopback addresses with a
// control plane and three pods.
type cluster struct {
	id      mesh.ClusterID
	network mesh.NetworkID
	version string // of helloworld
	number  int    // 1 or 2: its addresses are 127.<number>.0.0/16

	gateway, server, client pod
}

// pod is one simulated pod: an address and the proxy that listens there.
type pod struct {
	cluster   mesh.ClusterID
	network   mesh.NetworkID
	role      string // for messages: "client of cluster1"
	workload  string // Deployment, and name of its only pod
	namespace string
	account   string
	labels    map[string]string
	nodeType  mesh.NodeType
	ip        netip.Addr
	own       map[uint16]string // use of each port that only this pod has
}

// endpoint is an address that a process of the demo listens on.
type endpoint struct {
	addr    netip.AddrPort
	who     string // process that needs it
	use     string // purpose
	control bool   // of a control plane: the first that are taken, the last that are freed
}

func newClusters() []*cluster {
	return []*cluster{newCluster(1), newCluster(2)}
}

func newCluster(number int) *cluster {
	n := strconv.Itoa(number)
	c := &cluster{
		id:      mesh.ClusterID("cluster" + n),
		network: mesh.NetworkID("network" + n),
		version: "v" + n,
		number:  number,
	}
	c.gateway = c.newPod(pod{
		role: "east-west gateway", workload: gatewayName, namespace: mesh.DefaultSystemNamespace, account: gatewayName,
		labels: map[string]string{
			"app": gatewayName, "istio": "eastwestgateway", mesh.LabelNetwork: string(c.network),
		},
		nodeType: mesh.Router, ip: c.addr(3),
		own: map[uint16]string{mesh.PortEastWest: "traffic of other networks"},
	})
	c.server = c.newPod(pod{
		role: "helloworld " + c.version, workload: helloworld + "-" + c.version, namespace: sampleNamespace, account: helloworld,
		labels: map[string]string{
			"app": helloworld, "version": c.version, mesh.LabelTLSMode: mesh.TLSModeIstio,
			mesh.LabelCanonicalName: helloworld, mesh.LabelCanonicalRevision: c.version,
			mesh.LabelNetwork: string(c.network),
		},
		nodeType: mesh.Sidecar, ip: c.addr(11),
		own: map[uint16]string{helloworldPort: "requests"},
	})
	c.client = c.newPod(pod{
		role: "client", workload: clientName, namespace: sampleNamespace, account: clientName,
		labels: map[string]string{
			"app": clientName, mesh.LabelTLSMode: mesh.TLSModeIstio,
			mesh.LabelCanonicalName: clientName, mesh.LabelCanonicalRevision: "latest",
			mesh.LabelNetwork: string(c.network),
		},
		nodeType: mesh.Sidecar, ip: c.addr(12),
		own: map[uint16]string{clientProxyPort: "its HTTP proxy"},
	})
	return c
}

// newPod fills in the common fields of the cluster's pods.
func (c *cluster) newPod(p pod) pod {
	p.cluster, p.network = c.id, c.network
	p.role += " of " + string(c.id)
	p.labels["pod-template-hash"] = podTemplateHash
	return p
}

func (c *cluster) addr(host byte) netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(c.number), 0, host})
}

func (c *cluster) pods() []pod { return []pod{c.gateway, c.server, c.client} }

// control returns an address of the control plane.
func (c *cluster) control(port uint16) netip.AddrPort { return netip.AddrPortFrom(c.addr(2), port) }

func (c *cluster) xdsAddr() netip.AddrPort      { return c.control(mesh.PortSecureXDS) }
func (c *cluster) plainXDSAddr() netip.AddrPort { return c.control(mesh.PortPlaintextXDS) }
func (c *cluster) httpAddr() netip.AddrPort     { return c.control(8080) }
func (c *cluster) metricsAddr() netip.AddrPort  { return c.control(mesh.PortMonitoring) }

// endpoints returns all addresses that the cluster's processes listen on.
func (c *cluster) endpoints() []endpoint {
	var out []endpoint
	for _, control := range []struct {
		addr netip.AddrPort
		use  string
	}{
		{c.xdsAddr(), "xDS with TLS"},
		{c.plainXDSAddr(), "plaintext xDS"},
		{c.httpAddr(), "its readiness"},
		{c.metricsAddr(), "its metrics"},
	} {
		out = append(out, endpoint{control.addr, fmt.Sprintf("the control plane of %s", c.id), control.use, true})
	}
	for _, p := range c.pods() {
		out = append(out, p.endpoints()...)
	}
	return out
}

func (p pod) endpoints() []endpoint {
	uses := map[uint16]string{
		mesh.PortEnvoyAdmin:      "Envoy's admin page",
		mesh.PortAgentStatus:     "the agent's status",
		mesh.PortEnvoyReadiness:  "readiness",
		mesh.PortEnvoyPrometheus: "Envoy's metrics",
	}
	maps.Copy(uses, p.own)
	var out []endpoint
	for port, use := range uses {
		out = append(out, endpoint{p.at(port), "the " + p.role, use, false})
	}
	slices.SortFunc(out, func(a, b endpoint) int { return cmp.Compare(a.addr.Port(), b.addr.Port()) })
	return out
}

func (p pod) at(port uint16) netip.AddrPort { return netip.AddrPortFrom(p.ip, port) }

// admin returns the address of the admin interface of the pod's Envoy.
func (p pod) admin() netip.AddrPort { return p.at(mesh.PortEnvoyAdmin) }

// slug returns a short name of the pod for paths, unique on this machine.
func (p pod) slug() string { return string(p.cluster) + "-" + p.workload }
