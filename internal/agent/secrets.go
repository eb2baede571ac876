package agent

import (
	"context"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"

	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/agent/proxyless"
	"github.com/meshctl/meshctl/internal/agent/revocation"
	"github.com/meshctl/meshctl/internal/agent/sds"
	"github.com/meshctl/meshctl/internal/agent/workloadcert"
)

// newManager makes what gets the certificate and what follows the revocation
// lists. Both hand what they have to Envoy by secrets.
func newManager(cfg Config, opts Options, secrets *sds.Server, apps *proxyless.Files) (*workloadcert.Manager, *revocation.Lists) {
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
	return manager, p.lists
}

// publisher hands the newest certificate and the newest lists to Envoy together,
// and the certificate to applications.
type publisher struct {
	secrets *sds.Server
	lists   *revocation.Lists
	apps    *proxyless.Files // nil writes none

	mu   sync.Mutex
	cert *workloadcert.Certificate
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

// send is called under the lock, when there is a certificate.
func (p *publisher) send() error {
	key, err := p.cert.Key()
	if err != nil {
		return err
	}
	if p.apps != nil {
		if err := p.apps.Write(p.cert.Chain(), key, p.cert.Roots()); err != nil {
			return err
		}
	}
	return p.secrets.Update(sds.Secrets{Chain: p.cert.Chain(), Key: key, Roots: p.cert.Roots(), Lists: p.lists.PEM()})
}
