package serving

import "net/netip"

// SourceOf returns the address, or the /64 of IPv6, that stands for the host of a peer with this
// address and port, as in http.Request.RemoteAddr. It is the zero Prefix for other texts.
func SourceOf(peer string) netip.Prefix {
	ap, err := netip.ParseAddrPort(peer)
	if err != nil {
		return netip.Prefix{}
	}
	ip := ap.Addr().Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	p, _ := ip.Prefix(bits) // bits fit
	return p
}
