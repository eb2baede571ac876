package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/token"
	tokenstore "github.com/meshctl/meshctl/internal/token/store"
)

// What signing is measured with.
const (
	signClients    = 8
	signIdentities = 1000
)

// signing is a request for a certificate, with the token that proves who asks.
type signing struct {
	token string
	*securityv1alpha1.IstioCertificateRequest
}

// certificates measures how fast certificates are signed for callers with a
// token. Keys, requests and tokens are made before the clock starts.
func (b *bench) certificates(ctx context.Context) (err error) {
	issuer, err := token.GenerateIssuer("https://load.example.com")
	if err != nil {
		return err
	}
	issuerDir := filepath.Join(b.dir, "issuer")
	if err := tokenstore.Save(issuerDir, issuer, true); err != nil {
		return err
	}
	requests, err := signings(issuer)
	if err != nil {
		return err
	}
	m, err := b.serve(ctx, "--token-issuer", "Kubernetes="+issuerDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.stop()) }()
	clients, closeAll, err := signers(m)
	if err != nil {
		return err
	}
	defer closeAll()
	if err := sign(ctx, clients, requests[:signClients]); err != nil { // handshakes
		return fmt.Errorf("%w\n%s", err, m.log.String())
	}
	m.phase("certificates")
	defer m.phase("")
	var first, again spent
	for range b.rounds {
		if err := renewTokens(issuer, requests); err != nil {
			return err
		}
		for _, s := range []*spent{&first, &again} { // the second time the tokens are known
			if err := s.measure(ctx, m, clients, requests); err != nil {
				return err
			}
		}
	}
	what := fmt.Sprintf("certificates for tokens, %d clients: ", signClients)
	b.report.add(what+"signed", median(first.rate), perSecond, 3000)
	b.report.add(what+"server CPU each", median(first.cpu), "seconds", 0.0003)
	b.report.add(what+"server CPU each, token shown before", median(again.cpu), "seconds", 0)
	return nil
}

// spent is what signing took, by rounds.
type spent struct{ rate, cpu []float64 }

func (s *spent) measure(ctx context.Context, m *meshctl, clients []securityv1alpha1.IstioCertificateServiceClient, requests []signing) error {
	before, err := m.settled(ctx)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := sign(ctx, clients, requests); err != nil {
		return err
	}
	wall := time.Since(start)
	after, err := m.settled(ctx)
	if err != nil {
		return err
	}
	s.rate = append(s.rate, signIdentities/wall.Seconds())
	s.cpu = append(s.cpu, (after.cpu-before.cpu)/signIdentities)
	return nil
}

// signings makes a request for each identity.
func signings(issuer *token.Issuer) ([]signing, error) {
	var all []signing
	for range signIdentities {
		key, err := certs.GenerateKey(certs.ECDSAP256)
		if err != nil {
			return nil, err
		}
		csr, err := certs.NewCSR(key, rand.Reader)
		if err != nil {
			return nil, err
		}
		all = append(all, signing{"", &securityv1alpha1.IstioCertificateRequest{Csr: string(csr), ValidityDuration: 24 * 60 * 60}})
	}
	return all, renewTokens(issuer, all)
}

// renewTokens gives each identity a token that the server has not seen.
func renewTokens(issuer *token.Issuer, all []signing) (err error) {
	for i := range all {
		all[i].token, err = issuer.Create(token.Claims{
			Namespace: fmt.Sprintf("load-%d", i%10), ServiceAccount: fmt.Sprintf("account-%d", i),
			Audiences: []string{"istio-ca"}, TTL: time.Hour,
		}, time.Now())
		if err != nil {
			return err
		}
	}
	return nil
}

// signers are clients of the server's CA, each with a connection.
func signers(m *meshctl) (clients []securityv1alpha1.IstioCertificateServiceClient, closeAll func(), err error) {
	ca, _, err := store.LoadOrCreate(m.state, mesh.DefaultTrustDomain, time.Now(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	config, err := dial.TLSConfig(certs.EncodeCerts(ca.Roots...), "istiod.istio-system.svc")
	if err != nil {
		return nil, nil, err
	}
	var conns []*grpc.ClientConn
	closeAll = func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}
	for range signClients {
		conn, err := grpc.NewClient("passthrough:"+m.secure, grpc.WithTransportCredentials(credentials.NewTLS(config)))
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		conns = append(conns, conn)
		clients = append(clients, securityv1alpha1.NewIstioCertificateServiceClient(conn))
	}
	return clients, closeAll, nil
}

// sign has the clients ask for all certificates, each one at a time.
func sign(ctx context.Context, clients []securityv1alpha1.IstioCertificateServiceClient, requests []signing) error {
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for _, c := range clients {
		g.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(requests) {
					return nil
				}
				ctx := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+requests[i].token, "clusterid", "Kubernetes")
				if _, err := c.CreateCertificate(ctx, requests[i].IstioCertificateRequest); err != nil {
					return fmt.Errorf("certificate %d: %w", i, err)
				}
			}
		})
	}
	return g.Wait()
}
