package debug

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// ofSnapshot returns a page of the newest snapshot.
func (p *Pages) ofSnapshot(show func(*snapshot.Snapshot) any) func(context.Context, Query) (any, error) {
	return func(context.Context, Query) (any, error) {
		s, err := p.snapshot()
		if err != nil {
			return nil, err
		}
		return show(s), nil
	}
}

// snapshot returns the newest snapshot.
func (p *Pages) snapshot() (*snapshot.Snapshot, error) {
	if s := p.cfg.Snapshot(); s != nil {
		return s, nil
	}
	return nil, &Error{http.StatusServiceUnavailable, "the configuration was not read completely yet"}
}

// service is a service in Istio's fields.
type service struct {
	Attributes struct {
		ServiceRegistry string
		Name            string
		Namespace       string
		ExportTo        []string `json:",omitempty"`
	}
	Ports        []servicePort `json:"ports,omitempty"`
	CreationTime time.Time     `json:"creationTime,omitzero"`
	Hostname     string        `json:"hostname"`
	ClusterVIPs  struct {
		Addresses map[mesh.ClusterID][]netip.Addr
	} `json:"clusterVIPs"`
	ServiceAccounts []string `json:"serviceAccounts,omitempty"`
	Headless        bool     `json:"headless,omitempty"`
	ExternalName    string   `json:"externalName,omitempty"`
}

type servicePort struct {
	Name     string        `json:"name,omitempty"`
	Port     uint32        `json:"port"`
	Protocol mesh.Protocol `json:"protocol"`
}

// Istio's names for the sources of services.
const (
	registryKind = "Kubernetes"
	externalKind = "External" // ServiceEntries
)

func registryz(s *snapshot.Snapshot) any {
	out := []service{}
	for _, svc := range s.Services.All() {
		out = append(out, serviceOf(svc))
	}
	return out
}

func serviceOf(svc *snapshot.MeshService) service {
	x := service{Hostname: svc.Host, CreationTime: svc.Created, ServiceAccounts: svc.Accounts, Headless: svc.Headless, ExternalName: svc.ExternalName}
	x.Attributes.ServiceRegistry, x.Attributes.Name, x.Attributes.Namespace, x.Attributes.ExportTo = registryKind, svc.Name, svc.Namespace, svc.ExportTo
	if svc.Entry {
		x.Attributes.ServiceRegistry = externalKind
	}
	for _, port := range svc.Ports {
		x.Ports = append(x.Ports, servicePort{port.Name, port.Number, port.Protocol})
	}
	x.ClusterVIPs.Addresses = make(map[mesh.ClusterID][]netip.Addr)
	for i := range svc.Clusters {
		x.ClusterVIPs.Addresses[svc.Clusters[i].Cluster] = svc.Clusters[i].VIPs
	}
	return x
}

// endpoint is an endpoint in Istio's fields.
type endpoint struct {
	Addresses       []netip.Addr
	ServicePortName string
	EndpointPort    uint32
	Network         mesh.NetworkID
	Locality        struct {
		Label     string
		ClusterID mesh.ClusterID
	}
	Labels       map[string]string `json:",omitempty"`
	LbWeight     uint32
	TLSMode      string `json:",omitempty"`
	Namespace    string
	HostName     string `json:",omitempty"`
	HealthStatus int    // 1 healthy, 2 unhealthy
	Drained      bool   `json:",omitempty"`
	Demoted      bool   `json:",omitempty"`
}

type shards struct {
	Shards map[string][]endpoint
}

// endpointShardz returns the endpoints by host, namespace and shard. A shard is a
// cluster.
func endpointShardz(s *snapshot.Snapshot) any {
	out := make(map[string]map[string]shards)
	for host, eps := range s.Endpoints.All() {
		namespace := ""
		if svc := s.Services.Get(host); svc != nil {
			namespace = svc.Namespace
		}
		by := make(map[string][]endpoint)
		for _, port := range slices.Sorted(maps.Keys(eps.ByPort)) {
			for _, e := range eps.ByPort[port] {
				x := endpoint{
					Addresses: []netip.Addr{e.Address}, ServicePortName: port, EndpointPort: e.Port, Network: e.Network,
					Labels: e.Labels, LbWeight: cmp.Or(e.Weight, 1), Namespace: namespace, HostName: e.Hostname,
					HealthStatus: int(e.Health) + 1, Drained: e.Drained, Demoted: e.Demoted,
				}
				x.Locality.Label, x.Locality.ClusterID = e.Locality.String(), e.Cluster
				if e.TLSMode {
					x.TLSMode = mesh.TLSModeIstio
				}
				shard := registryKind + "/" + string(e.Cluster)
				by[shard] = append(by[shard], x)
			}
		}
		out[host] = map[string]shards{namespace: {by}}
	}
	return out
}

// gateway is the gateway of a network in Istio's fields.
type gateway struct {
	Network mesh.NetworkID
	Cluster mesh.ClusterID
	Addr    netip.Addr
	Port    uint32
}

func networkGateways(s *snapshot.Snapshot) []gateway {
	out := []gateway{}
	for _, network := range slices.Sorted(maps.Keys(s.Gateways.ByNetwork)) {
		for _, g := range s.Gateways.ByNetwork[network] {
			out = append(out, gateway{g.Network, g.Cluster, g.Address, g.Port})
		}
	}
	return out
}

// meshConfig returns the fields of MeshConfig that have an effect, and the networks.
func meshConfig(s *snapshot.Snapshot) any {
	type tls struct {
		ECDHCurves []string `json:"ecdhCurves"`
	}
	var mtls *tls
	if curves := s.Mesh.MeshTLS.Curves; curves != "" {
		mtls = &tls{strings.Split(curves, ":")}
	}
	networks := make(map[mesh.ClusterID]mesh.NetworkID)
	for id, network := range s.Networks.All() {
		networks[id] = *network
	}
	log := s.Mesh.AccessLog
	encoding := "TEXT"
	if log.JSON {
		encoding = "JSON"
	}
	return struct {
		TrustDomain              string                            `json:"trustDomain"`
		TrustDomainAliases       []string                          `json:"trustDomainAliases,omitempty"`
		RootNamespace            string                            `json:"rootNamespace"`
		EnableAutoMTLS           bool                              `json:"enableAutoMtls"`
		OutboundTrafficPolicy    outboundTrafficPolicy             `json:"outboundTrafficPolicy"`
		ConnectTimeout           string                            `json:"connectTimeout"`
		ProtocolDetectionTimeout string                            `json:"protocolDetectionTimeout"`
		AccessLogFile            string                            `json:"accessLogFile"`
		AccessLogEncoding        string                            `json:"accessLogEncoding"`
		AccessLogFormat          string                            `json:"accessLogFormat"`
		EnableTracing            bool                              `json:"enableTracing"`
		MeshMTLS                 *tls                              `json:"meshMTLS,omitempty"`
		Networks                 map[mesh.ClusterID]mesh.NetworkID `json:"networks"`
	}{
		s.Mesh.TrustDomain, s.Mesh.Aliases, s.Mesh.RootNamespace, s.Mesh.AutoMTLS, meshPolicy(s), s.Mesh.ConnectTimeout.String(),
		s.Mesh.Listeners.DetectionTimeout.String(), log.File, encoding, log.Format, s.Mesh.Listeners.Tracing.On, mtls, networks,
	}
}

func pushContext(s *snapshot.Snapshot) any {
	return struct {
		NetworkGateways []gateway
		Snapshot        uint64
		Services, Pods  int
	}{networkGateways(s), s.Seq, s.Services.Len(), s.Pods.Len()}
}
