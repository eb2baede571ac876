package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"

	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/agent/proxyless"
	"github.com/meshctl/meshctl/internal/agent/sds"
	"github.com/meshctl/meshctl/internal/agent/workloadcert"
)

// xdsSocket is the path of the socket that applications get their configuration
// from.
func (c *Config) xdsSocket() string { return filepath.Join(c.ConfigPath, "XDS") }

// applicationFiles are what applications read, nil when nothing is written.
func (c *Config) applicationFiles() (*proxyless.Files, error) {
	if c.CertDir == "" {
		return nil, nil
	}
	f := &proxyless.Files{CertDir: c.CertDir, BootstrapPath: c.GRPCBootstrap}
	if c.GRPCBootstrap == "" {
		return f, nil
	}
	b := proxyless.Bootstrap{Node: c.Node, NodeCluster: c.NodeCluster, Metadata: c.Metadata}
	var err error
	if b.Socket, err = filepath.Abs(c.xdsSocket()); err != nil {
		return nil, fmt.Errorf("path of the xDS socket: %w", err)
	}
	if b.CertDir, err = filepath.Abs(c.CertDir); err != nil {
		return nil, fmt.Errorf("path of the certificate files: %w", err)
	}
	f.Bootstrap, err = b.Marshal()
	return f, err
}

// socket is a listener and who answers on it.
type socket struct {
	listener net.Listener
	serve    func(context.Context, net.Listener) error
}

// sockets listens on those that Envoy and applications need: on all, or none.
func (c *Config) sockets(log *slog.Logger, secrets *sds.Server, manager *workloadcert.Manager) ([]socket, error) {
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
		err = listen(c.sdsSocket(), secrets.Serve)
	}
	if err == nil && c.GRPCBootstrap != "" {
		call := c.callControlPlane(manager)
		err = listen(c.xdsSocket(), func(ctx context.Context, l net.Listener) error { return proxyless.Serve(ctx, l, call) })
	}
	if err == nil {
		return out, nil
	}
	for _, s := range out {
		err = errors.Join(err, s.listener.Close())
	}
	return nil, err
}

// callControlPlane calls the control plane with the workload's newest
// certificate, and its token.
func (c *Config) callControlPlane(manager *workloadcert.Manager) func(context.Context, func(context.Context, grpc.ClientConnInterface) error) error {
	client := &workloadcert.Client{
		Addr:         net.JoinHostPort(c.Discovery.Host, strconv.Itoa(int(c.Discovery.Port))),
		ServerName:   c.Discovery.Name,
		RootFile:     cmp.Or(c.XDSRootFile, c.CARootFile),
		TokenFile:    c.TokenFile,
		Cluster:      c.Cluster,
		KeyExchanges: c.KeyExchanges,
	}
	return func(ctx context.Context, do func(context.Context, grpc.ClientConnInterface) error) error {
		current := manager.Current()
		if c.XDSRootFile != "" {
			current.Roots = nil // the file alone says who the control plane is
		}
		return client.Call(ctx, current, do)
	}
}
