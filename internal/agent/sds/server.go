// Package sds serves the workload's secrets to its Envoy, over a Unix socket.
package sds

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/agent/unixsocket"
	"github.com/meshctl/meshctl/internal/serving"
)

// Limits of a server. Envoy opens a stream for each different secret configuration of its
// clusters and listeners.
const (
	maxStreams = 1000
	maxMessage = 64 << 10 // bytes of a request: names and a node
	maxNames   = 100      // of one stream
)

// Server answers StreamSecrets and DeltaSecrets with the secrets of the last
// Update. A request for a secret that does not exist yet is answered when it does.
type Server struct {
	secretv3.UnimplementedSecretDiscoveryServiceServer

	log *slog.Logger
	// lacking counts the secrets whose files were missing when they were sent.
	lacking atomic.Uint64

	mu      sync.Mutex
	secrets map[string]*secret
	changed chan struct{} // closed by the next Update
}

// New returns a server without secrets.
func New(log *slog.Logger) *Server {
	return &Server{log: log, changed: make(chan struct{})}
}

// Update replaces the secrets. Each stream receives its subscribed secrets whose content
// changed.
func (s *Server) Update(secrets Secrets) error {
	encoded, err := secrets.encode()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secrets = encoded
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

// FileFailures returns the number of secrets whose files were missing when they were sent.
func (s *Server) FileFailures() uint64 { return s.lacking.Load() }

// current returns the secrets and a channel that is closed when they are
// replaced.
func (s *Server) current() (map[string]*secret, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.secrets, s.changed
}

// Serve answers on listener until ctx ends, and closes it. With a proof, which may be nil, only its
// Envoy gets secrets.
func (s *Server) Serve(ctx context.Context, listener net.Listener, proof *unixsocket.Proof) error {
	server := grpc.NewServer(append(unixsocket.ServerOptions(proof, listener.Addr(), s.log),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxMessage),
	)...)
	secretv3.RegisterSecretDiscoveryServiceServer(server, s)
	if err := serving.Until(ctx, func() error { return server.Serve(listener) }, server.Stop); err != nil {
		return fmt.Errorf("serve secrets on %s: %w", listener.Addr(), err)
	}
	return nil
}
