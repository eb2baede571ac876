package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// BenchmarkTable measures answers from a table of 1,000 services over UDP: the CPU time of
// an answer, with the client's, and its latency.
func BenchmarkTable(b *testing.B) {
	var entries []entry
	for i := range 1000 {
		entries = append(entries, service(fmt.Sprint("web-", i), "shop", "10.96.0.1", "10.96.0.2"))
	}
	s := New(Config{Namespace: "shop", Domain: "svc.cluster.local", Now: time.Now, Timeout: time.Second})
	if err := s.SetTable(encode(entries...)); err != nil {
		b.Fatal(err)
	}
	s.conf.Store(&resolvConf{search: "shop.svc.cluster.local"})
	packed, err := query("web-500.shop.svc.cluster.local", dns.TypeA).Pack()
	if err != nil {
		b.Fatal(err)
	}
	b.Run("message", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var q dns.Msg
			if err := q.Unpack(packed); err != nil {
				b.Fatal(err)
			}
			r := s.answer(b.Context(), "udp", netip.AddrPort{}, &q, dns.MinMsgSize)
			if _, err := r.Pack(); err != nil {
				b.Fatal(err)
			}
		}
	})
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s.sockets = []socket{{udp, nil}}
	ctx, stop := context.WithCancel(b.Context())
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) { s.serve(ctx, w, q) })
	server := &dns.Server{PacketConn: udp, Handler: handler, UDPSize: maxUDP}
	served := make(chan error, 1)
	go func() { served <- server.ActivateAndServe() }()
	defer func() {
		stop()
		if err := errors.Join(server.Shutdown(), <-served); err != nil {
			b.Error(err)
		}
	}()
	b.Run("udp", func(b *testing.B) {
		const clients = 8
		var all []time.Duration
		var mu sync.Mutex
		var group sync.WaitGroup
		before := cpu(b)
		for range clients {
			group.Go(func() {
				conn, err := net.Dial("udp", udp.LocalAddr().String())
				if err != nil {
					b.Error(err)
					return
				}
				defer conn.Close()
				buffer := make([]byte, 512)
				var took []time.Duration
				for range b.N / clients {
					began := time.Now()
					if _, err := conn.Write(packed); err != nil {
						b.Error(err)
						return
					}
					if _, err := conn.Read(buffer); err != nil {
						b.Error(err)
						return
					}
					took = append(took, time.Since(began))
				}
				mu.Lock()
				all = append(all, took...)
				mu.Unlock()
			})
		}
		group.Wait()
		used := cpu(b) - before
		if len(all) > 100 {
			slices.Sort(all)
			b.ReportMetric(float64(len(all))/used.Seconds(), "answers/cpu-s")
			b.ReportMetric(float64(all[len(all)*99/100].Microseconds()), "p99-µs")
		}
	})
}

// cpu returns the CPU time of this process.
func cpu(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
