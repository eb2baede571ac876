package xds

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// Limits bound what peers may use. Zero fields mean the default.
type Limits struct {
	// Names is how many names a stream may subscribe to of one type.
	// Default 100,000.
	Names int
	// NameBytes is the length of these names together. Default 8 MiB.
	NameBytes int
	// Request is the size of the largest request that is read, in bytes.
	// Default 4 MiB.
	Request int
	// FirstRequest is how long a stream may wait with its first request, and
	// a connection with proving whose it is. Default 30 s.
	FirstRequest time.Duration
	// Handshake is how long TLS and HTTP/2 may take to set a connection up.
	// Default 10 s.
	Handshake time.Duration
	// Write is how long a peer may take to read a response, or the network
	// to take any byte, before its connection is closed. Default 30 s.
	Write time.Duration
	// ConnectionAge is how long a connection may last, give or take a tenth;
	// proxies then connect anew, and so spread over all replicas. Default
	// 30 min; NoAge means for ever.
	ConnectionAge time.Duration

	// AddressConns is how many connections one address (IPv6: one /64) may
	// have that have not proved whose they are. Without TLS none do.
	// Default 5,000.
	AddressConns int
	// PendingConns is how many connections all addresses together may have in
	// handshakes and, with TLS, before they prove whose they are. One more
	// closes the oldest. Default 2,048.
	PendingConns int
	// IdentityConns is how many connections one identity may have. Default
	// 5,000.
	IdentityConns int
	// ConnStreams is how many streams one connection may have. Default 100.
	ConnStreams int
	// IdentityStreams is how many streams one identity may have, AddressStreams
	// how many one address (IPv6: one /64) of which no identity is asked.
	// Defaults 10,000.
	IdentityStreams, AddressStreams int

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
	// maxHeaders bounds the headers of a call, in bytes.
	maxHeaders = 64 << 10
	// maxIdle is how long a connection may be without a stream.
	maxIdle = 5 * time.Minute
	// ageGrace is how long calls may go on when their connection ends for its
	// age. Streams do not end by themselves.
	ageGrace = time.Second
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
	number(&l.Request, 4<<20)
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
	number(&l.Starting, 64)
	duration(&l.MemoryWait, 30*time.Second)
	return l
}

// window is how much of its requests a peer may send before they are read, in
// bytes.
const window = 256 << 10

// ServerOptions are the options of a gRPC server that serves the hub. A server
// must have them all: frames need the codec, and the rest is what keeps a
// stream small and a hostile peer bounded.
func (h *Hub) ServerOptions() []grpc.ServerOption {
	l := h.cfg.Limits
	age := keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second, MaxConnectionIdle: maxIdle}
	if l.ConnectionAge > 0 {
		// gRPC itself takes or adds up to a tenth.
		age.MaxConnectionAge, age.MaxConnectionAgeGrace = l.ConnectionAge, ageGrace
	}
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(xdswire.NewServerCodec(h.names)),
		grpc.ReadBufferSize(4 << 10),
		// Windows of a fixed size: to find a better one gRPC would answer every
		// ACK with a ping.
		grpc.InitialWindowSize(window),
		grpc.InitialConnWindowSize(window),
		grpc.MaxRecvMsgSize(l.Request),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(uint32(l.ConnStreams)),
		grpc.ConnectionTimeout(l.Handshake),
		// Half of what agents are told to send.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 15 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(age),
	}
}
