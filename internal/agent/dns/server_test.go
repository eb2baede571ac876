package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// entry is an entry of a name table.
type entry struct {
	host, registry, short, namespace string
	ips                              []string
}

// encode returns the NameTable of some entries.
func encode(entries ...entry) []byte {
	text := func(b []byte, n protowire.Number, s string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), s)
	}
	nested := func(b []byte, n protowire.Number, m []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), m)
	}
	var out []byte
	for _, e := range entries {
		var info []byte
		for _, ip := range e.ips {
			info = text(info, 1, ip)
		}
		info = text(text(text(info, 2, e.registry), 3, e.short), 4, e.namespace)
		out = nested(out, 1, nested(text(nil, 1, e.host), 2, info))
	}
	return out
}

// service returns the entry of a service of Kubernetes.
func service(name, namespace string, ips ...string) entry {
	return entry{name + "." + namespace + ".svc.cluster.local", kubernetes, name, namespace, ips}
}

// external returns the entry of a ServiceEntry.
func external(host string, ips ...string) entry { return entry{host, "External", host, "shop", ips} }

// names is the table of most tests, of a workload in the namespace shop.
var names = encode(
	service("web", "shop", "10.96.0.1", "fd00::1"),
	service("db", "data", "10.96.0.2"),
	service("db-0.db", "data", "10.1.0.1"),
	service("pods", "shop", "10.1.0.1", "10.1.0.2", "10.1.0.3"),
	service("many", "shop", addresses(200)...),
	service("six", "shop", "fd00::6"),
	entry{"legacy.shop.svc.other.local", kubernetes, "legacy", "shop", []string{"10.96.0.9"}},
	external("api.example.com", "240.240.0.1", "2001:2::1"),
	external("*.example.com", "240.240.0.2"),
	external("*.deep.example.com", "240.240.0.3"),
	external("Upper.Example.ORG", "240.240.0.4"),
	external("web.shop", "240.240.0.5"), // also a short name of a service
)

func addresses(n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("10.2.%d.%d", i/256, i%256))
	}
	return out
}

// running is a server that answers at two addresses, and its name server.
type running struct {
	*Server
	at []string
}

// start runs a server whose resolv.conf names these servers.
func start(t *testing.T, table []byte, servers ...netip.AddrPort) *running {
	t.Helper()
	return startWith(t, Config{}, table, servers...)
}

func startWith(t *testing.T, cfg Config, table []byte, servers ...netip.AddrPort) *running {
	t.Helper()
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(file, []byte("search shop.svc.cluster.local svc.cluster.local\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg.Listen = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0"), netip.MustParseAddrPort("[::1]:0")}
	cfg.Namespace, cfg.Domain, cfg.ResolvConf = "shop", "svc.cluster.local", []string{file}
	cfg.Log, cfg.Now = slog.New(slog.DiscardHandler), time.Now
	if cfg.Timeout == 0 {
		cfg.Timeout = time.Minute
	}
	s := &running{Server: New(cfg)}
	if table != nil {
		if err := s.SetTable(table); err != nil {
			t.Fatal(err)
		}
	}
	// UDP and TCP need the same port here: the sockets of the test are opened one by one.
	for range cfg.Listen {
		udp, tcp := listenBoth(t, cfg.Listen[len(s.sockets)].String())
		s.sockets = append(s.sockets, socket{udp, boundedListener{tcp}})
		s.at = append(s.at, udp.LocalAddr().String())
	}
	conf, err := readResolvConf(cfg.ResolvConf, nil)
	if err != nil {
		t.Fatal(err)
	}
	conf.servers = servers
	s.conf.Store(conf)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

// listenBoth listens over UDP and TCP at one port. The system chooses port 0 for UDP alone:
// where a program has the port for TCP, another is tried.
func listenBoth(t *testing.T, at string) (net.PacketConn, net.Listener) {
	t.Helper()
	for tries := 20; ; tries-- {
		udp, err := net.ListenPacket("udp", at)
		if err != nil {
			t.Fatal(err)
		}
		tcp, err := net.Listen("tcp", udp.LocalAddr().String())
		if err == nil {
			return udp, tcp
		}
		_ = udp.Close()
		if tries == 0 || !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
}

// ask sends a query over UDP or TCP.
func ask(t *testing.T, network, at string, q *dns.Msg) *dns.Msg {
	t.Helper()
	client := dns.Client{Net: network, Timeout: time.Minute}
	r, _, err := client.Exchange(q, at)
	if err != nil {
		t.Fatalf("%s over %s: %v", q.Question[0].Name, network, err)
	}
	return r
}

func query(name string, kind uint16) *dns.Msg { return new(dns.Msg).SetQuestion(dns.Fqdn(name), kind) }

// show returns the code and the records of an answer, sorted, without their owners if these
// are the name in question.
func show(r *dns.Msg) string {
	var out []string
	for _, rr := range r.Answer {
		var value string
		switch rr := rr.(type) {
		case *dns.A:
			value = rr.A.String()
		case *dns.AAAA:
			value = rr.AAAA.String()
		case *dns.CNAME:
			value = "→" + rr.Target
		default:
			value = rr.String()
		}
		if owner := rr.Header().Name; owner != r.Question[0].Name {
			value = owner + " " + value
		}
		out = append(out, value)
	}
	slices.Sort(out)
	if r.Rcode != dns.RcodeSuccess {
		out = append(out, dns.RcodeToString[r.Rcode])
	}
	if r.Truncated {
		out = append(out, "truncated")
	}
	return strings.Join(out, " ")
}

// TestAnswers asks for names of the mesh, over UDP and TCP and both IP versions. No name
// server is asked.
func TestAnswers(t *testing.T) {
	t.Parallel()
	upstream := newNameServer(t, "127.0.0.1:0", nil)
	s := start(t, names, upstream.at)
	for _, tc := range []struct {
		name string
		kind uint16
		want string
	}{
		{"web.shop.svc.cluster.local", dns.TypeA, "10.96.0.1"},
		{"web.shop.svc.cluster.local", dns.TypeAAAA, "fd00::1"},
		{"WEB.Shop.svc.cluster.LOCAL", dns.TypeA, "10.96.0.1"},
		{"web.shop.svc", dns.TypeA, "10.96.0.1"},
		{"web", dns.TypeA, "10.96.0.1"},
		{"web.shop", dns.TypeA, "240.240.0.5"}, // the host of the ServiceEntry
		{"db.data.svc.cluster.local", dns.TypeA, "10.96.0.2"},
		{"db.data.svc.cluster.local", dns.TypeAAAA, ""}, // the name has no address of the family
		{"db.data.svc", dns.TypeA, "10.96.0.2"},
		{"db.data", dns.TypeA, "10.96.0.2"},
		{"db-0.db.data.svc.cluster.local", dns.TypeA, "10.1.0.1"},
		{"db-0.db.data", dns.TypeA, "10.1.0.1"},
		{"pods", dns.TypeA, "10.1.0.1 10.1.0.2 10.1.0.3"},
		{"six", dns.TypeA, ""},
		{"six", dns.TypeAAAA, "fd00::6"},
		{"legacy.shop.svc.other.local", dns.TypeA, "10.96.0.9"},
		{"api.example.com", dns.TypeA, "240.240.0.1"},
		{"api.example.com", dns.TypeAAAA, "2001:2::1"},
		{"x.example.com", dns.TypeA, "240.240.0.2"},
		{"x.y.example.com", dns.TypeA, "240.240.0.2"},
		{"x.deep.example.com", dns.TypeA, "240.240.0.3"},
		{"x.deep.example.com", dns.TypeAAAA, ""},
		{"upper.example.org", dns.TypeA, "240.240.0.4"},
		// Resolvers append the search domain first.
		{"api.example.com.shop.svc.cluster.local", dns.TypeA, "api.example.com. 240.240.0.1 →api.example.com."},
		{"x.example.com.shop.svc.cluster.local", dns.TypeA, "x.example.com. 240.240.0.2 →x.example.com."},
		{"db.data.shop.svc.cluster.local", dns.TypeA, "db.data. 10.96.0.2 →db.data."},
		{"db.data.shop.svc.cluster.local", dns.TypeAAAA, "→db.data."},
	} {
		for _, network := range []string{"udp", "tcp"} {
			for _, at := range s.at {
				r := ask(t, network, at, query(tc.name, tc.kind))
				if got := show(r); got != tc.want {
					t.Errorf("%s %s over %s: %q, want %q", tc.name, dns.TypeToString[tc.kind], network, got, tc.want)
				}
				if !r.Authoritative || !r.RecursionAvailable || r.Question[0].Name != dns.Fqdn(tc.name) {
					t.Errorf("%s over %s: %v", tc.name, network, r)
				}
			}
		}
	}
	if n := upstream.asked.Load(); n != 0 {
		t.Errorf("the name server got %d queries, want none", n)
	}
}

// TestForwarded: Names outside of the mesh, and records other than addresses, come from the
// name server.
func TestForwarded(t *testing.T) {
	t.Parallel()
	upstream := newNameServer(t, "127.0.0.1:0", nil)
	s := start(t, names, upstream.at)
	for _, tc := range []struct {
		name string
		kind uint16
		want string
	}{
		{"www.example.net", dns.TypeA, "192.0.2.1"},
		{"none.example.net", dns.TypeA, "NXDOMAIN"},
		{"db", dns.TypeA, "NXDOMAIN"},           // only workloads of its namespace know this name
		{"legacy.shop", dns.TypeA, "NXDOMAIN"},  // a service of another domain has no short names
		{"example.com", dns.TypeA, "192.0.2.1"}, // no name of *.example.com
		{"web.shop.svc.cluster.local", dns.TypeTXT, "web.shop.svc.cluster.local.\t0\tIN\tTXT\t\"text\""},
		// The name exists, whatever the name server knows.
		{"none.example.com", dns.TypeHTTPS, ""},
	} {
		for _, network := range []string{"udp", "tcp"} {
			r := ask(t, network, s.at[0], query(tc.name, tc.kind))
			got := show(r)
			if tc.kind == dns.TypeTXT {
				got = r.Answer[0].String()
			}
			if got != tc.want {
				t.Errorf("%s over %s: %q, want %q", tc.name, network, got, tc.want)
			}
		}
	}
}

// nameServer is a name server of the machine. It knows names of the domain "example" whose first label is not
// "none".
type nameServer struct {
	at    netip.AddrPort
	asked atomic.Int64
}

// newNameServer runs a name server. change may change an answer, or return nil for none.
func newNameServer(t *testing.T, at string, change func(network string, r *dns.Msg) *dns.Msg) *nameServer {
	t.Helper()
	n := &nameServer{}
	udp, tcp := listenBoth(t, at)
	n.at = addrPort(udp.LocalAddr())
	for _, server := range []*dns.Server{{PacketConn: udp, Net: "udp"}, {Listener: tcp, Net: "tcp"}} {
		network := server.Net
		server.Handler = dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
			n.asked.Add(1)
			r := new(dns.Msg).SetReply(q)
			header := dns.RR_Header{Name: q.Question[0].Name, Rrtype: q.Question[0].Qtype, Class: dns.ClassINET}
			switch name := strings.TrimSuffix(q.Question[0].Name, "."); {
			case q.Question[0].Qtype == dns.TypeTXT:
				r.Answer = append(r.Answer, &dns.TXT{Hdr: header, Txt: []string{"text"}})
			case strings.HasPrefix(name, "none.") || !strings.Contains(name, ".example.") && !strings.HasPrefix(name, "example."):
				r.Rcode = dns.RcodeNameError
			default:
				r.Answer = append(r.Answer, &dns.A{Hdr: header, A: net.IPv4(192, 0, 2, 1)})
			}
			if change != nil {
				if r = change(network, r); r == nil {
					return
				}
			}
			if err := w.WriteMsg(r); err != nil {
				t.Errorf("the name server: %v", err)
			}
		})
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		done := make(chan error, 1)
		go func() { done <- server.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			_ = server.Shutdown()
			if err := <-done; err != nil {
				t.Errorf("the name server: %v", err)
			}
		})
	}
	return n
}

// TestNoTableYet: Until the table arrives, no name is answered, as the answers of others
// would be wrong for names of the mesh; unless queries are forwarded early.
func TestNoTableYet(t *testing.T) {
	t.Parallel()
	upstream := newNameServer(t, "127.0.0.1:0", nil)
	s := start(t, nil, upstream.at)
	if got := show(ask(t, "udp", s.at[0], query("www.example.net", dns.TypeA))); got != "SERVFAIL" || s.Ready() == nil {
		t.Errorf("before the table: %s, ready: %v", got, s.Ready())
	}
	if err := s.SetTable(names); err != nil || s.Ready() != nil {
		t.Fatal(err, s.Ready())
	}
	if got := show(ask(t, "udp", s.at[0], query("web", dns.TypeA))); got != "10.96.0.1" {
		t.Errorf("with the table: %s", got)
	}
	// A table that cannot be read replaces none.
	if err := s.SetTable([]byte{0x0a, 0xff}); err == nil {
		t.Error("half a message is a table")
	}
	if got := show(ask(t, "udp", s.at[0], query("web", dns.TypeA))); got != "10.96.0.1" {
		t.Errorf("after a wrong table: %s", got)
	}
	early := startWith(t, Config{ForwardEarly: true}, nil, upstream.at)
	if got := show(ask(t, "udp", early.at[0], query("www.example.net", dns.TypeA))); got != "192.0.2.1" {
		t.Errorf("forwarded early: %s", got)
	}
}

// TestOrder: The first address of an answer is each address about equally often, also for
// a client that always asks for both families.
func TestOrder(t *testing.T) {
	t.Parallel()
	s := start(t, names)
	first := map[string]int{}
	for range 600 {
		first[ask(t, "udp", s.at[0], query("pods", dns.TypeA)).Answer[0].(*dns.A).A.String()]++
		ask(t, "udp", s.at[0], query("pods", dns.TypeAAAA))
	}
	for ip, n := range first {
		if len(first) != 3 || n < 100 {
			t.Errorf("%s came first %d of 600 times, %v", ip, n, first)
		}
	}
}
