package xds

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/tap"

	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Limits bound what peers may use. Zero fields mean the default: 5,000
// connections of an address or identity, 2,048 pending ones, 10,000 streams,
// requests of 4 MiB, 32 MiB kept for one peer and 256 MiB for all, 30 s for
// writes, proofs, first requests and their arrival.
type Limits struct {
	admission.Limits
	// Names is how many names a stream may subscribe to of one type.
	// Default 100,000.
	Names int
	// NameBytes is the length of these names together. Default 8 MiB.
	NameBytes int
	// MetadataBytes is the size of a node's metadata. Default 512 KiB.
	MetadataBytes int
	// MetadataDepth is how many objects deep a node's metadata may be nested.
	// Default 32. Other parts of requests are nested far less.
	MetadataDepth int
	// Headers is the size of the headers of a call, in bytes. Default 64 KiB.
	Headers int
	// Ping is how long a peer must wait between pings; one that pings more
	// often loses its connection. Default 15 s, half of what agents are told.
	Ping time.Duration
	// Handshake is how long TLS and HTTP/2 may take to set a connection up.
	// Default 10 s.
	Handshake time.Duration
	// ConnectionAge is how long a connection may last, give or take a tenth;
	// proxies then connect anew, and so spread over all replicas. Default
	// 30 min; NoAge means for ever.
	ConnectionAge time.Duration

	// ConnStreams is how many streams one connection may have. Default 100.
	ConnStreams int

	// Starting is how many streams are given their first configuration at a
	// time; others wait their turn. Default 64.
	Starting int
	// MemoryWait is how long a new stream waits for memory. Default 30 s.
	MemoryWait time.Duration
}

// NoAge is the age of connections that may last for ever.
const NoAge time.Duration = -1

// Bounds that nobody has a reason to change.
const (
	// maxIdle is how long a connection may be without a stream.
	maxIdle = 5 * time.Minute
	// ageGrace is how long calls may go on when their connection ends for its
	// age. Streams do not end by themselves.
	ageGrace = time.Second
	// maxOther is how many bytes a request may have besides names and metadata.
	maxOther = 256 << 10
	// turn is how long a stream may hold others up that wait for their first
	// configuration.
	turn = time.Second
)

// DefaultLimits are the limits of a Hub that is given none.
func DefaultLimits() Limits { return Limits{}.withDefaults() }

func (l Limits) withDefaults() Limits {
	number := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	duration := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	number(&l.Names, 100_000)
	number(&l.NameBytes, 8<<20)
	number(&l.RequestBytes, 4<<20)
	number(&l.MetadataBytes, 512<<10)
	number(&l.MetadataDepth, 32)
	number(&l.Headers, 64<<10)
	duration(&l.Ping, 15*time.Second)
	duration(&l.FirstRequest, 30*time.Second)
	duration(&l.Handshake, 10*time.Second)
	duration(&l.Write, 30*time.Second)
	duration(&l.ConnectionAge, 30*time.Minute)
	number(&l.AddressConns, 5_000)
	number(&l.PendingConns, 2_048)
	number(&l.IdentityConns, 5_000)
	number(&l.ConnStreams, 100)
	number(&l.IdentityStreams, 10_000)
	number(&l.AddressStreams, 10_000)
	number(&l.PeerBytes, 32<<20)
	number(&l.TotalBytes, 256<<20)
	duration(&l.RequestTime, 30*time.Second)
	number(&l.Starting, 64)
	duration(&l.MemoryWait, 30*time.Second)
	return l
}

// window is how much of its requests a peer may send before they are read, in
// bytes. gRPC tells the peer that there is room again when a quarter was read: in
// the state of the world an ACK repeats all names, 44 KB of them for 1,000 Services,
// and a write for each would cost as much as a response.
const window = 1 << 20

// messages is how deep the messages of a request with metadata of this depth
// are nested: in the request and its node each object is one, with a field and
// its value.
func messages(metadata int) int { return 2 + 3*metadata }

// ServerOptions are the options of a gRPC server that serves the hub. A server
// must have them all: frames need the codec, and the rest is what keeps a
// stream small and a hostile peer bounded. Refuse, which may be nil, is asked
// before a call is made.
func (h *Hub) ServerOptions(refuse tap.ServerInHandle) []grpc.ServerOption {
	l := h.cfg.Limits
	age := keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second, MaxConnectionIdle: maxIdle}
	if l.ConnectionAge > 0 {
		// gRPC itself takes or adds up to a tenth.
		age.MaxConnectionAge, age.MaxConnectionAgeGrace = l.ConnectionAge, ageGrace
	}
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(xdswire.NewServerCodec(h.names, xdswire.RequestLimits{
			Depth: messages(l.MetadataDepth),
			// A request may subscribe to all names that it says to hold.
			Names: 2 * l.Names,
			Other: l.MetadataBytes + maxOther,
		})),
		admission.NoReadBuffer(),
		admission.NoWriteBuffer(),
		admission.CountRequests(refuse),
		experimental.BufferPool(xdswire.RequestBuffers()),
		// Windows of a fixed size: to find a better one gRPC would answer every
		// ACK with a ping.
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

// NewConns makes what bounds the connections of one server of the hub. It says
// whether the server's peers authenticate.
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
