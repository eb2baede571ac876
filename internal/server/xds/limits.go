package xds

import (
	"cmp"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/tap"

	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// maxPeerText bounds a text of a peer, such as the reason why an Envoy refuses a response, in logs
// and on status pages.
const maxPeerText = 1024

// Limits bound the resources that peers may use. Zero fields mean the default; for the
// embedded limits it is 5,000 connections of an address or identity, 2,048 pending
// ones, 10,000 streams, requests of 4 MiB, 32 MiB for one peer, 256 MiB for all peers,
// and 30 s for writes, authentication, first requests and the arrival of a request.
type Limits struct {
	admission.Limits
	// Names is the number of names that a stream may subscribe to in one type.
	// Default 100,000.
	Names int
	// NameBytes is the total length of these names. Default 8 MiB.
	NameBytes int
	// PushedHosts is the number of services up to which a sidecar with virtual host discovery gets
	// all virtual hosts. Default 2,000.
	PushedHosts int
	// RequestedHosts is the number of virtual hosts that a stream gets on demand. Default 10,000.
	RequestedHosts int
	// MetadataBytes is the size of a node's metadata. Default 512 KiB.
	MetadataBytes int
	// MetadataDepth is the nesting depth of objects in a node's metadata. Default
	// 32. Other parts of requests are nested far less.
	MetadataDepth int
	// Headers is the size of the headers of a call in bytes. Default 64 KiB.
	Headers int
	// Ping is the least time between a peer's pings. A peer that pings more often
	// loses its connection. Default 15 s, half the interval that agents use.
	Ping time.Duration
	// Handshake is the time for the handshakes of TLS and HTTP/2. Default 10 s.
	Handshake time.Duration
	// ConnectionAge is the lifetime of a connection, plus or minus a tenth. Proxies
	// then reconnect, which spreads them over all replicas. Default 30 min; NoAge
	// means no limit.
	ConnectionAge time.Duration

	// ClusterWait is the time that routes wait until a proxy has accepted new clusters,
	// and clusters that are gone until it has accepted newer routes. Default 5 s.
	ClusterWait time.Duration

	// ConnStreams is the number of streams on one connection. Default 100.
	ConnStreams int

	// Starting is the number of streams that get their first configuration at the
	// same time; other streams wait. Default 64.
	Starting int
	// MemoryWait is the time that a new stream waits for memory. Default 30 s.
	MemoryWait time.Duration
}

// NoAge is the ConnectionAge of connections without a limit.
const NoAge time.Duration = -1

// Bounds that need no configuration.
const (
	// maxIdle is the time that a connection may be without a stream.
	maxIdle = 5 * time.Minute
	// ageGrace is the time that calls may take to end when their connection
	// reaches its age. Streams do not end by themselves.
	ageGrace = time.Second
	// maxOther is the number of bytes in a request besides names and metadata.
	maxOther = 256 << 10
	// maxLeft is the number of proxies that left, and leftAge the time, for which the hub
	// remembers the policies that were in force.
	maxLeft = 50_000
	leftAge = time.Hour
	// drainMargin is the time that a proxy may take from its ACK of listeners until it drains
	// the old ones.
	drainMargin = 5 * time.Second
	// turn is the time that a stream may make other streams wait for their first
	// configuration.
	turn = time.Second
)

// DefaultLimits returns the limits of a hub whose Config sets none.
func DefaultLimits() Limits { return Limits{}.withDefaults() }

func (l Limits) withDefaults() Limits {
	l.Names = cmp.Or(l.Names, 100_000)
	l.NameBytes = cmp.Or(l.NameBytes, 8<<20)
	l.PushedHosts = cmp.Or(l.PushedHosts, 2_000)
	l.RequestedHosts = cmp.Or(l.RequestedHosts, 10_000)
	l.RequestBytes = cmp.Or(l.RequestBytes, 4<<20)
	l.MetadataBytes = cmp.Or(l.MetadataBytes, 512<<10)
	l.MetadataDepth = cmp.Or(l.MetadataDepth, 32)
	l.Headers = cmp.Or(l.Headers, 64<<10)
	l.Ping = cmp.Or(l.Ping, 15*time.Second)
	l.FirstRequest = cmp.Or(l.FirstRequest, 30*time.Second)
	l.Handshake = cmp.Or(l.Handshake, 10*time.Second)
	l.Write = cmp.Or(l.Write, 30*time.Second)
	l.ConnectionAge = cmp.Or(l.ConnectionAge, 30*time.Minute)
	l.ClusterWait = cmp.Or(l.ClusterWait, 5*time.Second)
	l.AddressConns = cmp.Or(l.AddressConns, 5_000)
	l.PendingConns = cmp.Or(l.PendingConns, 2_048)
	l.IdentityConns = cmp.Or(l.IdentityConns, 5_000)
	l.ConnStreams = cmp.Or(l.ConnStreams, 100)
	l.IdentityStreams = cmp.Or(l.IdentityStreams, 10_000)
	l.AddressStreams = cmp.Or(l.AddressStreams, 10_000)
	l.PeerBytes = cmp.Or(l.PeerBytes, 32<<20)
	l.TotalBytes = cmp.Or(l.TotalBytes, 256<<20)
	l.RequestTime = cmp.Or(l.RequestTime, 30*time.Second)
	l.Starting = cmp.Or(l.Starting, 64)
	l.MemoryWait = cmp.Or(l.MemoryWait, 30*time.Second)
	return l
}

// window is the number of bytes that a peer may send before they are read. gRPC sends a
// window update whenever a quarter was read. A state-of-the-world ACK repeats all
// names, 44 KB for 1,000 Services, and an update for each ACK would cost as much as
// a response.
const window = 1 << 20

// messageDepth returns the nesting depth of messages in a request with metadata of the
// given depth: the request, its node, and three messages for each object, as an
// object has a field and that has a value.
func messageDepth(metadata int) int { return 2 + 3*metadata }

// ServerOptions returns the options of a gRPC server that serves the hub. The server
// needs all of them: frames require the codec, and the other options keep a stream
// small and bound a hostile peer. Refuse, which may be nil, may reject a call before
// it starts.
func (h *Hub) ServerOptions(refuse tap.ServerInHandle) []grpc.ServerOption {
	l := h.cfg.Limits
	age := keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second, MaxConnectionIdle: maxIdle}
	if l.ConnectionAge > 0 {
		// gRPC varies the age by a tenth.
		age.MaxConnectionAge, age.MaxConnectionAgeGrace = l.ConnectionAge, ageGrace
	}
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(xdswire.NewServerCodec(h.names, xdswire.RequestLimits{
			Depth: messageDepth(l.MetadataDepth),
			// A request may report versions of as many names as it subscribes to.
			Names: 2 * l.Names,
			Other: l.MetadataBytes + maxOther,
		})),
		admission.NoReadBuffer(),
		admission.NoWriteBuffer(),
		admission.CountRequests(refuse),
		experimental.BufferPool(xdswire.RequestBuffers()),
		// The windows are fixed, because to adjust them gRPC would answer every ACK
		// with a ping.
		grpc.InitialWindowSize(window),
		grpc.InitialConnWindowSize(window),
		grpc.MaxRecvMsgSize(l.RequestBytes),
		grpc.MaxHeaderListSize(uint32(l.Headers)),
		grpc.MaxConcurrentStreams(uint32(l.ConnStreams)),
		grpc.ConnectionTimeout(l.Handshake),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: l.Ping, PermitWithoutStream: true}),
		grpc.KeepaliveParams(age),
	}
}

// NewConns returns the limits on the connections of one server of the hub; authenticate
// is set if the server's peers authenticate.
func (h *Hub) NewConns(authenticate bool) *admission.Conns {
	m := h.cfg.Metrics
	c := admission.NewConns(admission.Config{
		Limits: h.cfg.Limits.Limits, Log: h.cfg.Log, Now: h.cfg.Now, Authenticate: authenticate,
		Stats: admission.Stats{Refused: m.refusedConns.Inc, Rejected: m.rejected.Inc, Stalled: m.stalled.Inc, Closed: m.closed.Inc},
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	h.conns = append(h.conns, c)
	return c
}
