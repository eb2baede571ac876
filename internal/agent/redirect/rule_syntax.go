package redirect

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// tableName is the name of the only table, of family inet, that this package makes.
const tableName = "meshctl"

// chain is a base chain of the table.
type chain struct {
	name, kind, hook string
	priority         int
	rules            []rule
}

// Hooks, kinds and priorities of chains.
const (
	output, prerouting = "output", "prerouting"
	nat, filter, route = "nat", "filter", "route"

	priorityRaw    = -300
	priorityMangle = -150
	priorityNAT    = -100
)

// rule is a rule of a chain: matches, which all must hold, and a verdict or a change.
type rule struct {
	matches []match
	do      statement
}

// match is a condition. Which field counts depends on the key.
type match struct {
	key    key
	not    bool
	text   string // an interface
	prefix netip.Prefix
	number uint32 // a port, a user, a group, a mark
}

type key int

const (
	iifname key = iota
	oifname
	saddr
	daddr
	l4proto // only tcp and udp
	tcpDport
	udpDport
	udpSport
	skuid
	skgid
	ctInvalid
	markOfPacket
	markOfConnection
)

// statement is the last part of a rule.
type statement struct {
	verb   verb
	number uint16 // a port, a zone, a mark
}

type verb int

const (
	doReturn verb = iota
	doDrop
	doRedirect
	doZone
	doTransparent
	doMarkPacket
	doMarkConnection
)

const (
	protocolTCP = 6
	protocolUDP = 17
)

// String returns the rule in the language of nft.
func (r rule) String() string {
	var parts []string
	for _, m := range r.matches {
		parts = append(parts, m.String())
	}
	switch r.do.verb {
	case doReturn:
		parts = append(parts, "return")
	case doDrop:
		parts = append(parts, "drop")
	case doRedirect:
		parts = append(parts, fmt.Sprintf("redirect to :%d", r.do.number))
	case doZone:
		parts = append(parts, fmt.Sprintf("ct zone set %d", r.do.number))
	case doTransparent:
		parts = append(parts, fmt.Sprintf("tproxy to :%d", r.do.number))
	case doMarkPacket:
		parts = append(parts, fmt.Sprintf("meta mark set %d", r.do.number))
	case doMarkConnection:
		parts = append(parts, fmt.Sprintf("ct mark set %d", r.do.number))
	}
	return strings.Join(parts, " ")
}

// String returns the match in the language of nft.
func (m match) String() string {
	not := ""
	if m.not {
		not = "!= "
	}
	number := not + strconv.FormatUint(uint64(m.number), 10)
	family := "ip"
	if m.prefix.Addr().Is6() {
		family = "ip6"
	}
	address := m.prefix.Addr().String()
	if !m.prefix.IsSingleIP() {
		address = m.prefix.String()
	}
	switch m.key {
	case iifname:
		return "iifname " + not + strconv.Quote(m.text)
	case oifname:
		return "oifname " + not + strconv.Quote(m.text)
	case saddr:
		return family + " saddr " + not + address
	case daddr:
		return family + " daddr " + not + address
	case l4proto:
		if m.number == protocolUDP {
			return "meta l4proto udp"
		}
		return "meta l4proto tcp"
	case tcpDport:
		return "tcp dport " + number
	case udpDport:
		return "udp dport " + number
	case udpSport:
		return "udp sport " + number
	case skuid:
		return "meta skuid " + number
	case skgid:
		return "meta skgid " + number
	case ctInvalid:
		return "ct state invalid"
	case markOfPacket:
		return "meta mark " + number
	case markOfConnection:
		return "ct mark " + number
	}
	return ""
}

// Constructors of matches and statements.

func in(name string) match          { return match{key: iifname, text: name} }
func out(name string) match         { return match{key: oifname, text: name} }
func from(p netip.Prefix) match     { return match{key: saddr, prefix: p} }
func to(p netip.Prefix) match       { return match{key: daddr, prefix: p} }
func port(k key, p uint16) match    { return match{key: k, number: uint32(p)} }
func owner(k key, id uint32) match  { return match{key: k, number: id} }
func packetMark(n uint32) match     { return match{key: markOfPacket, number: n} }
func connectionMark(n uint32) match { return match{key: markOfConnection, number: n} }
func not(m match) match             { m.not = true; return m }

func single(ip netip.Addr) netip.Prefix { return netip.PrefixFrom(ip, ip.BitLen()) }

var ( // never changed
	tcp     = match{key: l4proto, number: protocolTCP}
	invalid = match{key: ctInvalid}
	leave   = statement{verb: doReturn}
	drop    = statement{verb: doDrop}
)

func redirectTo(port uint16) statement    { return statement{doRedirect, port} }
func transparentTo(port uint16) statement { return statement{doTransparent, port} }
func zone(n uint16) statement             { return statement{doZone, n} }
func markPacket(n uint16) statement       { return statement{doMarkPacket, n} }
func markConnection(n uint16) statement   { return statement{doMarkConnection, n} }

func (c *chain) add(do statement, matches ...match) {
	c.rules = append(c.rules, rule{matches, do})
}

// text returns the chains as an input of nft, which replaces the table.
func text(chains []chain) string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %[1]s\ndelete table inet %[1]s\ntable inet %[1]s {\n", tableName)
	for i, c := range chains {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "\tchain %s {\n\t\ttype %s hook %s priority %d; policy accept;\n", c.name, c.kind, c.hook, c.priority)
		for _, r := range c.rules {
			fmt.Fprintf(&b, "\t\t%s\n", r)
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}
