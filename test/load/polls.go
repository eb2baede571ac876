package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// pollCount is the number of requests for revocation lists.
const pollCount = 500

// polls measures the cost of agents that request revocation lists once a minute, each time
// over a new connection.
func (b *benchmark) polls(ctx context.Context, m *meshctl) error {
	config, err := m.clientConfig("load-0")
	if err != nil {
		return err
	}
	var bytes atomic.Int64
	version, resources := "", 0
	poll := func() error {
		answer, err := pollOnce(ctx, m.secure, config, version, &bytes)
		version, resources = answer.GetVersionInfo(), resources+len(answer.GetResources())
		return err
	}
	if err := poll(); err != nil {
		return fmt.Errorf("ask for revocation lists: %w", err)
	}
	before, err := m.settled(ctx)
	if err != nil {
		return err
	}
	bytes.Store(0)
	for range pollCount {
		if err := poll(); err != nil {
			return fmt.Errorf("ask for revocation lists: %w", err)
		}
	}
	after, err := m.settled(ctx)
	if err != nil {
		return err
	}
	if resources != 1 {
		return fmt.Errorf("asking for revocation lists %d times was answered with %d resources, want 1", pollCount+1, resources)
	}
	const what = "an agent asks whether there are other revocation lists: "
	b.report.add(what+"server CPU", (after.cpu-before.cpu)/pollCount, "seconds", 0)
	b.report.add(what+"both ways", float64(bytes.Load())/pollCount, "bytes", 0)
	return nil
}

func pollOnce(ctx context.Context, addr string, config *tls.Config, version string, bytes *atomic.Int64) (answer *discoveryv3.DiscoveryResponse, err error) {
	conn, err := grpc.NewClient("passthrough:"+addr, grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			return &countedConn{c, bytes}, err
		}))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return secretv3.NewSecretDiscoveryServiceClient(conn).FetchSecrets(ctx, &discoveryv3.DiscoveryRequest{
		ResourceNames: []string{"ROOTCA"}, VersionInfo: version,
	})
}

// countedConn counts the bytes sent and received.
type countedConn struct {
	net.Conn
	bytes *atomic.Int64
}

// Read implements net.Conn.
func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// Write implements net.Conn.
func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.bytes.Add(int64(n))
	return n, err
}
