package wire

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
	AdsSource = EncodedOnce(&corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		InitialFetchTimeout:   NoTime,
		ResourceApiVersion:    corev3.ApiVersion_V3,
	})
	TLSModeMatch = EncodedOnce(&structpb.Struct{Fields: map[string]*structpb.Value{
		"tlsMode": structpb.NewStringValue(mesh.TLSModeIstio),
	}})
	EveryEndpoint = &structpb.Struct{}
	EveryPath     = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}

	NoTime   = durationpb.New(0)
	MaxCount = wrapperspb.UInt32(math.MaxUint32)
	Yes      = wrapperspb.Bool(true)
	No       = wrapperspb.Bool(false)

	OneConnection = wrapperspb.UInt32(1)
	MaxBody       = wrapperspb.UInt32(1 << 20)
	// HandshakeTimeout bounds the TLS handshake of a client with a listener.
	HandshakeTimeout = durationpb.New(15 * time.Second)
)

// PreEncoded returns a message that encodes to the same bytes as m, a message of constants and valid
// UTF-8. It has the bytes as unknown fields, which the encoder copies. It must not be read or changed.
func PreEncoded[M proto.Message](m M) M {
	b, err := xdswire.Marshal(m)
	if err != nil {
		panic("xdsgen: a message that does not encode: " + err.Error())
	}
	out, _ := m.ProtoReflect().New().Interface().(M)
	out.ProtoReflect().SetUnknown(b)
	return out
}

// EncodedOnce returns a function that encodes a message at the first use: commands that generate
// nothing start sooner.
func EncodedOnce[M proto.Message](m M) func() M {
	return sync.OnceValue(func() M { return PreEncoded(m) })
}

// Boolean returns a shared message, which must not be changed.
func Boolean(b bool) *wrapperspb.BoolValue {
	if b {
		return Yes
	}
	return No
}

// Discovery returns how a cluster finds its endpoints.
func Discovery(t clusterv3.Cluster_DiscoveryType) *clusterv3.Cluster_Type {
	return &clusterv3.Cluster_Type{Type: t}
}

// Address returns an address. Its messages are in one allocation, as there are so many.
func Address(host string, port uint32) *corev3.Address {
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

// EncodedAddress returns an encoded address. It must not be read or changed.
func EncodedAddress(host string, port uint32) *corev3.Address {
	const fieldSocket, fieldHost, fieldPort = 1, 2, 3 // of Address, SocketAddress
	size := protowire.SizeTag(fieldHost) + protowire.SizeBytes(len(host)) + protowire.SizeTag(fieldPort) + protowire.SizeVarint(uint64(port))
	b := make([]byte, 0, protowire.SizeTag(fieldSocket)+protowire.SizeBytes(size))
	b = protowire.AppendVarint(AppendField(b, fieldSocket), uint64(size))
	b = protowire.AppendString(AppendField(b, fieldHost), host)
	b = protowire.AppendVarint(protowire.AppendTag(b, fieldPort, protowire.VarintType), uint64(port))
	a := new(corev3.Address)
	a.ProtoReflect().SetUnknown(b)
	return a
}

// Pipe returns the address of a Unix socket.
func Pipe(path string) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path}}}
}

// LocalityProto returns Envoy's message of a locality.
func LocalityProto(l mesh.Locality) *corev3.Locality {
	return &corev3.Locality{Region: l.Region, Zone: l.Zone, SubZone: l.Subzone}
}

// PortString returns a port number as a text.
func PortString(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

// ListenAt sets the addresses of a listener, all of one port.
func ListenAt(l *listenerv3.Listener, port uint32, ips []string) { SetAddresses(l, Address, port, ips) }

// SetAddresses sets the addresses of a listener, which a function makes.
func SetAddresses(l *listenerv3.Listener, of func(host string, port uint32) *corev3.Address, port uint32, ips []string) {
	l.Address = of(ips[0], port)
	for _, ip := range ips[1:] {
		l.AdditionalAddresses = append(l.AdditionalAddresses, &listenerv3.AdditionalAddress{Address: of(ip, port)})
	}
}

// One returns a single resource as a list.
func One(r *xdswire.Resource, err error) ([]*xdswire.Resource, error) {
	if err != nil {
		return nil, err
	}
	return []*xdswire.Resource{r}, nil
}

// SortedPorts returns the keys of m in order.
func SortedPorts[V any](m map[uint32]V) []uint32 { return slices.Sorted(maps.Keys(m)) }

// Duration returns a duration, which must not be changed.
func Duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return NoTime
	}
	return durationpb.New(d)
}
