package servecmd

import (
	"math"
	"time"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/internal/server/xds"
)

// limitFlags binds what bounds the peers of a control plane.
func limitFlags(f *pflag.FlagSet, l *xds.Limits) {
	*l = xds.DefaultLimits()
	f.IntVar(&l.AddressConns, "max-connections-per-address", l.AddressConns, "Largest `number` of connections of one address that have not proved an identity")
	f.IntVar(&l.IdentityConns, "max-connections-per-identity", l.IdentityConns, "Largest `number` of connections of one identity")
	f.IntVar(&l.PendingConns, "max-pending-connections", l.PendingConns, "Largest `number` of connections of all addresses that are being set up or have still to prove an identity; one more closes the oldest")
	f.IntVar(&l.ConnStreams, "max-streams-per-connection", l.ConnStreams, "Largest `number` of streams of one connection")
	f.IntVar(&l.IdentityStreams, "max-streams-per-identity", l.IdentityStreams, "Largest `number` of streams of one identity")
	f.IntVar(&l.AddressStreams, "max-streams-per-address", l.AddressStreams, "Largest `number` of streams of one address on the server without TLS")
	f.IntVar(&l.Starting, "max-starting-streams", l.Starting, "`Number` of streams that are given their first configuration at a time; the others wait their turn")
	f.IntVar(&l.Names, "max-names", l.Names, "Largest `number` of names that a stream may subscribe to of one type")
	f.IntVar(&l.NameBytes, "max-name-bytes", l.NameBytes, "Largest `size` of these names together")
	f.IntVar(&l.PeerBytes, "max-held-bytes-per-identity", l.PeerBytes, "Largest `size` of the unhandled requests and subscribed names of one identity, or without TLS of one address; further requests wait, further names are refused")
	f.IntVar(&l.TotalBytes, "max-held-bytes", l.TotalBytes, "Largest `size` of the unhandled requests and subscribed names of all identities of a port; further requests wait, and when none moves for 2s the largest connection of the largest holder is closed")
	f.IntVar(&l.RequestBytes, "max-request-bytes", l.RequestBytes, "`Size` of the largest request")
	f.IntVar(&l.MetadataBytes, "max-metadata-bytes", l.MetadataBytes, "Largest `size` of a node's metadata, encoded")
	f.IntVar(&l.MetadataDepth, "max-metadata-depth", l.MetadataDepth, "Largest `number` of levels of a node's metadata")
	f.IntVar(&l.Headers, "max-header-bytes", l.Headers, "Largest `size` of the headers of a call")
	cli.DurationVar(f, &l.ConnectionAge, "max-connection-age", l.ConnectionAge, "How long a connection lasts, give or take a tenth, before its proxy must connect anew; 0 is for ever")
	cli.DurationVar(f, &l.Handshake, "handshake-timeout", l.Handshake, "Longest time for setting up a connection")
	cli.DurationVar(f, &l.FirstRequest, "first-request-timeout", l.FirstRequest, "Longest time for the first request of a stream, and for a connection to prove an identity")
	cli.DurationVar(f, &l.RequestTime, "request-timeout", l.RequestTime, "Longest time for a request to arrive, and to wait for room in --max-held-bytes-per-identity and --max-held-bytes; then its connection is closed")
	cli.DurationVar(f, &l.Write, "write-timeout", l.Write, "Longest time for a proxy to read a response; then its connection is closed unless 64 KiB a second were written to it")
	cli.DurationVar(f, &l.Ping, "min-ping-interval", l.Ping, "Shortest time between the pings of a connection; one that pings more often is closed")
	cli.DurationVar(f, &l.MemoryWait, "memory-wait", l.MemoryWait, "Longest time that a new stream waits while memory is short")
}

// signingFlags binds what the control plane's CA signs.
func signingFlags(f *pflag.FlagSet, p *ca.Policy) {
	cli.DurationVar(f, &p.TTL, "cert-ttl", ca.DefaultTTL, "Life time of a workload's certificate when the request says none")
	cli.DurationVar(f, &p.MaxTTL, "max-cert-ttl", ca.DefaultMaxTTL, "Longest life time that a request for a certificate may ask for")
	f.Float64Var(&p.PerIdentity, "csr-limit-per-identity", ca.DefaultPerIdentity, "Certificate requests a second of one identity, ten times as many at once; 0 is any `number`")
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
