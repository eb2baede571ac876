// Package redirect makes the nftables rules that lead the connections and the DNS queries of
// a workload through its proxy. The flags are the flags of istio-iptables, and so is what the
// rules do. They are in one table, which is replaced as a whole. Both IP versions have the same rules.
package redirect

import (
	"net/netip"
)

// Options are what the rules do.
type Options struct {
	// None makes no rules.
	None bool
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

var ( // never changed
	localhost6 = single(netip.IPv6Loopback())
	// The addresses from which Envoy calls its application.
	passthrough = []netip.Prefix{netip.MustParsePrefix("127.0.0.6/32"), netip.MustParsePrefix("::6/128")}
)

// chains returns the chains of the table. Empty ones are left out.
func (o *Options) chains() []chain {
	if o.None {
		return nil
	}
	var used []chain
	for _, c := range []chain{o.rawOutput(), o.rawPrerouting(), o.mangle(), o.inbound(), o.outbound()} {
		if len(c.rules) > 0 {
			used = append(used, c)
		}
	}
	return used
}

// Text returns the rules as an input of nft.
func (o *Options) Text() string { return text(o.chains()) }

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

// inbound redirects what arrives from other machines, and from virtual machines here.
func (o *Options) inbound() chain {
	c := chain{name: "inbound", kind: nat, hook: prerouting, priority: priorityNAT}
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
	if !o.Inbound.All && len(o.Inbound.List) == 0 {
		return c
	}
	c.add(leave, port(tcpDport, o.TunnelPort))
	if o.Inbound.All {
		for _, p := range o.InboundExclude {
			c.add(leave, port(tcpDport, p))
		}
		c.add(redirectTo(o.InboundPort), tcp)
	}
	for _, p := range o.Inbound.List {
		c.add(redirectTo(o.InboundPort), port(tcpDport, p))
	}
	return c
}

// outbound redirects what the applications of this machine send.
func (o *Options) outbound() chain {
	c := chain{name: "outbound", kind: nat, hook: output, priority: priorityNAT}
	for _, name := range o.ExcludeInterfaces {
		c.add(leave, out(name))
	}
	for _, p := range o.OutboundPortsExclude {
		c.add(leave, port(tcpDport, p))
	}
	for _, p := range passthrough {
		c.add(leave, out(loopback), from(p))
	}
	for _, proxy := range o.owners() {
		o.proxy(&c, proxy)
	}
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

// proxy adds the rules of a user or group of the proxy.
func (o *Options) proxy(c *chain, proxy match) {
	// An application may call itself by the address of a service: the outbound proxy sends the
	// connection to an address of this machine, where the inbound one takes it. Queries for
	// names do not come back to the proxy.
	for _, local := range []netip.Prefix{o.Loopback, localhost6} {
		matches := []match{out(loopback), not(to(local)), not(port(tcpDport, o.TunnelPort))}
		if o.DNS != 0 {
			matches = append(matches, not(port(tcpDport, portDNS)))
		}
		c.add(redirectTo(o.InboundPort), append(matches, proxy)...)
	}
	// An application calls itself directly by its own address, except a DNS server there.
	if !o.redirectsLoopback() {
		matches := []match{out(loopback), not(proxy)}
		if o.DNS != 0 {
			matches = []match{out(loopback), not(port(tcpDport, portDNS)), not(proxy)}
		}
		c.add(leave, matches...)
	}
	c.add(leave, proxy)
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
