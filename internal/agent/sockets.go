package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"

	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/dns"
	"github.com/meshctl/meshctl/internal/agent/peer"
	"github.com/meshctl/meshctl/internal/agent/relay"
	"github.com/meshctl/meshctl/internal/agent/sds"
)

type socket struct {
	listener net.Listener // nil for the sockets of the DNS server, and for the store of modules
	serve    func(context.Context, net.Listener) error
}

// openSockets listens on the sockets that Envoy and applications need: on all, or none. It gives
// the relay a store of modules.
func openSockets(ctx context.Context, c *config.Config, opts Options, secrets *sds.Server, r *relay.Relay, names *dns.Server, guard *peer.Guard) ([]socket, error) {
	var out []socket
	listen := func(listen func(string, *slog.Logger) (net.Listener, error), path string, serve func(context.Context, net.Listener) error) error {
		l, err := listen(path, opts.Log)
		if err == nil {
			out = append(out, socket{l, serve})
		}
		return err
	}
	var err error
	if r.Modules, err = newModules(ctx, c, opts); err == nil && !c.NoEnvoy {
		err = listen(sds.Listen, c.SDSSocket, secrets.Serve)
	}
	if err == nil && (relaysEnvoy(c) || c.GRPCBootstrap != "") {
		in := sds.Listen
		switch {
		case c.InPod && c.GRPCBootstrap != "":
			in = sds.ListenForContainers
		case c.InPod:
			in = sds.ListenInVolume
		}
		err = listen(in, c.XDSSocket, r.Serve)
	}
	if err == nil && c.STS != nil {
		var s socket
		if s, err = listenSTS(c.STS, guard, opts); err == nil {
			out = append(out, s)
		}
	}
	if err == nil && names != nil {
		if err = names.Listen(ctx); err == nil {
			out = append(out, socket{serve: func(ctx context.Context, _ net.Listener) error { return names.Serve(ctx) }})
		}
	}
	if err == nil {
		if r.Modules != nil {
			out = append(out, socket{serve: func(ctx context.Context, _ net.Listener) error { return r.Modules.Run(ctx) }})
		}
		return out, nil
	}
	for _, s := range out {
		err = errors.Join(err, s.listener.Close())
	}
	return nil, err
}
