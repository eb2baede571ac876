// Package bootstrap builds the configuration that Envoy starts with: its node, the sources
// of its configuration and secrets, and the listeners for readiness and metrics. Everything
// else reaches Envoy by ADS. It also builds the bootstrap of gRPC applications.
package bootstrap

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	internallistenerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/bootstrap/internal_listener/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Config is the input of Envoy's bootstrap. Addresses are valid and ports are not 0.
type Config struct {
	Node mesh.NodeID
	// NodeCluster is the name by which telemetry groups proxies.
	NodeCluster string
	// Metadata is the node's metadata under Istio's keys, with values that structpb accepts.
	Metadata map[string]any

	// Listen is the address of readiness, metrics and status, or a wildcard. Local is the
	// address of the admin port, and the address at which Envoy reaches the status port.
	Listen, Local netip.Addr
	// DualStack also listens on the IPv6 wildcard where Listen is the IPv4 wildcard.
	DualStack bool

	AdminPort, StatusPort, ReadyPort, StatsPort uint16

	// SDSSocket is the path of the Unix socket that serves Envoy's secrets. Its directory
	// holds nothing else, so that it can be closed to other users.
	SDSSocket string
	// WorkloadSocket, if set, is the path of the Unix socket of another SPIFFE agent, which
	// serves the certificate of the workload instead.
	WorkloadSocket string

	// XDSSocket is the path of the Unix socket that relays xDS streams. Direct
	// makes Envoy connect to the control plane itself.
	XDSSocket string
	Direct    bool

	// ProofCert and ProofKey, PEM, are the certificate by which Envoy and the agent prove themselves
	// to each other on both sockets. Without them, the sockets have no TLS.
	ProofCert, ProofKey []byte
	// SharedXDS means that applications use XDSSocket, too, without TLS.
	SharedXDS bool

	// Discovery is the control plane.
	Discovery Server
	// XDSRootFile holds the roots of the control plane's certificate, PEM. If it is empty,
	// the roots of the mesh sign the control plane.
	XDSRootFile string
	// KeyExchanges are the key exchanges with the control plane; empty means the default of
	// each client.
	KeyExchanges []tls.CurveID
	// Delta selects incremental xDS instead of state of the world.
	Delta bool

	// Patch is a part of a bootstrap from the control plane, an encoded Bootstrap, that is merged
	// into the result in the same way before Override.
	Patch []byte
	// Override is a part of a bootstrap, YAML or JSON, that is merged into the result: lists are
	// appended, other fields replaced.
	Override []byte

	Stats StatsInclusion
	// ExtraStatTags are further parts of statistic names that become labels. Extensions write
	// them as NAME=.=VALUE;.; like Istio's.
	ExtraStatTags []string
	// MaxHeap is the size of Envoy's heap, in bytes, near which it refuses requests; 0 is for
	// no limit.
	MaxHeap uint64
	// CountConnections keeps the number of connections of each listener.
	CountConnections bool
	RuntimeValues    map[string]string
	// OutlierLog is the path of the file to which Envoy logs the hosts that it ejects, empty for
	// none.
	OutlierLog string
}

// Server is a TLS server with the DNS name that its certificate must hold.
type Server struct {
	Host string // an IP address or a DNS name
	Port uint16
	Name string
}

// Addr returns host:port.
func (s Server) Addr() string { return net.JoinHostPort(s.Host, strconv.Itoa(int(s.Port))) }

// StatsInclusion selects statistics to keep in addition to the built-in ones.
type StatsInclusion struct{ Prefixes, Suffixes, Regexps []string }

// PathEnvoyMetrics is the path of the metrics of Envoy at the status port of the agent. The agent
// converts some of them to Istio's standard metrics.
const PathEnvoyMetrics = "/stats/prometheus/envoy"

// Marshal renders the bootstrap as indented JSON. Equal configurations give
// equal bytes.
func Marshal(c Config) ([]byte, error) {
	b, err := build(c)
	if err != nil {
		return nil, fmt.Errorf("build bootstrap: %w", err)
	}
	if err := patch(b, c.Patch); err != nil {
		return nil, err
	}
	if err := override(b, c.Override); err != nil {
		return nil, err
	}
	raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("encode bootstrap: %w", err)
	}
	// The white space of protojson differs between builds.
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return nil, fmt.Errorf("encode bootstrap: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

func build(c Config) (*bootstrapv3.Bootstrap, error) {
	metadata, err := structpb.NewStruct(c.Metadata)
	if err != nil {
		return nil, fmt.Errorf("node metadata: %w", err)
	}
	var p packer
	xds := p.socketCluster(mesh.XDSCluster, c.XDSSocket)
	switch {
	case c.Direct:
		xds = p.xdsCluster(c)
	case !c.SharedXDS:
		p.prove(xds, c)
	}
	sds := p.socketCluster(mesh.SDSCluster, cmp.Or(c.WorkloadSocket, c.SDSSocket))
	if c.WorkloadSocket == "" { // another SPIFFE agent has no TLS
		p.prove(sds, c)
	}
	b := &bootstrapv3.Bootstrap{
		Node: &corev3.Node{
			Id:       c.Node.String(),
			Cluster:  c.NodeCluster,
			Metadata: metadata,
			Locality: &corev3.Locality{},
		},
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{
			Listeners: []*listenerv3.Listener{
				p.forwarder(c, c.StatsPort, "stats", "/stats/prometheus", PathEnvoyMetrics),
				p.forwarder(c, c.ReadyPort, "agent", "/healthz/ready", ""),
			},
			Clusters: []*clusterv3.Cluster{
				localCluster(mesh.AgentCluster, c.Local, c.StatusPort),
				sds,
				xds,
			},
		},
		DynamicResources: dynamicResources(c.Delta),
		// The agent gives Envoy the address of the admin interface when it starts it.
		Admin:          &bootstrapv3.Admin{ProfilePath: "/dev/null"},
		StatsConfig:    statsConfig(&c),
		LayeredRuntime: layeredRuntime(c.RuntimeValues),
		BootstrapExtensions: []*corev3.TypedExtensionConfig{{
			Name: "envoy.bootstrap.internal_listener",
			TypedConfig: p.any(&internallistenerv3.InternalListener{
				BufferSizeKb: wrapperspb.UInt32(64),
			}),
		}},
		OverloadManager: p.overloadManager(c.MaxHeap, c.Node.Type == mesh.Router),
		ApplicationLogConfig: &bootstrapv3.Bootstrap_ApplicationLogConfig{
			LogFormat: &bootstrapv3.Bootstrap_ApplicationLogConfig_LogFormat{
				LogFormat: &bootstrapv3.Bootstrap_ApplicationLogConfig_LogFormat_TextFormat{
					TextFormat: "%Y-%m-%dT%T.%fZ\t%l\tenvoy %n %g:%#\t%v\tthread=%t",
				},
			},
		},
		DeferredStatOptions: &bootstrapv3.Bootstrap_DeferredStatOptions{EnableDeferredCreationStats: true},
	}
	if c.OutlierLog != "" {
		b.ClusterManager = &bootstrapv3.ClusterManager{
			OutlierDetection: &bootstrapv3.ClusterManager_OutlierDetection{EventLogPath: c.OutlierLog},
		}
	}
	return b, p.err
}

// dynamicResources configures one ADS stream for clusters and listeners. Envoy waits for them
// without a limit.
func dynamicResources(delta bool) *bootstrapv3.Bootstrap_DynamicResources {
	api := corev3.ApiConfigSource_GRPC
	if delta {
		api = corev3.ApiConfigSource_DELTA_GRPC
	}
	overADS := &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		InitialFetchTimeout:   durationpb.New(0),
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
	return &bootstrapv3.Bootstrap_DynamicResources{
		LdsConfig: overADS,
		CdsConfig: overADS,
		AdsConfig: apiConfigSource(api, mesh.XDSCluster),
	}
}

func apiConfigSource(api corev3.ApiConfigSource_ApiType, cluster string) *corev3.ApiConfigSource {
	return &corev3.ApiConfigSource{
		ApiType:                   api,
		TransportApiVersion:       corev3.ApiVersion_V3,
		SetNodeOnFirstMessageOnly: true,
		GrpcServices: []*corev3.GrpcService{{
			TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
				EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: cluster},
			},
		}},
	}
}

// layeredRuntime returns the runtime values of Istio, overlaid with the user's values, then
// with values set over the admin port.
func layeredRuntime(values map[string]string) *bootstrapv3.LayeredRuntime {
	fields := map[string]*structpb.Value{
		"re2.max_program_size.error_level":                         structpb.NewStringValue("32768"),
		"envoy.reloadable_features.http_reject_path_with_fragment": structpb.NewBoolValue(false),
		// Rules of AuthorizationPolicies compare repeated headers as one list. Otherwise a
		// second header could join one that a rule permits.
		"envoy.reloadable_features.rbac_match_headers_individually":      structpb.NewBoolValue(false),
		"envoy.reloadable_features.coalesce_lb_rebuilds_on_batch_update": structpb.NewBoolValue(false),
	}
	for k, v := range values {
		fields[k] = structpb.NewStringValue(v)
		if v == "" {
			delete(fields, k)
		}
	}
	return &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{
		{
			Name:           xdswire.RuntimeLayer,
			LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: &structpb.Struct{Fields: fields}},
		},
		{
			Name:           xdswire.AdminLayer,
			LayerSpecifier: &bootstrapv3.RuntimeLayer_AdminLayer_{AdminLayer: &bootstrapv3.RuntimeLayer_AdminLayer{}},
		},
	}}
}
