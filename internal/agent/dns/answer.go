package dns

import (
	"context"
	"errors"
	"math/bits"
	"net"
	"net/netip"

	"github.com/miekg/dns"
)

// serve answers a query.
func (s *Server) serve(ctx context.Context, w dns.ResponseWriter, q *dns.Msg) {
	s.requests.Inc()
	network, size := "tcp", dns.MaxMsgSize
	if _, ok := w.RemoteAddr().(*net.UDPAddr); ok {
		network, size = "udp", dns.MinMsgSize
		if opt := q.IsEdns0(); opt != nil {
			size = min(max(size, int(opt.UDPSize())), maxUDP)
		}
	}
	r := s.answer(ctx, network, addrPort(w.RemoteAddr()), q, size)
	if r == nil {
		return
	}
	r.Compress = true
	r.Truncate(size)
	if err := w.WriteMsg(r); err != nil && !errors.Is(err, net.ErrClosed) {
		s.cfg.Log.Debug("cannot send a DNS answer", "to", w.RemoteAddr(), "error", err)
	}
}

// answer returns the answer to a query, of about size bytes at most; nil is for none.
func (s *Server) answer(ctx context.Context, network string, from netip.AddrPort, q *dns.Msg, size int) *dns.Msg {
	r := new(dns.Msg).SetReply(q)
	r.RecursionAvailable = true
	if opt := q.IsEdns0(); opt != nil {
		r.SetEdns0(maxUDP, opt.Do())
		if opt.Version() != 0 {
			r.Rcode = dns.RcodeBadVers
			return r
		}
	}
	if len(q.Question) != 1 {
		r.Rcode = dns.RcodeFormatError
		return r
	}
	if q.Opcode != dns.OpcodeQuery {
		r.Rcode = dns.RcodeNotImplemented
		return r
	}
	t, conf, question := s.table.Load(), s.conf.Load(), q.Question[0]
	if t == nil && !s.cfg.ForwardEarly {
		r.Rcode = dns.RcodeServerFailure
		return r
	}
	var known *host
	if t != nil && question.Qclass == dns.ClassINET {
		var canonical string
		known, canonical = t.find(key(question.Name), conf.search)
		if known != nil && (question.Qtype == dns.TypeA || question.Qtype == dns.TypeAAAA) {
			r.Authoritative = true
			r.Answer = s.records(known, question, canonical, size)
			return r
		}
	}
	forwarded, err := s.upstream.forward(ctx, network, from, q, conf.servers)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		s.cfg.Log.Warn("cannot answer a DNS query of the workload", "name", question.Name, "error", err)
		r.Rcode = dns.RcodeServerFailure
		return r
	}
	if known != nil && forwarded.Rcode == dns.RcodeNameError {
		// The name exists, only not for the name server.
		forwarded.Rcode = dns.RcodeSuccess
	}
	return forwarded
}

// minRecord is the least size of a record in bytes: a pointer to the name, type, class, TTL,
// length and an IPv4 address.
const minRecord = 16

// records returns the records of a host for a question, in random order, none if it has no
// addresses of the family. There are no more than fit into size bytes, and one: it makes the
// answer truncated.
func (s *Server) records(h *host, q dns.Question, canonical string, size int) []dns.RR {
	var out []dns.RR
	name := q.Name
	if canonical != "" {
		name = dns.Fqdn(canonical)
		out = append(out, &dns.CNAME{
			Hdr:    dns.RR_Header{Name: q.Name, Rrtype: dns.TypeCNAME, Class: dns.ClassINET, Ttl: ttl},
			Target: name,
		})
	}
	ips := h.v4
	if q.Qtype == dns.TypeAAAA {
		ips = h.v6
	}
	header := dns.RR_Header{Name: name, Rrtype: q.Qtype, Class: dns.ClassINET, Ttl: ttl}
	for _, i := range s.order(len(ips), size/minRecord+1) {
		if q.Qtype == dns.TypeAAAA {
			out = append(out, &dns.AAAA{Hdr: header, AAAA: ips[i].AsSlice()})
		} else {
			out = append(out, &dns.A{Hdr: header, A: ips[i].AsSlice()})
		}
	}
	return out
}

// order returns at most most of the numbers below n, each once, in random order.
func (s *Server) order(n, most int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	most = min(n, most)
	for i := range most {
		j := i + s.below(n-i)
		out[i], out[j] = out[j], out[i]
	}
	return out[:most]
}

// below returns a random number below n, by SplitMix64. It needs no lock, and its quality
// is good enough to spread load.
func (s *Server) below(n int) int {
	x := s.random.Add(0x9e3779b97f4a7c15)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	hi, _ := bits.Mul64(x^x>>31, uint64(n))
	return int(hi)
}

// addrPort returns the address of an end of a UDP or TCP connection.
func addrPort(a net.Addr) netip.AddrPort {
	var at netip.AddrPort
	switch a := a.(type) {
	case *net.UDPAddr:
		at = a.AddrPort()
	case *net.TCPAddr:
		at = a.AddrPort()
	}
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
}
