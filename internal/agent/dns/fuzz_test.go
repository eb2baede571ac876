package dns

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// FuzzQuery answers any message that the server accepts from any table: the answer is
// for the query, fits into its size and is a DNS message.
func FuzzQuery(f *testing.F) {
	add := func(name string, kind uint16, edns uint16) {
		q := query(name, kind)
		q.Id = 1
		if edns > 0 {
			q.SetEdns0(edns, true)
		}
		b, err := q.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, names)
	}
	add("web.shop.svc.cluster.local", dns.TypeA, 0)
	add("many.shop", dns.TypeA, 600)
	add("x.example.com.shop.svc.cluster.local", dns.TypeAAAA, 0)
	add(`a\.b.example.com`, dns.TypeANY, 0)
	f.Add([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, []byte{})
	f.Fuzz(func(t *testing.T, message, table []byte) {
		s := New(Config{
			Namespace: "shop", Domain: "svc.cluster.local", Timeout: time.Second,
			Log: slog.New(slog.DiscardHandler), Now: time.Now,
		})
		s.conf.Store(&resolvConf{search: "shop.svc.cluster.local"})
		if s.SetTable(table) != nil {
			return
		}
		var q dns.Msg
		if q.Unpack(message) != nil {
			return
		}
		size := dns.MinMsgSize
		r := s.answer(t.Context(), "udp", netip.AddrPort{}, &q, size)
		r.Compress = true
		r.Truncate(size)
		b, err := r.Pack()
		if err != nil {
			t.Fatalf("%v: %v", r, err)
		}
		var back dns.Msg
		if err := back.Unpack(b); err != nil || back.Id != q.Id || !back.Response {
			t.Errorf("%v: %v", r, err)
		}
		if len(b) > size && len(r.Question) == 1 {
			t.Errorf("%d bytes: %v", len(b), r)
		}
	})
}
