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
	"github.com/meshctl/meshctl/internal/agent/unixsocket"
)

type socket struct {
	listener net.Listener // nil for the sockets of the DNS server, and for the store of modules
	serve    func(context.Context, net.Listener) error
	// kept is the listener if it is a Unix socket that stays at its path.
	kept *unixsocket.Listener
}

// proveSockets makes the certificate by which Envoy and the agent prove themselves to each other. It
// returns nil if no bootstrap of the agent could give it to Envoy.
func proveSockets(c *config.Config) (*unixsocket.Proof, error) {
	if c.NoEnvoy || c.CustomConfigFile != "" {
		return nil, nil //nolint:nilnil // none is no error
	}
	proof, err := unixsocket.NewProof()
	if err != nil {
		return nil, err
	}
	c.ProofCert, c.ProofKey, c.SharedXDS = proof.Cert, proof.Key, c.GRPCBootstrap != ""
	return proof, nil
}

// openSockets listens on the sockets that Envoy and applications need: on all, or none. It gives
// the relay a store of modules.
func openSockets(ctx context.Context, c *config.Config, opts Options, secrets *sds.Server, r *relay.Relay, names *dns.Server, guard *peer.Guard, proof *unixsocket.Proof) ([]socket, error) {
	var out []socket
	listen := func(listen func(string, *slog.Logger) (*unixsocket.Listener, error), path string, proof *unixsocket.Proof,
		serve func(context.Context, net.Listener, *unixsocket.Proof) error,
	) error {
		l, err := listen(path, opts.Log)
		if err == nil {
			out = append(out, socket{l, func(ctx context.Context, l net.Listener) error { return serve(ctx, l, proof) }, l})
		}
		return err
	}
	var err error
	if r.Modules, err = newModules(ctx, c, opts); err == nil && !c.NoEnvoy && c.WorkloadSocket == "" {
		err = listen(unixsocket.Listen, c.SDSSocket, proof, secrets.Serve)
	}
	if err == nil && (relaysEnvoy(c) || c.GRPCBootstrap != "") {
		in := unixsocket.Listen
		switch {
		case c.InPod && c.GRPCBootstrap != "":
			in = unixsocket.ListenForContainers
		case c.InPod:
			in = unixsocket.ListenInVolume
		}
		of := proof
		if c.GRPCBootstrap != "" { // the gRPC library has no bootstrap with a certificate for the socket
			of = nil
		}
		err = listen(in, c.XDSSocket, of, r.Serve)
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
