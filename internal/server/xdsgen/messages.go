package xdsgen

import (
	"maps"
	"math"
	"slices"
	"strconv"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Messages that many resources contain. They must not be changed.
var (
	adsSource = &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		InitialFetchTimeout:   noTime,
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
	tlsModeMatch = &structpb.Struct{Fields: map[string]*structpb.Value{
		"tlsMode": structpb.NewStringValue(mesh.TLSModeIstio),
	}}
	everyEndpoint = &structpb.Struct{}
	everyPath     = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}

	noTime   = durationpb.New(0)
	maxCount = wrapperspb.UInt32(math.MaxUint32)
)

func discovery(t clusterv3.Cluster_DiscoveryType) *clusterv3.Cluster_Type {
	return &clusterv3.Cluster_Type{Type: t}
}

func address(host string, port uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}
}

func pipe(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}

func localityProto(l mesh.Locality) *corev3.Locality {
	return &corev3.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.Subzone}
}

func portString(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// listenAt sets the addresses of a listener, all of one port.
func listenAt(l *listenerv3.Listener, port uint32, ips []string) {
	l.Address = address(ips[0], port)
	for _, ip := range ips[1:] {
		l.AdditionalAddresses = append(l.AdditionalAddresses, &listenerv3.AdditionalAddress{Address: address(ip, port)})
	}
}

func istioMetadata(key string, v *structpb.Value) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		"istio": {Fields: map[string]*structpb.Value{key: v}},
	}}
}

// serviceID names a service in metadata.
type serviceID struct{ Name, Space, Host string }

func serviceMetadata(services ...serviceID) *corev3.Metadata {
	list := &structpb.ListValue{Values: make([]*structpb.Value, 0, len(services))}
	for _, svc := range services {
		list.Values = append(list.Values, structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
			"host":      structpb.NewStringValue(svc.Host),
			"name":      structpb.NewStringValue(svc.Name),
			"namespace": structpb.NewStringValue(svc.Space),
		}}))
	}
	return istioMetadata("services", structpb.NewListValue(list))
}

// one returns a single resource as a list.
func one(r *xdswire.Resource, err error) ([]*xdswire.Resource, error) {
	if err != nil {
		return nil, err
	}
	return []*xdswire.Resource{r}, nil
}

// sortedPorts returns the keys of m in order.
func sortedPorts[V any](m map[uint32]V) []uint32 { return slices.Sorted(maps.Keys(m)) }
