package dns

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
)

// maxForwards bounds the queries that wait for name servers. Each takes a socket and a
// goroutine.
const maxForwards = 1000

var (
	errBusy      = fmt.Errorf("%d queries wait for name servers already", maxForwards)
	errLoop      = errors.New("this query is the agent's own: its traffic is redirected to itself. Run it as the user or group that the redirection excludes (1337)")
	errNoServers = errors.New("resolv.conf names no name server")
	errQuestion  = errors.New("the answer is for another question")
	errCut       = errors.New("the answer is not whole")
)

// upstream asks the name servers of the machine.
type upstream struct {
	timeout  time.Duration
	parallel bool
	now      func() time.Time
	slots    chan struct{}
	good     atomic.Pointer[netip.AddrPort] // the server that answered last, asked first

	mu sync.Mutex
	// asking are the local ends of the queries in flight.
	asking map[netip.AddrPort]struct{}

	requests, failures prometheus.Counter
	duration           prometheus.Histogram
}

func newUpstream(timeout time.Duration, parallel bool, now func() time.Time) *upstream {
	return &upstream{
		timeout: timeout, parallel: parallel, now: now,
		slots:    make(chan struct{}, maxForwards),
		asking:   map[netip.AddrPort]struct{}{},
		requests: newCounter("upstream_requests_total", "DNS queries to the name servers of the machine."),
		failures: newCounter("upstream_failures_total", "DNS queries to name servers without a usable answer."),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: metricPrefix + "upstream_request_duration_seconds", Help: "Time until a name server answered.",
			Buckets: []float64{.001, .005, .01, .1, 1, 5},
		}),
	}
}

// forward returns the answer of a server to a query that came from a client over UDP or TCP.
// It asks over the same protocol: what a server truncates, the client asks again over TCP.
// It takes at most the timeout, however many servers there are.
func (u *upstream) forward(ctx context.Context, network string, from netip.AddrPort, q *dns.Msg, servers []netip.AddrPort) (*dns.Msg, error) {
	if len(servers) == 0 {
		return nil, errNoServers
	}
	if u.isAsking(from) {
		return nil, errLoop
	}
	select {
	case u.slots <- struct{}{}:
		defer func() { <-u.slots }()
	default:
		return nil, errBusy
	}
	ctx, cancel := context.WithTimeout(ctx, u.timeout)
	defer cancel()
	if u.parallel {
		return u.askAll(ctx, network, q, servers)
	}
	if last := u.good.Load(); last != nil && slices.Contains(servers, *last) {
		servers = append([]netip.AddrPort{*last}, slices.DeleteFunc(slices.Clone(servers), func(a netip.AddrPort) bool { return a == *last })...)
	}
	var answer *dns.Msg
	var err error
	for i, server := range servers {
		share := u.timeout / time.Duration(len(servers)-i)
		if deadline, ok := ctx.Deadline(); ok {
			share = deadline.Sub(u.now()) / time.Duration(len(servers)-i)
		}
		var r *dns.Msg
		if r, err = u.askWithin(ctx, share, network, q, server); err == nil {
			if answer = r; usable(r) {
				u.good.Store(&server)
				return r, nil
			}
		}
	}
	if answer != nil {
		return answer, nil // a refusal of one server says more than the silence of another
	}
	return nil, err
}

func (u *upstream) askWithin(ctx context.Context, share time.Duration, network string, q *dns.Msg, server netip.AddrPort) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, share)
	defer cancel()
	return u.ask(ctx, network, q, server)
}

// askAll asks all servers at once and returns the first usable answer.
func (u *upstream) askAll(ctx context.Context, network string, q *dns.Msg, servers []netip.AddrPort) (answer *dns.Msg, err error) {
	ctx, cancel := context.WithCancel(ctx)
	type result struct {
		*dns.Msg
		err error
	}
	results := make(chan result)
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel()
	for _, server := range servers {
		asked.Go(func() {
			r, err := u.ask(ctx, network, q, server)
			select {
			case results <- result{r, err}:
			case <-ctx.Done():
			}
		})
	}
	for range servers {
		select {
		case r := <-results:
			if r.err != nil {
				err = r.err
				continue
			}
			if answer = r.Msg; usable(answer) {
				return answer, nil
			}
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if answer != nil {
		return answer, nil
	}
	return nil, err
}

// usable reports whether a server knew the answer. Otherwise another one may.
func usable(r *dns.Msg) bool { return r.Rcode == dns.RcodeSuccess || r.Rcode == dns.RcodeNameError }

// ask asks a server. An answer that does not arrive whole over UDP is asked for over TCP.
func (u *upstream) ask(ctx context.Context, network string, q *dns.Msg, server netip.AddrPort) (*dns.Msg, error) {
	r, err := u.askOver(ctx, network, q, server)
	if network == "udp" && errors.Is(err, errCut) {
		r, err = u.askOver(ctx, "tcp", q, server)
	}
	return r, err
}

// askOver sends the query with an ID of its own, from a port of its own.
func (u *upstream) askOver(ctx context.Context, network string, q *dns.Msg, server netip.AddrPort) (r *dns.Msg, err error) {
	u.requests.Inc()
	began := u.now()
	defer func() {
		if err != nil || !usable(r) {
			u.failures.Inc()
		}
		u.duration.Observe(u.now().Sub(began).Seconds())
	}()
	client := dns.Client{Net: network, Timeout: u.timeout}
	conn, err := client.DialContext(ctx, server.String())
	if err != nil {
		return nil, fmt.Errorf("ask name server: %w", err)
	}
	defer u.asks(conn.LocalAddr())()
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	own := *q
	own.Id = dns.Id()
	if err = conn.WriteMsg(&own); err == nil {
		r, err = receive(conn, own.Id)
	}
	if err != nil {
		return nil, fmt.Errorf("ask name server %s: %w", server, err)
	}
	if !r.Response || len(r.Question) != 1 || !sameQuestion(r.Question[0], q.Question[0]) {
		return nil, fmt.Errorf("ask name server %s: %w", server, errQuestion)
	}
	r.Id = q.Id
	return r, nil
}

// receive returns the answer with an ID. All that arrives is read, whatever size the query permits,
// as some servers exceed it and do not say so.
func receive(conn *dns.Conn, id uint16) (*dns.Msg, error) {
	for {
		data, err := read(conn)
		if err != nil {
			return nil, err
		}
		if len(data) < headerSize || binary.BigEndian.Uint16(data) != id {
			continue // the answer to another query, or a forgery
		}
		r := new(dns.Msg)
		if err := r.Unpack(data); err != nil {
			return nil, fmt.Errorf("%w: %w", errCut, err)
		}
		// Unpack takes a message for whole that ends between two records.
		for i, records := range [][]dns.RR{r.Answer, r.Ns, r.Extra} {
			if n := int(binary.BigEndian.Uint16(data[6+2*i:])); n != len(records) {
				return nil, fmt.Errorf("%w: %d of %d records", errCut, len(records), n)
			}
		}
		return r, nil
	}
}

// headerSize is the size of the header of a message, in bytes.
const headerSize = 12

// read returns the next message, of any size.
func read(conn *dns.Conn) ([]byte, error) {
	if udp, ok := conn.Conn.(*net.UDPConn); ok {
		return readDatagram(udp)
	}
	return conn.ReadMsgHeader(nil)
}

func sameQuestion(a, b dns.Question) bool {
	return a.Qtype == b.Qtype && a.Qclass == b.Qclass && strings.EqualFold(a.Name, b.Name)
}

// asks registers the local end of a query until done is called.
func (u *upstream) asks(local net.Addr) (done func()) {
	from := addrPort(local)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.asking[from] = struct{}{}
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.asking, from)
	}
}

// isAsking reports whether an address is the local end of a query in flight.
func (u *upstream) isAsking(from netip.AddrPort) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.asking[from]
	return ok
}
