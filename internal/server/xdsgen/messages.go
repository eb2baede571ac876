package xdsgen

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Messages that many resources contain. They must not be changed.
var (
	adsSource = encodedOnce(&corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		InitialFetchTimeout:   noTime,
		ResourceApiVersion:    corev3.ApiVersion_V3,
	})
	tlsModeMatch = encodedOnce(&structpb.Struct{Fields: map[string]*structpb.Value{
		"tlsMode": structpb.NewStringValue(mesh.TLSModeIstio),
	}})
	everyEndpoint = &structpb.Struct{}
	everyPath     = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}

	noTime   = durationpb.New(0)
	maxCount = wrapperspb.UInt32(math.MaxUint32)
	yes, no  = wrapperspb.Bool(true), wrapperspb.Bool(false)

	oneConnection = wrapperspb.UInt32(1)
	maxBody       = wrapperspb.UInt32(1 << 20)
	// handshakeTimeout bounds the TLS handshake of a client with a listener.
	handshakeTimeout = durationpb.New(15 * time.Second)
)

// preEncoded returns a message that encodes to the same bytes as m, a message of constants and valid
// UTF-8. It has the bytes as unknown fields, which the encoder copies. It must not be read or changed.
func preEncoded[M proto.Message](m M) M {
	b, err := xdswire.Marshal(m)
	if err != nil {
		panic("xdsgen: a message that does not encode: " + err.Error())
	}
	out, _ := m.ProtoReflect().New().Interface().(M)
	out.ProtoReflect().SetUnknown(b)
	return out
}

// encodedOnce returns a function that encodes a message at the first use: commands that generate
// nothing start sooner.
func encodedOnce[M proto.Message](m M) func() M {
	return sync.OnceValue(func() M { return preEncoded(m) })
}

// boolean returns a shared message, which must not be changed.
func boolean(b bool) *wrapperspb.BoolValue {
	if b {
		return yes
	}
	return no
}

func discovery(t clusterv3.Cluster_DiscoveryType) *clusterv3.Cluster_Type {
	return &clusterv3.Cluster_Type{Type: t}
}

// address returns an address. Its messages are in one allocation, as there are so many.
func address(host string, port uint32) *corev3.Address {
	var a struct {
		address corev3.Address
		of      corev3.Address_SocketAddress
		socket  corev3.SocketAddress
		port    corev3.SocketAddress_PortValue
	}
	a.port.PortValue = port
	a.socket.Address, a.socket.PortSpecifier = host, &a.port
	a.of.SocketAddress = &a.socket
	a.address.Address = &a.of
	return &a.address
}

// encodedAddress returns an encoded address. It must not be read or changed.
func encodedAddress(host string, port uint32) *corev3.Address {
	const fieldSocket, fieldHost, fieldPort = 1, 2, 3 // of Address, SocketAddress
	size := protowire.SizeTag(fieldHost) + protowire.SizeBytes(len(host)) + protowire.SizeTag(fieldPort) + protowire.SizeVarint(uint64(port))
	b := make([]byte, 0, protowire.SizeTag(fieldSocket)+protowire.SizeBytes(size))
	b = protowire.AppendVarint(appendField(b, fieldSocket), uint64(size))
	b = protowire.AppendString(appendField(b, fieldHost), host)
	b = protowire.AppendVarint(protowire.AppendTag(b, fieldPort, protowire.VarintType), uint64(port))
	a := new(corev3.Address)
	a.ProtoReflect().SetUnknown(b)
	return a
}

func pipe(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}

func localityProto(l mesh.Locality) *corev3.Locality {
	return &corev3.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.Subzone}
}

func portString(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// listenAt sets the addresses of a listener, all of one port.
func listenAt(l *listenerv3.Listener, port uint32, ips []string) { setAddresses(l, address, port, ips) }

// setAddresses sets the addresses of a listener, which a function makes.
func setAddresses(l *listenerv3.Listener, of func(host string, port uint32) *corev3.Address, port uint32, ips []string) {
	l.Address = of(ips[0], port)
	for _, ip := range ips[1:] {
		l.AdditionalAddresses = append(l.AdditionalAddresses, &listenerv3.AdditionalAddress{Address: of(ip, port)})
	}
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

// duration returns a duration, which must not be changed.
func duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return noTime
	}
	return durationpb.New(d)
}
