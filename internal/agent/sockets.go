package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"

	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/agent/bootstrap"
	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/relay"
	"github.com/meshctl/meshctl/internal/agent/sds"
	"github.com/meshctl/meshctl/internal/agent/workloadcert"
)

type socket struct {
	listener net.Listener
	serve    func(context.Context, net.Listener) error
}

// openSockets listens on the sockets that Envoy and applications need: on all, or none.
func openSockets(c *config.Config, log *slog.Logger, secrets *sds.Server, call relay.Call) ([]socket, error) {
	var out []socket
	listen := func(path string, serve func(context.Context, net.Listener) error) error {
		l, err := sds.Listen(path, log)
		if err == nil {
			out = append(out, socket{l, serve})
		}
		return err
	}
	var err error
	if !c.NoEnvoy {
		err = listen(c.SDSSocket, secrets.Serve)
	}
	if err == nil && c.GRPCBootstrap != "" {
		err = listen(c.XDSSocket(), func(ctx context.Context, l net.Listener) error { return relay.Forward(ctx, l, call) })
	}
	if err == nil {
		return out, nil
	}
	for _, s := range out {
		err = errors.Join(err, s.listener.Close())
	}
	return nil, err
}

// controlPlane returns a function that calls the control plane with the workload's newest
// certificate and its token.
func controlPlane(c *config.Config, manager *workloadcert.Manager) relay.Call {
	client := newClient(c, c.Discovery)
	client.RootFile = cmp.Or(c.XDSRootFile, c.CARootFile)
	return func(ctx context.Context, do func(context.Context, grpc.ClientConnInterface) error) error {
		current := manager.Current()
		if c.XDSRootFile != "" {
			current.Roots = nil // only the roots in the file sign the control plane
		}
		return client.Call(ctx, current, do)
	}
}

// newClient returns a client of the server that proves the workload's identity.
func newClient(c *config.Config, server bootstrap.Server) *workloadcert.Client {
	return &workloadcert.Client{
		Addr:         server.Addr(),
		ServerName:   server.Name,
		RootFile:     c.CARootFile,
		TokenFile:    c.TokenFile,
		Cluster:      c.Cluster,
		KeyExchanges: c.KeyExchanges,
	}
}
