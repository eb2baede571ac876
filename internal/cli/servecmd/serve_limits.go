package servecmd

import (
	"math"
	"time"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/internal/server/xds"
)

// limitFlags defines the limits for peers of the control plane.
func limitFlags(f *pflag.FlagSet, l *xds.Limits) {
	*l = xds.DefaultLimits()
	f.IntVar(&l.AddressConns, "max-connections-per-address", l.AddressConns, "Largest `number` of connections of one address before authentication")
	f.IntVar(&l.IdentityConns, "max-connections-per-identity", l.IdentityConns, "Largest `number` of connections of one identity")
	f.IntVar(&l.PendingConns, "max-pending-connections", l.PendingConns, "Largest `number` of connections of all addresses before authentication; one more closes the oldest")
	f.IntVar(&l.ConnStreams, "max-streams-per-connection", l.ConnStreams, "Largest `number` of streams of one connection")
	f.IntVar(&l.IdentityStreams, "max-streams-per-identity", l.IdentityStreams, "Largest `number` of streams of one identity")
	f.IntVar(&l.AddressStreams, "max-streams-per-address", l.AddressStreams, "Largest `number` of streams of one address on the server without TLS")
	f.IntVar(&l.Starting, "max-starting-streams", l.Starting, "`Number` of streams that get their first configuration at the same time; others wait")
	f.IntVar(&l.Names, "max-names", l.Names, "Largest `number` of resource names in the subscription of a stream to a type")
	f.IntVar(&l.NameBytes, "max-name-bytes", l.NameBytes, "Largest `size` of these names in total")
	f.IntVar(&l.PeerBytes, "max-held-bytes-per-identity", l.PeerBytes, "Largest `size` of pending requests and subscribed names of one identity, without TLS of one address; further requests wait, further names are refused")
	f.IntVar(&l.TotalBytes, "max-held-bytes", l.TotalBytes, "Largest `size` of pending requests and subscribed names of all identities of a port; further requests wait, and after 2s without progress the largest connection of the largest holder is closed")
	f.IntVar(&l.RequestBytes, "max-request-bytes", l.RequestBytes, "Largest `size` of a request")
	f.IntVar(&l.MetadataBytes, "max-metadata-bytes", l.MetadataBytes, "Largest encoded `size` of the metadata of a node")
	f.IntVar(&l.MetadataDepth, "max-metadata-depth", l.MetadataDepth, "Largest `number` of levels in the metadata of a node")
	f.IntVar(&l.Headers, "max-header-bytes", l.Headers, "Largest `size` of the headers of a call")
	cli.DurationVar(f, &l.ConnectionAge, "max-connection-age", l.ConnectionAge, "Time after which a proxy must reconnect, plus or minus a tenth; 0 for no limit")
	cli.DurationVar(f, &l.Handshake, "handshake-timeout", l.Handshake, "Longest time to set up a connection")
	cli.DurationVar(f, &l.FirstRequest, "first-request-timeout", l.FirstRequest, "Longest time for the first request of a stream, and for the authentication of a connection")
	cli.DurationVar(f, &l.RequestTime, "request-timeout", l.RequestTime, "Longest time for a request to arrive, and to wait for --max-held-bytes-per-identity and --max-held-bytes; then its connection is closed")
	cli.DurationVar(f, &l.Write, "write-timeout", l.Write, "Longest time for a proxy to read a response; then its connection is closed unless it reads at least 64 KiB a second")
	cli.DurationVar(f, &l.Ping, "min-ping-interval", l.Ping, "Shortest interval between pings of a connection; one with more pings is closed")
	cli.DurationVar(f, &l.MemoryWait, "memory-wait", l.MemoryWait, "Longest time that a new stream waits for memory")
}

// signingFlags defines the limits for certificates of the control plane's CA.
func signingFlags(f *pflag.FlagSet, p *ca.Policy) {
	cli.DurationVar(f, &p.TTL, "cert-ttl", ca.DefaultTTL, "Default lifetime of a workload certificate")
	cli.DurationVar(f, &p.MaxTTL, "max-cert-ttl", ca.DefaultMaxTTL, "Longest lifetime of a workload certificate that a request may have")
	f.Float64Var(&p.PerIdentity, "csr-limit-per-identity", ca.DefaultPerIdentity, "Certificate requests of one identity a second, with a burst of ten times the `number`; 0 for no limit")
}

func checkSigning(p ca.Policy) error {
	switch {
	case p.MaxTTL > ca.DefaultMaxTTL:
		return cli.Usagef("--max-cert-ttl %s: want at most %s", cli.FormatDuration(p.MaxTTL), cli.FormatDuration(ca.DefaultMaxTTL))
	case p.TTL < time.Minute || p.TTL > p.MaxTTL:
		return cli.Usagef("--cert-ttl %v: want 1m to --max-cert-ttl, which is %v", p.TTL, p.MaxTTL)
	case math.IsNaN(p.PerIdentity) || p.PerIdentity < 0 || p.PerIdentity > 1e6:
		return cli.Usagef("--csr-limit-per-identity %v: want a number from 0 to 1000000", p.PerIdentity)
	}
	return nil
}

// maxMetadataDepth keeps what reads nested metadata within its stack.
const maxMetadataDepth = 1000

// checkLimits refuses limits and waits that let nobody in. An age of 0 becomes
// that of a connection that may last.
func checkLimits(l *xds.Limits, shutdown, remote time.Duration) error {
	const most = 1<<31 - 1
	for _, n := range []struct {
		flag        string
		value, most int
	}{
		{"max-connections-per-address", l.AddressConns, most},
		{"max-connections-per-identity", l.IdentityConns, most},
		{"max-pending-connections", l.PendingConns, most},
		{"max-streams-per-connection", l.ConnStreams, most},
		{"max-streams-per-identity", l.IdentityStreams, most},
		{"max-streams-per-address", l.AddressStreams, most},
		{"max-starting-streams", l.Starting, most},
		{"max-names", l.Names, most},
		{"max-name-bytes", l.NameBytes, most},
		{"max-held-bytes-per-identity", l.PeerBytes, most},
		{"max-held-bytes", l.TotalBytes, most},
		{"max-request-bytes", l.RequestBytes, most},
		{"max-metadata-bytes", l.MetadataBytes, most},
		{"max-metadata-depth", l.MetadataDepth, maxMetadataDepth},
		{"max-header-bytes", l.Headers, most},
	} {
		if n.value < 1 || n.value > n.most {
			return cli.Usagef("--%s %d: want a number from 1 to %d", n.flag, n.value, n.most)
		}
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{
		{"handshake-timeout", l.Handshake},
		{"first-request-timeout", l.FirstRequest},
		{"request-timeout", l.RequestTime},
		{"write-timeout", l.Write},
		{"min-ping-interval", l.Ping},
		{"memory-wait", l.MemoryWait},
		{"shutdown-timeout", shutdown},
		{"remote-timeout", remote},
	} {
		if d.value == 0 { // durationVar refuses less
			return cli.Usagef("--%s %v: want more than 0", d.flag, d.value)
		}
	}
	if l.ConnectionAge == 0 {
		l.ConnectionAge = xds.NoAge
	}
	return nil
}
