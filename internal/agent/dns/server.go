// Package dns answers the DNS queries of a workload, which are redirected to it: for the names
// of the mesh from the name table of the control plane, for all others by the name servers of
// the machine.
package dns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/serving"
)

const (
	// maxUDP is the size of the largest query and answer over UDP, in bytes.
	maxUDP = 4096
	// maxConnections bounds the TCP connections. Idle ones end after idleTimeout.
	maxConnections = 500
	idleTimeout    = 8 * time.Second
	readTimeout    = 2 * time.Second
	writeTimeout   = 2 * time.Second
	// ttl is the time for which clients may keep a name of the mesh, in seconds.
	ttl = 30

	metricPrefix = "istio_agent_dns_"
)

// Config of a Server. All fields are needed.
type Config struct {
	// Listen are the addresses to listen on, over UDP and TCP. If there are several, some may
	// not exist on the machine.
	Listen []netip.AddrPort
	// Namespace is the namespace of the workload, and Domain the domain of services, such as
	// svc.cluster.local.
	Namespace, Domain string
	// ResolvConf are paths of the resolv.conf; the first that exists counts.
	ResolvConf []string
	// Timeout bounds the time for which the name servers of the machine are asked; Parallel
	// asks them at once, not one after another.
	Timeout  time.Duration
	Parallel bool
	// ForwardEarly forwards all queries until there is a name table. Otherwise they fail,
	// because the answers of others would be wrong for names of the mesh.
	ForwardEarly bool
	Log          *slog.Logger
	Now          func() time.Time
	// Seed starts the order of addresses in answers.
	Seed uint64
}

// Server is a DNS server.
type Server struct {
	cfg      Config
	table    atomic.Pointer[table] // nil until the first arrives
	conf     atomic.Pointer[resolvConf]
	upstream *upstream
	random   atomic.Uint64
	requests prometheus.Counter
	sockets  []socket
}

type socket struct {
	udp net.PacketConn
	tcp net.Listener
}

// New returns a server that does not listen yet.
func New(cfg Config) *Server {
	s := &Server{
		cfg: cfg, upstream: newUpstream(cfg.Timeout, cfg.Parallel, cfg.Now),
		requests: newCounter("requests_total", "DNS queries of the workload."),
	}
	s.random.Store(cfg.Seed)
	s.conf.Store(&resolvConf{})
	return s
}

func newCounter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: metricPrefix + name, Help: help})
}

// Collectors returns the metrics of the server.
func (s *Server) Collectors() []prometheus.Collector {
	return []prometheus.Collector{s.requests, s.upstream.requests, s.upstream.failures, s.upstream.duration}
}

// Handle takes the resources of the control plane: one NameTable. An empty response changes
// nothing.
func (s *Server) Handle(_ string, resources []*anypb.Any) error {
	if len(resources) == 0 {
		return nil
	}
	return s.SetTable(resources[0].GetValue())
}

// SetTable replaces the names of the mesh by the names in an encoded NameTable.
func (s *Server) SetTable(encoded []byte) error {
	t, err := newTable(encoded, s.cfg.Namespace, s.cfg.Domain)
	if err == nil {
		s.table.Store(t)
	}
	return err
}

// Ready returns why the server cannot answer yet, or nil.
func (s *Server) Ready() error {
	if s.table.Load() == nil {
		return errors.New("DNS is on, and the name table has not arrived yet")
	}
	return nil
}

// Listen reads the resolv.conf and opens the sockets.
func (s *Server) Listen(ctx context.Context) error {
	conf, err := readResolvConf(s.cfg.ResolvConf, s.cfg.Listen)
	if err != nil {
		s.cfg.Log.Warn("names outside of the mesh cannot be resolved yet", "error", err)
	} else {
		s.conf.Store(conf)
	}
	for _, at := range s.cfg.Listen {
		socket, err := listen(ctx, at)
		if len(s.cfg.Listen) > 1 && (errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT)) {
			continue // the machine has no such IP version
		}
		if err != nil {
			s.close()
			return fmt.Errorf("serve DNS: %w; choose another address with DNS_PROXY_ADDR", err)
		}
		s.sockets = append(s.sockets, socket)
	}
	if len(s.sockets) == 0 {
		return fmt.Errorf("serve DNS: this machine has none of the addresses %v; choose another with DNS_PROXY_ADDR", s.cfg.Listen)
	}
	return nil
}

func listen(ctx context.Context, at netip.AddrPort) (socket, error) {
	udp, err := new(net.ListenConfig).ListenPacket(ctx, "udp", at.String())
	if err != nil {
		return socket{}, err
	}
	tcp, err := net.Listen("tcp", at.String())
	if err != nil {
		return socket{}, errors.Join(err, udp.Close())
	}
	return socket{udp, boundedListener{netutil.LimitListener(tcp, maxConnections)}}, nil
}

// boundedListener gives each connection a bound of its writes, which dns.Server does not.
type boundedListener struct{ net.Listener }

// Accept implements net.Listener.
func (l boundedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return boundedConn{c}, err
}

type boundedConn struct{ net.Conn }

// Write implements net.Conn. A client that does not read loses its connection.
func (c boundedConn) Write(b []byte) (int, error) {
	ended := time.AfterFunc(writeTimeout, func() { c.Close() })
	defer ended.Stop()
	return c.Conn.Write(b)
}

func (s *Server) close() {
	for _, open := range s.sockets {
		_, _ = open.udp.Close(), open.tcp.Close()
	}
}

// Serve answers queries until ctx ends, and closes the sockets.
func (s *Server) Serve(ctx context.Context) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { return s.follow(ctx) })
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { s.serve(ctx, w, q) })
	for _, open := range s.sockets {
		for server, closer := range map[*dns.Server]io.Closer{{PacketConn: open.udp}: open.udp, {Listener: open.tcp}: open.tcp} {
			server.Handler, server.UDPSize = handler, maxUDP
			server.ReadTimeout, server.IdleTimeout = readTimeout, func() time.Duration { return idleTimeout }
			tasks.Go(func() error {
				stop := func() {
					if server.ShutdownContext(context.WithoutCancel(ctx)) != nil { // it has not started yet
						_ = closer.Close()
					}
				}
				if err := serving.Until(ctx, server.ActivateAndServe, stop); err != nil {
					return fmt.Errorf("serve DNS: %w", err)
				}
				return nil
			})
		}
	}
	return tasks.Wait()
}
