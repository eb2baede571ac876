package agent

import (
	"context"
	"crypto/x509"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"

	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/agent/proxyless"
	"github.com/meshctl/meshctl/internal/agent/revocation"
	"github.com/meshctl/meshctl/internal/agent/sds"
	"github.com/meshctl/meshctl/internal/agent/upstream"
	"github.com/meshctl/meshctl/internal/agent/workloadcert"
)

// newManager makes what gets the certificate, and what hands it, with the
// revocation lists, to Envoy and to applications.
func newManager(cfg Config, opts Options, secrets *sds.Server, apps *proxyless.Files) (*workloadcert.Manager, *publisher) {
	client := &workloadcert.Client{
		Addr:         net.JoinHostPort(cfg.CA.Host, strconv.Itoa(int(cfg.CA.Port))),
		ServerName:   cfg.CA.Name,
		RootFile:     cfg.CARootFile,
		TokenFile:    cfg.TokenFile,
		Cluster:      cfg.Cluster,
		KeyExchanges: cfg.KeyExchanges,
	}
	p := &publisher{secrets: secrets, apps: apps}
	manager := workloadcert.NewManager(workloadcert.Config{
		Identity: cfg.Identity, Signer: client,
		TTL: cfg.SecretTTL, Grace: cfg.Grace, Jitter: cfg.Jitter,
		Publish: p.use, Log: opts.Log, Now: opts.Now, Rand: opts.Rand,
	})
	p.lists = revocation.New(revocation.Config{
		File: cfg.CRLFile,
		Call: func(ctx context.Context, do func(context.Context, grpc.ClientConnInterface) error) error {
			return client.Call(ctx, manager.Current(), do)
		},
		Update: p.update, Revoked: manager.Revoked,
		Log: opts.Log, Now: opts.Now, Rand: rand.New(rand.NewPCG(opts.Rand.Uint64(), opts.Rand.Uint64())), //nolint:gosec // spreads waits, guards nothing
	})
	return manager, p
}

// upstream is the agent's own stream to the control plane, nil when nothing goes over
// it. health has that of the workload, and is nil when it is not probed.
func (c *Config) upstream(opts Options, manager *workloadcert.Manager, p *publisher, health <-chan string) *upstream.Config {
	if !c.FollowRoots && health == nil {
		return nil
	}
	up := &upstream.Config{
		Call: c.callControlPlane(manager), Node: c.Node, Metadata: c.Metadata, Health: health, Log: opts.Log, Now: opts.Now,
		Rand: rand.New(rand.NewPCG(opts.Rand.Uint64(), opts.Rand.Uint64())), //nolint:gosec // spreads waits, guards nothing
	}
	if c.FollowRoots {
		up.Roots = p.useBundle
	}
	return up
}

// publisher hands the newest certificate and the newest lists to Envoy together,
// and the certificate to applications.
type publisher struct {
	secrets *sds.Server
	lists   *revocation.Lists
	apps    *proxyless.Files // nil writes none

	mu     sync.Mutex
	cert   *workloadcert.Certificate
	bundle []*x509.Certificate // roots that the control plane told of since
}

func (p *publisher) use(ctx context.Context, cert *workloadcert.Certificate) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cert = cert
	chain, roots := cert.Certificates()
	p.lists.Judge(ctx, chain, roots)
	return p.send()
}

func (p *publisher) update() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.send()
}

// useBundle adds the roots that the control plane tells of to those that came
// with the certificate.
func (p *publisher) useBundle(roots []*x509.Certificate) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bundle = roots
	if p.cert == nil {
		return nil
	}
	return p.send()
}

// send is called under the lock, when there is a certificate.
func (p *publisher) send() error {
	key, err := p.cert.Key()
	if err != nil {
		return err
	}
	roots := p.cert.Roots(p.bundle...)
	if p.apps != nil {
		if err := p.apps.Write(p.cert.Chain(), key, roots); err != nil {
			return err
		}
	}
	return p.secrets.Update(sds.Secrets{Chain: p.cert.Chain(), Key: key, Roots: roots, Lists: p.lists.PEM()})
}
