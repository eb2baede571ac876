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

// numberLimit is a limit from 1 to most.
type numberLimit struct {
	name  string
	value *int
	most  int
	usage string
}

// waitLimit is a limit above 0.
type waitLimit struct {
	name  string
	value *time.Duration
	usage string
}

// maxMetadataDepth bounds the stack that decodes nested metadata.
const maxMetadataDepth = 1000

// numberLimits lists the flags of numbers. Their values are the defaults.
func numberLimits(l *xds.Limits) []numberLimit {
	const most = 1<<31 - 1
	return []numberLimit{
		{"max-connections-per-address", &l.AddressConns, most, "Largest `number` of connections of one address before authentication"},
		{"max-connections-per-identity", &l.IdentityConns, most, "Largest `number` of connections of one identity"},
		{"max-pending-connections", &l.PendingConns, most, "Largest `number` of connections of all addresses before authentication; a further connection closes the oldest"},
		{"max-streams-per-connection", &l.ConnStreams, most, "Largest `number` of streams of one connection"},
		{"max-streams-per-identity", &l.IdentityStreams, most, "Largest `number` of streams of one identity"},
		{"max-streams-per-address", &l.AddressStreams, most, "Largest `number` of streams of one address on the server without TLS"},
		{"max-starting-streams", &l.Starting, most, "`Number` of streams that get their first configuration at the same time; others wait"},
		{"max-names", &l.Names, most, "Largest `number` of resource names in the subscription of a stream to a type"},
		{"max-name-bytes", &l.NameBytes, most, "Largest total `size` of the resource names in the subscription of a stream to a type"},
		{"max-held-bytes-per-identity", &l.PeerBytes, most, "Largest `size` of pending requests and subscribed names of one identity (without TLS: of one address); further requests wait, further names are refused"},
		{"max-held-bytes", &l.TotalBytes, most, "Largest `size` of pending requests and subscribed names of all identities of a port; further requests wait, and if none fits for 2s, the largest connection of the identity that holds most is closed"},
		{"max-request-bytes", &l.RequestBytes, most, "Largest `size` of a request"},
		{"max-metadata-bytes", &l.MetadataBytes, most, "Largest encoded `size` of the metadata of a node"},
		{"max-metadata-depth", &l.MetadataDepth, maxMetadataDepth, "Largest `number` of levels in the metadata of a node"},
		{"max-header-bytes", &l.Headers, most, "Largest `size` of the headers of a call"},
	}
}

// waitLimits lists the flags of waits. Their values are the defaults.
func waitLimits(cfg *server.Config) []waitLimit {
	l := &cfg.Limits
	return []waitLimit{
		{"handshake-timeout", &l.Handshake, "Longest time to set up a connection"},
		{"first-request-timeout", &l.FirstRequest, "Longest time for the first request of a stream, and for the authentication of a connection"},
		{"request-timeout", &l.RequestTime, "Longest time for a request to arrive, and to wait for --max-held-bytes-per-identity and --max-held-bytes; then its connection is closed"},
		{"write-timeout", &l.Write, "Longest time for a proxy to read a response; then its connection is closed unless it reads at least 64 KiB a second"},
		{"min-ping-interval", &l.Ping, "Shortest interval between pings of a connection; a connection that pings more often is closed"},
		{"memory-wait", &l.MemoryWait, "Longest time that a new stream waits for memory"},
		{"shutdown-timeout", &cfg.ShutdownTimeout, "Longest wait for streams to end when the server stops"},
		{"remote-timeout", &cfg.RemoteTimeout, "Longest wait for other clusters before the server is ready"},
	}
}

// bindLimits defines the flags for the limits of peers, waits, and certificates.
func bindLimits(f *pflag.FlagSet, cfg *server.Config) {
	cfg.Limits, cfg.ShutdownTimeout, cfg.RemoteTimeout = xds.DefaultLimits(), 5*time.Second, 30*time.Second
	for _, n := range numberLimits(&cfg.Limits) {
		f.IntVar(n.value, n.name, *n.value, n.usage)
	}
	for _, w := range waitLimits(cfg) {
		cli.DurationVar(f, w.value, w.name, *w.value, w.usage)
	}
	cli.DurationVar(f, &cfg.Limits.ConnectionAge, "max-connection-age", cfg.Limits.ConnectionAge, "Time after which a proxy must reconnect, plus or minus a tenth; 0 for no limit")
	p := &cfg.Signing
	cli.DurationVar(f, &p.TTL, "cert-ttl", ca.DefaultTTL, "Default lifetime of a workload certificate")
	cli.DurationVar(f, &p.MaxTTL, "max-cert-ttl", ca.DefaultMaxTTL, "Longest certificate lifetime that a workload may request")
	f.Float64Var(&p.PerIdentity, "csr-limit-per-identity", ca.DefaultPerIdentity, "Certificate requests of one identity a second, with a burst of ten times the `number`; 0 for no limit")
}

// checkLimits checks the limits. An age of 0 becomes no limit.
func checkLimits(cfg *server.Config) error {
	for _, n := range numberLimits(&cfg.Limits) {
		if *n.value < 1 || *n.value > n.most {
			return cli.Usagef("--%s %d: want a number from 1 to %d", n.name, *n.value, n.most)
		}
	}
	for _, w := range waitLimits(cfg) {
		if *w.value == 0 { // cli.DurationVar refuses less
			return cli.Usagef("--%s %v: want more than 0", w.name, *w.value)
		}
	}
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
