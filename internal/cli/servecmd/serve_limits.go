package servecmd

import (
	"math"
	"time"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/internal/server/xds"
)

// maxMetadataDepth bounds the stack that decodes nested metadata.
const maxMetadataDepth = 1000

// bindLimits defines the flags for the limits of peers, waits, and certificates.
func bindLimits(f *pflag.FlagSet, cfg *server.Config) {
	cfg.Limits, cfg.ShutdownTimeout, cfg.RemoteTimeout = xds.DefaultLimits(), 5*time.Second, 30*time.Second
	l := &cfg.Limits
	number := func(name string, value *int, most int, usage string) {
		cli.NumberVar(f, value, name, *value, 1, most, usage)
	}
	const most = math.MaxInt32
	number("max-connections-per-address", &l.AddressConns, most, "Largest `number` of connections of one address before authentication")
	number("max-connections-per-identity", &l.IdentityConns, most, "Largest `number` of connections of one identity")
	number("max-pending-connections", &l.PendingConns, most, "Largest `number` of connections of all addresses before authentication; a further connection closes the oldest")
	number("max-streams-per-connection", &l.ConnStreams, most, "Largest `number` of streams of one connection")
	number("max-streams-per-identity", &l.IdentityStreams, most, "Largest `number` of streams of one identity")
	number("max-streams-per-address", &l.AddressStreams, most, "Largest `number` of streams of one address on the server without TLS")
	number("max-starting-streams", &l.Starting, most, "`Number` of streams that get their first configuration at the same time; others wait")
	number("max-names", &l.Names, most, "Largest `number` of resource names in the subscription of a stream to a type")
	number("max-name-bytes", &l.NameBytes, most, "Largest total `size` of the resource names in the subscription of a stream to a type")
	number("max-held-bytes-per-identity", &l.PeerBytes, most, "Largest `size` of pending requests and subscribed names of one identity (without TLS: of one address); further requests wait, further names are refused")
	number("max-held-bytes", &l.TotalBytes, most, "Largest `size` of pending requests and subscribed names of all identities of a port; requests may take a quarter of this size; further requests wait; if no request fits for 2s, the server closes the largest connection of the identity that holds the most")
	number("max-request-bytes", &l.RequestBytes, most, "Largest `size` of a request")
	number("max-metadata-bytes", &l.MetadataBytes, most, "Largest encoded `size` of the metadata of a node")
	number("max-metadata-depth", &l.MetadataDepth, maxMetadataDepth, "Largest `number` of levels in the metadata of a node")
	number("max-header-bytes", &l.Headers, most, "Largest `size` of the headers of a call")

	wait := func(name string, value *time.Duration, usage string) { cli.WaitVar(f, value, name, *value, usage) }
	wait("handshake-timeout", &l.Handshake, "Longest time to set up a connection")
	wait("first-request-timeout", &l.FirstRequest, "Longest time for the first request of a stream, and for the authentication of a connection")
	wait("request-timeout", &l.RequestTime, "Longest time for a request to arrive, and to wait for --max-held-bytes-per-identity and --max-held-bytes; then its connection is closed")
	wait("write-timeout", &l.Write, "Longest time for a proxy to read a response; then the connection is closed, unless the proxy reads at least 64 KiB a second")
	wait("min-ping-interval", &l.Ping, "Shortest interval between pings of a connection; a connection that pings more often is closed")
	wait("memory-wait", &l.MemoryWait, "Longest time that a new stream waits for memory")
	wait("shutdown-timeout", &cfg.ShutdownTimeout, "Longest wait for streams to end when the server stops")
	wait("remote-timeout", &cfg.RemoteTimeout, "Longest wait for other clusters before the server is ready")

	cli.DurationVar(f, &l.ConnectionAge, "max-connection-age", l.ConnectionAge, "Time after which a proxy must reconnect, plus or minus a tenth; 0 for no limit")
	p := &cfg.Signing
	cli.DurationVar(f, &p.TTL, "cert-ttl", ca.DefaultTTL, "Default lifetime of a workload certificate")
	cli.DurationVar(f, &p.MaxTTL, "max-cert-ttl", ca.DefaultMaxTTL, "Longest certificate lifetime that a workload may request")
	f.Float64Var(&p.PerIdentity, "csr-limit-per-identity", ca.DefaultPerIdentity, "Certificate requests of one identity a second, with a burst of ten times the `number`; 0 for no limit")
}

// checkLimits checks the limits of certificates. An age of 0 becomes no limit.
func checkLimits(cfg *server.Config) error {
	if cfg.Limits.ConnectionAge == 0 {
		cfg.Limits.ConnectionAge = xds.NoAge
	}
	switch p := cfg.Signing; {
	case p.MaxTTL > ca.DefaultMaxTTL:
		return cli.Usagef("--max-cert-ttl %s: want at most %s", cli.FormatDuration(p.MaxTTL), cli.FormatDuration(ca.DefaultMaxTTL))
	case p.TTL < time.Minute || p.TTL > p.MaxTTL:
		return cli.Usagef("--cert-ttl %v: want 1m to --max-cert-ttl, which is %v", p.TTL, p.MaxTTL)
	case math.IsNaN(p.PerIdentity) || p.PerIdentity < 0 || p.PerIdentity > 1e6:
		return cli.Usagef("--csr-limit-per-identity %v: want a number from 0 to 1000000", p.PerIdentity)
	}
	return nil
}
