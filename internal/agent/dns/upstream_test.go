package dns

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// TestSizes: An answer has at most the size that the client takes over UDP. A
// truncated answer is whole over TCP, also when it comes from a name server.
func TestSizes(t *testing.T) {
	t.Parallel()
	upstream := newNameServer(t, "127.0.0.1:0", func(network string, r *dns.Msg) *dns.Msg {
		size := dns.MaxMsgSize
		if network == "udp" {
			if size = dns.MinMsgSize; r.IsEdns0() != nil {
				size = int(r.IsEdns0().UDPSize())
			}
		}
		for range 300 {
			r.Answer = append(r.Answer, r.Answer[0])
		}
		r.Compress = true
		r.Truncate(size)
		return r
	})
	s := start(t, names, upstream.at)
	for _, name := range []string{"many", "www.example.net"} {
		small, edns := query(name, dns.TypeA), query(name, dns.TypeA).SetEdns0(1200, true)
		for _, tc := range []struct {
			network        string
			q              *dns.Msg
			most, records  int
			truncated, opt bool
		}{
			{"udp", small, 512, 1, true, false},
			{"udp", edns, 1200, 1, true, name == "many"},
			{"tcp", small, dns.MaxMsgSize, 200, false, false},
			{"tcp", edns, dns.MaxMsgSize, 200, false, name == "many"},
		} {
			r := ask(t, tc.network, s.at[0], tc.q)
			r.Compress = true
			if r.Len() > tc.most || len(r.Answer) < tc.records || r.Truncated != tc.truncated || tc.opt && !r.IsEdns0().Do() {
				t.Errorf("%s over %s: %d bytes, %d records, truncated %v, EDNS %v", name, tc.network, r.Len(), len(r.Answer), r.Truncated, r.IsEdns0())
			}
		}
	}
	newer := query("web", dns.TypeA).SetEdns0(1200, false)
	newer.IsEdns0().SetVersion(1)
	if r := ask(t, "udp", s.at[0], newer); r.Rcode != dns.RcodeBadVers || len(r.Answer) != 0 {
		t.Errorf("another version of EDNS: %v", r)
	}
}

// TestOversizedAnswers: some name servers send more over UDP than the query permits, without TC, or
// an answer without its end. The client gets all records, or as many as fit and TC.
func TestOversizedAnswers(t *testing.T) {
	t.Parallel()
	const records = 60
	pack := func(network string, r *dns.Msg, n int) *dns.Msg {
		for range n - 1 {
			r.Answer = append(r.Answer, r.Answer[0])
		}
		r.Compress = network == "udp"
		return r
	}
	whole := newNameServer(t, "127.0.0.1:0", func(network string, r *dns.Msg) *dns.Msg { return pack(network, r, records) })
	huge := newNameServer(t, "127.0.0.1:0", func(network string, r *dns.Msg) *dns.Msg { return pack(network, r, 1500) })
	// A server, or a firewall before it, that cuts answers at 512 bytes: between two records, or in
	// one.
	cut := func(at int) netip.AddrPort {
		udp, tcp := listenBoth(t, "127.0.0.1:0")
		at2 := netip.MustParseAddrPort(udp.LocalAddr().String())
		handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			r := new(dns.Msg).SetReply(q)
			rr, err := dns.NewRR(q.Question[0].Name + " 60 A 192.0.2.1")
			if err != nil {
				t.Error(err)
				return
			}
			r.Answer = []dns.RR{rr}
			data, err := pack("udp", r, records).Pack()
			if err != nil {
				t.Error(err)
				return
			}
			if _, isUDP := w.RemoteAddr().(*net.UDPAddr); isUDP {
				data = data[:at]
			}
			_, _ = w.Write(data)
		})
		for _, server := range []*dns.Server{{PacketConn: udp, Handler: handler}, {Listener: tcp, Handler: handler}} {
			started, ended := make(chan struct{}), make(chan error, 1)
			server.NotifyStartedFunc = func() { close(started) }
			go func() { ended <- server.ActivateAndServe() }()
			<-started
			t.Cleanup(func() {
				if err := errors.Join(server.Shutdown(), <-ended); err != nil {
					t.Error(err)
				}
			})
		}
		return at2
	}
	const first = headerSize + len("\x03www\x07example\x03net\x00") + 4 // the records follow, with 16 bytes each
	for name, server := range map[string]netip.AddrPort{
		"too large": whole.at, "cut between records": cut(first + 14*16), "cut in a record": cut(first + 14*16 + 5), "cut before the records": cut(first),
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, names, server)
			small, edns := query("www.example.net", dns.TypeA), query("www.example.net", dns.TypeA).SetEdns0(4096, false)
			if r := ask(t, "udp", s.at[0], small); r.Rcode != dns.RcodeSuccess || !r.Truncated || len(r.Answer) == 0 {
				t.Errorf("for 512 bytes: %s with %d records, truncated %v", dns.RcodeToString[r.Rcode], len(r.Answer), r.Truncated)
			}
			for _, network := range []string{"udp", "tcp"} {
				if r := ask(t, network, s.at[0], edns); r.Rcode != dns.RcodeSuccess || r.Truncated || len(r.Answer) != records {
					t.Errorf("for 4096 bytes over %s: %s with %d records, truncated %v", network, dns.RcodeToString[r.Rcode], len(r.Answer), r.Truncated)
				}
			}
		})
	}
	s := start(t, names, huge.at)
	if r := ask(t, "udp", s.at[0], query("www.example.net", dns.TypeA).SetEdns0(4096, false)); r.Rcode != dns.RcodeSuccess || !r.Truncated || len(r.Answer) < 200 {
		t.Errorf("24 KB: %s with %d records, truncated %v", dns.RcodeToString[r.Rcode], len(r.Answer), r.Truncated)
	}
}

// silent is the address of a name server that answers nothing.
func silent(t *testing.T) netip.AddrPort {
	t.Helper()
	return newNameServer(t, "127.0.0.1:0", func(string, *dns.Msg) *dns.Msg { return nil }).at
}

func refuses(_ string, r *dns.Msg) *dns.Msg {
	r.Rcode, r.Answer = dns.RcodeRefused, nil
	return r
}

// TestNameServersFail: One name server that answers is sufficient. Without any, a query
// fails after the timeout, and the names of the mesh are still answered.
func TestNameServersFail(t *testing.T) {
	t.Parallel()
	good := newNameServer(t, "127.0.0.1:0", nil).at
	refusing := newNameServer(t, "127.0.0.1:0", refuses).at
	foreign := newNameServer(t, "127.0.0.1:0", func(_ string, r *dns.Msg) *dns.Msg {
		r.Question[0].Name = "other.example."
		return r
	}).at
	dead := netip.MustParseAddrPort("127.0.0.1:1")
	for name, tc := range map[string]struct {
		servers []netip.AddrPort
		want    string
	}{
		"closed port first":      {[]netip.AddrPort{dead, good}, "192.0.2.1"},
		"silence first":          {[]netip.AddrPort{silent(t), good}, "192.0.2.1"},
		"refusal first":          {[]netip.AddrPort{refusing, good}, "192.0.2.1"},
		"another question first": {[]netip.AddrPort{foreign, good}, "192.0.2.1"},
		"silence":                {[]netip.AddrPort{silent(t), silent(t)}, "SERVFAIL"},
		"refusal and silence":    {[]netip.AddrPort{refusing, silent(t)}, "REFUSED"},
		"another question":       {[]netip.AddrPort{foreign}, "SERVFAIL"},
		"none":                   {nil, "SERVFAIL"},
	} {
		for _, parallel := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				timeout := 4 * time.Second // a server that answers has half of it, on a busy machine
				if tc.want == "SERVFAIL" {
					timeout = 500 * time.Millisecond
				}
				s := startWith(t, Config{Timeout: timeout, Parallel: parallel}, names, tc.servers...)
				for _, network := range []string{"udp", "tcp"} {
					if got := show(ask(t, network, s.at[0], query("www.example.net", dns.TypeA))); got != tc.want {
						t.Errorf("parallel %v over %s: %q, want %q", parallel, network, got, tc.want)
					}
				}
				if got := show(ask(t, "udp", s.at[0], query("web", dns.TypeA))); got != "10.96.0.1" {
					t.Errorf("a name of the mesh: %q", got)
				}
			})
		}
	}
}

// TestLastGoodServerFirst: A name server that does not answer delays one query, not all.
func TestLastGoodServerFirst(t *testing.T) {
	t.Parallel()
	mute := newNameServer(t, "127.0.0.1:0", func(string, *dns.Msg) *dns.Msg { return nil })
	s := startWith(t, Config{Timeout: 10 * time.Second}, names, mute.at, newNameServer(t, "127.0.0.1:0", nil).at)
	for range 5 {
		if got := show(ask(t, "udp", s.at[0], query("www.example.net", dns.TypeA))); got != "192.0.2.1" {
			t.Fatal(got)
		}
	}
	if n := mute.asked.Load(); n != 1 {
		t.Errorf("the silent name server got %d queries, want 1", n)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(s.Collectors()...)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		got[f.GetName()] = f.GetMetric()[0].GetCounter().GetValue() + float64(f.GetMetric()[0].GetHistogram().GetSampleCount())
	}
	want := map[string]float64{
		"istio_agent_dns_requests_total": 5, "istio_agent_dns_upstream_requests_total": 6,
		"istio_agent_dns_upstream_failures_total": 1, "istio_agent_dns_upstream_request_duration_seconds": 6,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
}

// TestLoop: A query that the redirection sends back to the agent fails at once, instead of
// being asked again for ever.
func TestLoop(t *testing.T) {
	t.Parallel()
	var s *running
	// This name server stands for the redirection: it asks the agent from the agent's port.
	started := make(chan struct{})
	upstream := newNameServer(t, "127.0.0.1:0", func(string, *dns.Msg) *dns.Msg {
		<-started
		s.upstream.mu.Lock()
		var from netip.AddrPort
		for from = range s.upstream.asking {
		}
		s.upstream.mu.Unlock()
		q := query("www.example.net", dns.TypeA)
		_, err := s.upstream.forward(t.Context(), "udp", from, q, s.conf.Load().servers)
		if !errors.Is(err, errLoop) {
			t.Errorf("the query came back: %v", err)
		}
		return new(dns.Msg).SetRcode(q, dns.RcodeServerFailure)
	})
	s = startWith(t, Config{Timeout: time.Second}, names, upstream.at)
	close(started)
	if got := show(ask(t, "udp", s.at[0], query("www.example.net", dns.TypeA))); got != "SERVFAIL" {
		t.Error(got)
	}
}

// TestBusy: More queries than the bound fail at once, and names of the mesh are answered.
func TestBusy(t *testing.T) {
	t.Parallel()
	s := start(t, names, silent(t))
	for range maxForwards {
		s.upstream.slots <- struct{}{}
	}
	for name, want := range map[string]string{"www.example.net": "SERVFAIL", "web": "10.96.0.1"} {
		if got := show(ask(t, "udp", s.at[0], query(name, dns.TypeA))); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// TestTableChangesDuringQueries: Each answer is wholly from one table.
func TestTableChangesDuringQueries(t *testing.T) {
	t.Parallel()
	one := encode(service("web", "shop", "10.0.0.1", "10.0.0.1"))
	two := encode(service("web", "shop", "10.0.0.2", "10.0.0.2"))
	s := start(t, one)
	stop := make(chan struct{})
	var changes sync.WaitGroup
	changes.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := s.SetTable([][]byte{one, two}[i%2]); err != nil {
				t.Error(err)
			}
		}
	})
	for range 1000 {
		got := show(ask(t, "udp", s.at[0], query("web", dns.TypeA)))
		if got != "10.0.0.1 10.0.0.1" && got != "10.0.0.2 10.0.0.2" {
			t.Fatal(got)
		}
	}
	close(stop)
	changes.Wait()
}

// TestHostileMessages: A message that is no query gets an error or nothing, and the server goes on.
func TestHostileMessages(t *testing.T) {
	t.Parallel()
	s := start(t, names)
	good, err := query("web", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	header := func(flags, questions uint16) []byte {
		b := binary.BigEndian.AppendUint16([]byte{0, 7}, flags)
		b = binary.BigEndian.AppendUint16(b, questions)
		return append(b, 0, 0, 0, 0, 0, 0)
	}
	for name, message := range map[string][]byte{
		"nothing":                  {},
		"half a header":            {0, 7, 1},
		"a response":               append(header(0x8000, 1), good[12:]...),
		"no question":              header(0x0100, 0),
		"a missing question":       header(0x0100, 1),
		"many questions":           header(0x0100, 65535),
		"a name that is a loop":    append(header(0x0100, 1), 0xc0, 12, 0, 1, 0, 1),
		"a name after the message": append(header(0x0100, 1), 0xc0, 0xff, 0, 1, 0, 1),
		"an update":                append(header(0x2800, 1), good[12:]...),
		"a notification":           append(header(0x2000, 1), good[12:]...),
	} {
		conn, err := net.Dial("udp", s.at[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(message); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(good); err != nil {
			t.Fatal(err)
		}
		// The answers may come in any order.
		buffer, answered := make([]byte, dns.MinMsgSize), false
		for !answered {
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			n, err := conn.Read(buffer)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var r dns.Msg
			if err := r.Unpack(buffer[:n]); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if answered = r.Id != 7; !answered && (r.Rcode == dns.RcodeSuccess || len(r.Answer) > 0) {
				t.Errorf("%s: %v", name, &r)
			}
		}
		conn.Close()
	}
}

// TestResolvConf: The server follows its resolv.conf, and keeps the last one that it could read.
func TestResolvConf(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "resolv.conf")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	own := netip.MustParseAddrPort("127.0.0.1:53")
	read := func(text string) (servers []string, search string) {
		write(text)
		c, err := readResolvConf([]string{filepath.Join(dir, "none"), path}, []netip.AddrPort{own})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range c.servers {
			servers = append(servers, s.String())
		}
		return servers, c.search
	}
	servers, search := read("nameserver 127.0.0.1\nnameserver 10.96.0.10\nnameserver fd00::10\nnameserver name\nnameserver 1.1.1.1\nnameserver 8.8.8.8\nsearch Shop.svc.cluster.local. svc.cluster.local\noptions ndots:5\n")
	if diff := cmp.Diff([]string{"10.96.0.10:53", "[fd00::10]:53", "1.1.1.1:53"}, servers); diff != "" || search != "shop.svc.cluster.local" {
		t.Errorf("search %q, (-want +got):\n%s", search, diff)
	}
	if servers, search = read(""); servers != nil || search != "" {
		t.Errorf("an empty file: %v, %q", servers, search)
	}
	s := New(Config{
		Listen: []netip.AddrPort{own}, ResolvConf: []string{path}, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	write("nameserver 10.96.0.10\n")
	s.look()
	_ = os.Remove(path)
	s.look()
	if got := s.conf.Load().servers; len(got) != 1 {
		t.Errorf("after the file is gone: %v", got)
	}
	write("nameserver 10.96.0.11\n")
	s.look()
	if got := s.conf.Load().servers; len(got) != 1 || got[0].String() != "10.96.0.11:53" {
		t.Errorf("after a change: %v", got)
	}
}
