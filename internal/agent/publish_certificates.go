package agent

import (
	"context"
	"crypto/x509"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/revocation"
	"github.com/meshctl/meshctl/internal/agent/sds"
	"github.com/meshctl/meshctl/internal/agent/workloadcert"
)

// publisher publishes the newest certificate, roots and revocation lists together to Envoy,
// and certificate and roots to applications.
type publisher struct {
	secrets *sds.Server
	lists   *revocation.Lists
	apps    *applicationFiles // nil writes none
	// newest is the certificate that is published next, or was published last. Until the first one
	// is published, the manager has none, but revocation lists are requested.
	newest atomic.Pointer[workloadcert.Certificate]

	mu     sync.Mutex
	cert   *workloadcert.Certificate
	bundle []*x509.Certificate // newest roots from the control plane's stream
}

// newPublisher returns a publisher and the manager whose certificates it publishes.
func newPublisher(cfg *config.Config, opts Options, secrets *sds.Server, apps *applicationFiles) (*workloadcert.Manager, *publisher) {
	client := authority(cfg)
	p := &publisher{secrets: secrets, apps: apps}
	settings := workloadcert.Config{
		Identity: cfg.Identity, Signer: client, Files: cfg.CertFiles, Provisioned: cfg.ProvisionedFiles,
		TTL: cfg.SecretTTL, Grace: cfg.Grace, Jitter: cfg.Jitter,
		Publish: p.useCertificate, Log: opts.Log, Now: opts.Now, Rand: opts.Rand,
	}
	if cfg.WorkloadSocket != "" {
		settings.Provider = func(ctx context.Context, use func(chain, key, roots []byte) error) error {
			return sds.Follow(ctx, cfg.WorkloadSocket, cfg.Node.String(), func(s sds.Secrets) error { return use(s.Chain, s.Key, s.Roots) })
		}
	}
	manager := workloadcert.NewManager(settings)
	p.lists = revocation.New(revocation.Config{
		File: cfg.CRLFile,
		Call: func(ctx context.Context, do func(context.Context, grpc.ClientConnInterface) error) error {
			return client.Call(ctx, manager.Usable(p.newest.Load()), do)
		},
		Update: func() error { return p.publish(func() {}) }, Revoked: manager.Revoked,
		Log: opts.Log, Now: opts.Now, Rand: opts.newRand(),
	})
	return manager, p
}

// runCertificate obtains the certificate and the revocation lists until ctx ends, and explains
// why the first request fails, if it does.
func runCertificate(ctx context.Context, cfg *config.Config, opts Options, manager *workloadcert.Manager, p *publisher) error {
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error { manager.Run(ctx); return nil })
	if cfg.WorkloadSocket != "" { // this SPIFFE agent has its own lists and log
		return tasks.Wait()
	}
	tasks.Go(func() error { explainFailure(ctx, cfg, opts, manager.Failed()); return nil })
	tasks.Go(func() error { return p.lists.Run(ctx) })
	return tasks.Wait()
}

// newRand returns a source that another goroutine may use.
func (o *Options) newRand() *rand.Rand {
	return rand.New(rand.NewPCG(o.Rand.Uint64(), o.Rand.Uint64())) //nolint:gosec // spreads waits, guards nothing
}

func (p *publisher) useCertificate(ctx context.Context, cert *workloadcert.Certificate) error {
	p.newest.Store(cert)
	return p.publish(func() {
		p.cert = cert
		chain, roots := cert.Certificates()
		p.lists.Judge(ctx, chain, roots)
	})
}

// useBundle adds roots from the control plane to the roots that came with the certificate.
func (p *publisher) useBundle(roots []*x509.Certificate) error {
	return p.publish(func() { p.bundle = roots })
}

// publish makes a change under the lock and publishes the result. Without a certificate
// there is nothing to publish.
func (p *publisher) publish(change func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if change(); p.cert == nil {
		return nil
	}
	key, err := p.cert.Key()
	if err != nil {
		return err
	}
	chain, roots := p.cert.Chain(), p.cert.Roots(p.bundle...)
	if p.apps != nil {
		if err := p.apps.write(chain, key, roots); err != nil {
			return err
		}
	}
	return p.secrets.Update(sds.Secrets{Chain: chain, Key: key, Roots: roots, Lists: p.lists.PEM()})
}
