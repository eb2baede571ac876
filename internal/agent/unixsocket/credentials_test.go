package unixsocket

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/serving"
	"github.com/meshctl/meshctl/test/harness"
)

// TestProof: only a client with the proof of the agent may call, and it accepts no other server. A
// probe whether the socket is in use is no news.
func TestProof(t *testing.T) {
	own, err := NewProof()
	check(t, err)
	other, err := NewProof()
	check(t, err)
	var log harness.LogBuffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	path := filepath.Join(harness.ShortDir(t), "s")
	l, err := Listen(path, logger)
	check(t, err)
	server := grpc.NewServer(ServerOptions(own, l.Addr(), logger)...)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	if _, err := serving.ProbeSocket(path); err == nil {
		t.Error("the socket is not in use")
	}
	as := func(client *Proof, trusts *Proof) credentials.TransportCredentials {
		config := &tls.Config{
			MinVersion: tls.VersionTLS13, InsecureSkipVerify: true,
			VerifyConnection: func(s tls.ConnectionState) error {
				_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: certs.Pool([]*x509.Certificate{trusts.parsed})})
				return err
			},
		}
		if client != nil {
			config.Certificates = []tls.Certificate{client.pair}
		}
		return credentials.NewTLS(config)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	for name, tc := range map[string]struct {
		creds  credentials.TransportCredentials
		passes bool
		logged bool
	}{
		"its Envoy":             {as(own, own), true, false},
		"no TLS":                {insecure.NewCredentials(), false, true},
		"no certificate":        {as(nil, own), false, true},
		"of another agent":      {as(other, own), false, true},
		"trusts another server": {as(own, other), false, true},
	} {
		before := strings.Count(log.String(), "refused a connection")
		conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(tc.creds))
		check(t, err)
		_, err = grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		if tc.passes != (err == nil) || ctx.Err() != nil {
			t.Errorf("%s: %v", name, err)
		}
		check(t, conn.Close())
		if tc.logged {
			harness.Eventually(t, deadline, name+": a line in the log", func() error {
				if strings.Count(log.String(), "refused a connection") == before {
					return net.ErrClosed
				}
				return nil
			})
		} else if strings.Count(log.String(), "refused a connection") != before {
			t.Errorf("%s: %s", name, log.String())
		}
	}
	if !strings.Contains(log.String(), "socket="+path) {
		t.Errorf("the log does not name the socket: %s", log.String())
	}
	server.Stop()
	check(t, <-ended)
}

// TestPings: a client may ping every 30 s for as long as it likes, also without a call, as Envoy
// does.
func TestPings(t *testing.T) {
	for name, calls := range map[string]bool{"with a stream": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := slog.New(slog.DiscardHandler)
				pipes := harness.NewPipes()
				server := grpc.NewServer(ServerOptions(nil, pipes.Addr(), log)...)
				grpc_health_v1.RegisterHealthServer(server, health.NewServer())
				ended := make(chan error, 1)
				go func() { ended <- server.Serve(pipes) }()
				conn, err := grpc.NewClient("passthrough:agent",
					grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return pipes.Dial(), nil }),
					grpc.WithIdleTimeout(0),
					grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}))
				check(t, err)
				client := grpc_health_v1.NewHealthClient(conn)
				if calls {
					stream, err := client.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
					check(t, err)
					_, err = stream.Recv()
					check(t, err)
					gone := make(chan error, 1)
					go func() { _, err := stream.Recv(); gone <- err; close(gone) }()
					time.Sleep(time.Hour)
					select {
					case err := <-gone:
						t.Errorf("the stream ended: %v", err)
					default:
					}
					defer func() { <-gone }()
				} else {
					_, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{})
					check(t, err)
					time.Sleep(time.Hour)
				}
				if n := pipes.Dials(); n != 1 {
					t.Errorf("%d connections, want one", n)
				}
				check(t, conn.Close())
				server.Stop()
				check(t, <-ended)
			})
		})
	}
}
