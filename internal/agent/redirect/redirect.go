// Package redirect makes the nftables rules that lead the connections and the DNS queries of
// a workload through its proxy. The flags are the flags of istio-iptables, and so is what the
// rules do. They are in one table, which is replaced as a whole. Both IP versions have the same rules.
package redirect

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Options are what the rules do.
type Options struct {
	// None makes no rules.
	None bool
	// Transparent makes inbound connections keep their source and destination addresses: the
	// proxy takes them at a transparent socket (TPROXY) and calls its application from the address
	// of the client.
	Transparent bool
	// ProxyPort takes outbound connections, InboundPort inbound ones. TunnelPort takes
	// connections of tunnels itself.
	ProxyPort, InboundPort, TunnelPort uint16
	// UIDs and GIDs are the users and groups of the proxy, whose own connections are not
	// redirected.
	UIDs, GIDs []uint32
	// Inbound are the ports whose inbound connections are redirected; InboundExclude has an
	// effect if these are all.
	Inbound        Ports
	InboundExclude []uint16
	// Outbound are the destinations whose connections are redirected, whatever the port.
	// OutboundPorts are redirected whatever the destination, except OutboundExclude.
	// OutboundPortsExclude are never redirected.
	Outbound             Ranges
	OutboundExclude      []netip.Prefix
	OutboundPorts        []uint16
	OutboundPortsExclude []uint16
	// Groups are the groups whose connections are redirected, all if there are none, and
	// GroupsExclude the groups whose connections are not.
	Groups, GroupsExclude []uint32
	// VirtualInterfaces have virtual machines behind them, whose connections are outbound.
	// ExcludeInterfaces have no redirected connections.
	VirtualInterfaces, ExcludeInterfaces []string
	// DNS is the port that takes DNS queries to the DNSServers, or with AllDNS to any; 0 is
	// for no redirection.
	DNS        uint16
	DNSServers []netip.Addr
	AllDNS     bool
	// DropInvalid drops packets that belong to no connection, instead of answering them.
	DropInvalid bool
	// Loopback is the part of 127.0.0.0/8 that applications use for themselves.
	Loopback netip.Prefix
}

// Ports are all ports or a list.
type Ports struct {
	All  bool
	List []uint16
}

// Ranges are all addresses or a list of ranges.
type Ranges struct {
	All  bool
	List []netip.Prefix
}

const (
	portDNS  = 53
	loopback = "lo"
	// proxyZone keeps the proxy's DNS queries apart in connection tracking: a query of the
	// application from the same port to the same server is redirected.
	proxyZone = 1
)

// clientMark marks the connections that the proxy opens to its application from the address of a
// client. Packets with it stay on this machine, whatever their destination.
const clientMark = mesh.MarkTransparent

// RouteTable is the table of the route for these packets; rulePriority is that of their rule.
const (
	RouteTable   = 133
	rulePriority = 1337
)

var ( // never changed
	localhost6 = single(netip.IPv6Loopback())
	// The addresses from which Envoy calls its application.
	passthrough = []netip.Prefix{single(netip.MustParseAddr(mesh.PassthroughIPv4)), single(netip.MustParseAddr(mesh.PassthroughIPv6))}
)

// chains returns the chains of the table. Empty ones are left out.
func (o *Options) chains() []chain {
	if o.None {
		return nil
	}
	var used []chain
	for _, c := range []chain{o.rawOutput(), o.rawPrerouting(), o.mangle(), o.transparent(), o.responses(), o.inbound(), o.outbound()} {
		if len(c.rules) > 0 {
			used = append(used, c)
		}
	}
	return used
}

// Text returns the rules as an input of nft.
func (o *Options) Text() string {
	var t strings.Builder
	t.WriteString(text(o.chains()))
	if o.routes() {
		for _, command := range []string{"ip", "ip -6"} {
			fmt.Fprintf(&t, "# %[1]s rule add priority %[2]d fwmark %[3]d lookup %[4]d\n# %[1]s route replace local default dev lo table %[4]d\n",
				command, rulePriority, clientMark, RouteTable)
		}
	}
	return t.String()
}

// routes reports whether the rules need a route for packets with clientMark.
func (o *Options) routes() bool { return o.Transparent && !o.None }

// owners returns a match of each user and group of the proxy.
func (o *Options) owners() []match {
	var out []match
	for _, id := range o.UIDs {
		out = append(out, owner(skuid, id))
	}
	for _, id := range o.GIDs {
		out = append(out, owner(skgid, id))
	}
	return out
}

// rawOutput and rawPrerouting give the proxy's own DNS queries and their answers a zone.
func (o *Options) rawOutput() chain {
	c := chain{name: "raw-output", kind: filter, hook: output, priority: priorityRaw}
	if o.DNS != 0 {
		for _, proxy := range o.owners() {
			c.add(zone(proxyZone), port(udpDport, portDNS), proxy)
		}
	}
	return c
}

func (o *Options) rawPrerouting() chain {
	c := chain{name: "raw-prerouting", kind: filter, hook: prerouting, priority: priorityRaw}
	switch {
	case o.DNS == 0:
	case o.AllDNS:
		c.add(zone(proxyZone), port(udpSport, portDNS))
	default:
		for _, server := range o.DNSServers {
			c.add(zone(proxyZone), from(single(server)), port(udpSport, portDNS))
		}
	}
	return c
}

func (o *Options) mangle() chain {
	c := chain{name: "invalid", kind: filter, hook: prerouting, priority: priorityMangle}
	if o.DropInvalid {
		c.add(drop, invalid)
	}
	return c
}

// transparent gives the proxy what arrives from other machines, with its addresses unchanged.
// Packets of its own connections to the application arrive on the loopback interface.
func (o *Options) transparent() chain {
	c := chain{name: "transparent", kind: filter, hook: prerouting, priority: priorityMangle}
	if !o.Transparent || !o.redirectsInbound() {
		return c
	}
	for _, name := range slices.Concat(o.ExcludeInterfaces, o.VirtualInterfaces, []string{loopback}) {
		c.add(leave, in(name))
	}
	o.takeInbound(&c, transparentTo(o.InboundPort))
	return c
}

// responses leads the responses of the application to clients back to the proxy.
func (o *Options) responses() chain {
	c := chain{name: "responses", kind: route, hook: output, priority: priorityMangle}
	if o.Transparent {
		c.add(markConnection(clientMark), tcp, packetMark(clientMark))
		c.add(markPacket(clientMark), tcp, connectionMark(clientMark))
	}
	return c
}

func (o *Options) redirectsInbound() bool { return o.Inbound.All || len(o.Inbound.List) > 0 }

// takeInbound adds the rules for inbound connections that the proxy takes.
func (o *Options) takeInbound(c *chain, take statement) {
	c.add(leave, port(tcpDport, o.TunnelPort))
	if o.Inbound.All {
		for _, p := range o.InboundExclude {
			c.add(leave, port(tcpDport, p))
		}
		c.add(take, tcp)
	}
	for _, p := range o.Inbound.List {
		c.add(take, port(tcpDport, p))
	}
}

// inbound redirects what arrives from other machines, and from virtual machines here.
func (o *Options) inbound() chain {
	c := chain{name: "inbound", kind: nat, hook: prerouting, priority: priorityNAT}
	if o.Transparent && len(o.VirtualInterfaces) == 0 {
		return c
	}
	for _, name := range o.ExcludeInterfaces {
		c.add(leave, in(name))
	}
	for _, name := range o.VirtualInterfaces {
		if o.Outbound.All {
			c.add(redirectTo(o.ProxyPort), in(name), tcp)
		}
		for _, p := range o.Outbound.List {
			c.add(redirectTo(o.ProxyPort), in(name), to(p), tcp)
		}
		c.add(leave, in(name))
	}
	if !o.Transparent && o.redirectsInbound() {
		o.takeInbound(&c, redirectTo(o.InboundPort))
	}
	return c
}

// outbound redirects what the applications of this machine send.
func (o *Options) outbound() chain {
	c := chain{name: "outbound", kind: nat, hook: output, priority: priorityNAT}
	if o.Transparent {
		c.add(leave, packetMark(clientMark))
	}
	for _, name := range o.ExcludeInterfaces {
		c.add(leave, out(name))
	}
	for _, p := range o.OutboundPortsExclude {
		c.add(leave, port(tcpDport, p))
	}
	for _, p := range passthrough {
		c.add(leave, out(loopback), from(p))
	}
	o.proxy(&c)
	for _, id := range o.GroupsExclude {
		c.add(leave, owner(skgid, id))
	}
	if len(o.Groups) > 0 {
		var none []match
		for _, id := range o.Groups {
			none = append(none, not(owner(skgid, id)))
		}
		c.add(leave, none...)
	}
	o.queries(&c)
	if !o.redirectsLoopback() {
		c.add(leave, to(o.Loopback))
		c.add(leave, to(localhost6))
	}
	for _, p := range o.OutboundExclude {
		c.add(leave, to(p))
	}
	for _, p := range o.OutboundPorts {
		c.add(redirectTo(o.ProxyPort), port(tcpDport, p))
	}
	if o.Outbound.All {
		c.add(redirectTo(o.ProxyPort), tcp)
	}
	for _, p := range o.Outbound.List {
		c.add(redirectTo(o.ProxyPort), to(p), tcp)
	}
	return c
}

// proxy adds the rules of the users and groups of the proxy. A process is the proxy if one of them fits:
// as root, it has only its group.
func (o *Options) proxy(c *chain) {
	// An application may call itself by the address of a service: the outbound proxy sends the
	// connection to an address of this machine, where the inbound one takes it. Queries for
	// names do not come back to the proxy.
	for _, proxy := range o.owners() {
		for _, local := range []netip.Prefix{o.Loopback, localhost6} {
			matches := []match{out(loopback), not(to(local)), not(port(tcpDport, o.TunnelPort))}
			if o.DNS != 0 {
				matches = append(matches, not(port(tcpDport, portDNS)))
			}
			c.add(redirectTo(o.InboundPort), append(matches, proxy)...)
		}
	}
	for _, proxy := range o.owners() {
		c.add(leave, proxy)
	}
	// An application calls itself directly by its own address, except a DNS server there.
	if !o.redirectsLoopback() {
		matches := []match{out(loopback)}
		if o.DNS != 0 {
			matches = append(matches, not(port(tcpDport, portDNS)))
		}
		c.add(leave, matches...)
	}
}

// queries adds the rules for DNS.
func (o *Options) queries(c *chain) {
	if o.DNS == 0 {
		return
	}
	for _, protocol := range []key{tcpDport, udpDport} {
		if o.AllDNS {
			c.add(redirectTo(o.DNS), port(protocol, portDNS))
			continue
		}
		for _, server := range o.DNSServers {
			c.add(redirectTo(o.DNS), to(single(server)), port(protocol, portDNS))
		}
	}
}

// redirectsLoopback reports whether connections to loopback addresses are asked for.
func (o *Options) redirectsLoopback() bool {
	for _, p := range o.Outbound.List {
		if p.Addr().IsLoopback() {
			return true
		}
	}
	return false
}
