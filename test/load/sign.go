package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	securityv1alpha1 "istio.io/api/security/v1alpha1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/ca"
)

// Parameters of signing.
const (
	signClients    = 8
	signIdentities = 1000
	signMethod     = "/istio.v1.auth.IstioCertificateService/CreateCertificate"
)

// signing is an encoded request for a certificate and the headers with its token.
type signing struct {
	pem, csr []byte // csr is the request encoded, with pem in it
	headers  metadata.MD
}

// certificates measures how fast certificates are signed for callers with a token. Keys,
// requests and tokens are made before the clock starts. Responses are not decoded.
func (b *benchmark) certificates(ctx context.Context) (err error) {
	tokens, err := newTokenKeys()
	if err != nil {
		return err
	}
	issuerDir := filepath.Join(b.dir, "issuer")
	if err := tokens.save(issuerDir); err != nil {
		return err
	}
	requests, err := signings()
	if err != nil {
		return err
	}
	if err := b.signAlone(requests); err != nil {
		return err
	}
	m, err := b.serve(ctx, "--token-issuer", "Kubernetes="+issuerDir)
	if err != nil {
		return err
	}
	defer m.end(&err)
	ctx, closeAll := context.WithCancel(ctx)
	defer closeAll()
	clients, config, err := signers(ctx, m)
	if err != nil {
		return err
	}
	if err := renewTokens(tokens, jose.RS256, requests); err != nil {
		return err
	}
	if _, err := sign(ctx, clients, requests, 0); err != nil { // handshakes, and the heap grows
		return err
	}
	for _, alg := range []jose.SignatureAlgorithm{jose.RS256, jose.ES256} {
		m.phase("certificates " + string(alg))
		var first, again spent
		for range b.rounds {
			if err := renewTokens(tokens, alg, requests); err != nil {
				return err
			}
			for _, s := range []*spent{&first, &again} { // the second time the tokens are known
				if err := s.measure(ctx, m, clients, requests); err != nil {
					return err
				}
			}
		}
		m.phase("")
		rate, cpu := 3000., 0.0003
		if alg != jose.RS256 {
			rate, cpu = 0, 0 // no API server signs tokens like this
		}
		what := fmt.Sprintf("certificates for new tokens (%s), %d clients: ", alg, signClients)
		b.report.add(what+"signed", median(first.rate), perSecond, rate)
		b.report.add(what+"server CPU each", median(first.cpu), "seconds", cpu)
		b.report.add(what+"CPU of the load each", median(first.load), "seconds", 0)
		b.report.add(what+"server CPU each, token shown before", median(again.cpu), "seconds", cpu)
	}
	if err := b.polls(ctx, m); err != nil {
		return err
	}
	m.phase("certificates flood")
	defer m.phase("")
	return b.flood(ctx, m, clients, requests, config)
}

// signAlone measures the issuer without token, network and gRPC: it checks a request and
// makes the certificate. It counts the CPU of this process, which does nothing else.
func (b *benchmark) signAlone(requests []signing) error {
	root, err := certs.NewRoot(certs.CASpec{Algorithm: certs.ECDSAP256, CommonName: "Root CA", TTL: time.Hour}, time.Now(), rand.Reader)
	if err != nil {
		return err
	}
	i, err := ca.NewIssuer(ca.IssuerConfig{
		Authority:    root,
		Authenticate: func(context.Context) (mesh.Caller, error) { return mesh.Caller{}, errors.New("nobody asks") },
		Now:          time.Now, Rand: rand.Reader, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	caller := mesh.Caller{Identity: mesh.Identity{TrustDomain: mesh.DefaultTrustDomain, Namespace: "load", ServiceAccount: "default"}, Cluster: "Kubernetes"}
	var rate []float64
	for range b.rounds {
		start := ownCPU()
		for _, r := range requests {
			if _, err := i.Sign(r.pem, caller, 0); err != nil {
				return err
			}
		}
		rate = append(rate, float64(len(requests))/(ownCPU()-start))
	}
	b.report.add("certificates signed, each second of CPU, without token and network", median(rate), perSecond, 4000)
	return b.yardstickKey()
}

// yardstickKey adds the time of one P-256 verification to the report. Each certificate needs
// one, so figures of a busy machine can be read in proportion to it.
func (b *benchmark) yardstickKey() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(nil)
	signature, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	if err != nil {
		return err
	}
	const times = 2000
	start := ownCPU()
	for range times {
		if !ecdsa.VerifyASN1(&key.PublicKey, sum[:], signature) {
			return errors.New("a signature does not verify")
		}
	}
	b.report.add("one P-256 verification, to compare", (ownCPU()-start)/times, "seconds", 0)
	return nil
}

// spent has for each round the certificates a second, and the CPU seconds of the server and
// of this process for each certificate.
type spent struct{ rate, cpu, load []float64 }

func (s *spent) measure(ctx context.Context, m *meshctl, clients []*signer, requests []signing) error {
	before, err := m.settled(ctx)
	if err != nil {
		return err
	}
	own, start := ownCPU(), time.Now()
	if _, err := sign(ctx, clients, requests, 0); err != nil {
		return err
	}
	wall := time.Since(start)
	s.load = append(s.load, (ownCPU()-own)/signIdentities)
	after, err := m.settled(ctx)
	if err != nil {
		return err
	}
	s.rate = append(s.rate, signIdentities/wall.Seconds())
	s.cpu = append(s.cpu, (after.cpu-before.cpu)/signIdentities)
	return nil
}

// signings makes a request for each identity.
func signings() ([]signing, error) {
	var all []signing
	for range signIdentities {
		key, err := certs.GenerateKey(certs.ECDSAP256)
		if err != nil {
			return nil, err
		}
		csr, err := certs.NewCSR(key, mesh.Identity{})
		if err != nil {
			return nil, err
		}
		req, err := proto.Marshal(&securityv1alpha1.IstioCertificateRequest{Csr: string(csr), ValidityDuration: 24 * 60 * 60})
		if err != nil {
			return nil, err
		}
		all = append(all, signing{pem: csr, csr: req})
	}
	return all, nil
}

// renewTokens gives each identity a token that the server has not seen.
func renewTokens(tokens tokenKeys, alg jose.SignatureAlgorithm, all []signing) error {
	var g errgroup.Group
	g.SetLimit(runtime.NumCPU())
	for i := range all {
		g.Go(func() error {
			raw, err := tokens.sign(alg, fmt.Sprintf("load-%d", i%10), fmt.Sprintf("account-%d", i), time.Now())
			all[i].headers = metadata.Pairs("authorization", "Bearer "+raw, "clusterid", "Kubernetes")
			return err
		})
	}
	return g.Wait()
}

// signers connects clients of the server's CA until ctx ends, and returns their configuration,
// too.
func signers(ctx context.Context, m *meshctl) (clients []*signer, config *tls.Config, err error) {
	if config, err = m.clientConfig(""); err != nil {
		return nil, nil, err
	}
	for range signClients {
		c, err := dialSigner(ctx, m.secure, config)
		if err != nil {
			return nil, nil, err
		}
		clients = append(clients, c)
	}
	return clients, config, nil
}

// sign requests all certificates, rate of them a second or, with 0, as fast as possible; each
// client requests one at a time. It returns the time that each took.
func sign(ctx context.Context, clients []*signer, requests []signing, rate time.Duration) ([]time.Duration, error) {
	took := make([]time.Duration, len(requests))
	start := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for _, c := range clients {
		g.Go(func() error {
			for i := int(next.Add(1)) - 1; i < len(requests) && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if rate > 0 {
					select {
					case <-ctx.Done():
					case <-time.After(time.Until(start.Add(time.Duration(i) * time.Second / rate))):
					}
				}
				asked := time.Now() // a late timer is not the server's fault
				if _, err := c.ask(requests[i]); err != nil {
					return fmt.Errorf("certificate %d: %w", i, err)
				}
				took[i] = time.Since(asked)
			}
			return ctx.Err()
		})
	}
	return took, g.Wait()
}
