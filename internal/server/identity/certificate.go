package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
	"unique"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

// maxChain bounds the certificates that a caller may present.
const maxChain = 10

// TLSConfig returns the configuration of a server whose callers may present a
// certificate of the mesh. The handshake fails if the certificate is not valid: a
// client with an expired certificate connects without one and sends a token.
// minVersion zero means TLS 1.3; tls.VersionTLS12 admits older clients.
//
// Sessions are never resumed, so that every connection proves its certificate
// against the current roots, and replicas share no ticket keys.
func (a *Authenticator) TLSConfig(
	getCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error), minVersion uint16,
) *tls.Config {
	if minVersion == 0 {
		minVersion = tls.VersionTLS13
	}
	return &tls.Config{
		MinVersion:             minVersion,
		CipherSuites:           modernSuites(),
		NextProtos:             []string{"h2"},
		GetCertificate:         getCertificate,
		SessionTicketsDisabled: true,
		// Small first records only help browsers, which use parts of a page.
		DynamicRecordSizingDisabled: true,
		Time:                        a.cfg.Now,
		// The roots depend on the identity in the certificate, so crypto/tls only
		// requests a certificate and verifies that the caller has its key.
		// VerifyConnection verifies the certificate.
		ClientAuth: tls.RequestClientCert,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return nil
			}
			_, err := a.verifyChain(s.PeerCertificates, a.cfg.Now())
			if err != nil {
				a.cfg.Log.Warn("client certificate refused", "error", err)
			}
			return err
		},
	}
}

// modernSuites returns the TLS 1.2 cipher suites with forward secrecy and
// authenticated encryption. All suites of TLS 1.3 have both.
func modernSuites() []uint16 {
	return []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
	}
}

// verifyChain authenticates a caller by the certificates that it presented, leaf
// first. crypto/tls has verified that the caller has the key of the leaf.
func (a *Authenticator) verifyChain(presented []*x509.Certificate, now time.Time) (verifiedCaller, error) {
	if len(presented) == 0 {
		return verifiedCaller{}, errors.New("none presented")
	}
	if len(presented) > maxChain {
		return verifiedCaller{}, fmt.Errorf("%d certificates presented: want at most %d", len(presented), maxChain)
	}
	leaf := presented[0]
	id, err := leafIdentity(leaf)
	if err != nil {
		return verifiedCaller{}, err
	}
	// Without a pool crypto/x509 would take the roots of the system.
	roots := a.cfg.Roots(id.TrustDomain)
	if roots == nil {
		return verifiedCaller{}, fmt.Errorf("identity %s: no roots for its trust domain; the mesh is of %q", id, a.domains)
	}
	p := proofOf(roots, rawOf(presented)...)
	if v, known := a.proofs.get(p, now); known {
		return v, nil
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots:         roots,
		Intermediates: certs.Pool(presented[1:]),
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return verifiedCaller{}, fmt.Errorf("identity %s: %w", id, err)
	}
	if chains = a.unrevoked(chains); len(chains) == 0 {
		return verifiedCaller{}, fmt.Errorf("identity %s: the certificate with the serial number %x, or a CA above it, is revoked", id, leaf.SerialNumber)
	}
	v := verifiedCaller{caller: mesh.Caller{Identity: id}, shown: describe(leaf, chains)}
	if a.cfg.Foreign == nil || !a.cfg.Foreign(id.TrustDomain) {
		v.caller.Cluster = a.clusterOf(chains)
	}
	end := leaf.NotAfter
	for _, c := range chains[0] {
		if c.NotAfter.Before(end) {
			end = c.NotAfter
		}
	}
	a.proofs.put(p, v, now, end)
	return v, nil
}

// describe describes a leaf certificate and the ends of its verified chains.
func describe(leaf *x509.Certificate, chains [][]*x509.Certificate) *mesh.ClientCertificate {
	out := &mesh.ClientCertificate{
		Serial: fmt.Sprintf("%x", leaf.SerialNumber), From: leaf.NotBefore.UTC(), Until: leaf.NotAfter.UTC(),
		Issuer: fingerprint(chains[0][min(1, len(chains[0])-1)]),
	}
	for _, chain := range chains {
		out.Roots = append(out.Roots, fingerprint(chain[len(chain)-1]))
	}
	slices.Sort(out.Roots)
	out.Roots = slices.Compact(out.Roots)
	return out
}

// fingerprint returns the fingerprint of a CA; all callers share one string.
func fingerprint(ca *x509.Certificate) string { return unique.Make(certs.Fingerprint(ca)).Value() }

// Certificate returns the certificate that authenticates the caller of ctx, nil if
// there is none. Right after Authenticate it costs a hash.
func (a *Authenticator) Certificate(ctx context.Context) *mesh.ClientCertificate {
	info := tlsOf(ctx)
	if !info.State.HandshakeComplete || len(info.State.PeerCertificates) == 0 {
		return nil
	}
	v, err := a.verifyChain(info.State.PeerCertificates, a.cfg.Now())
	if err != nil || a.checkOfMesh(v.caller.Identity) != nil {
		return nil
	}
	return v.shown
}

// Lost returns an error if the certificate of a connection has been revoked or has
// lost its root since the handshake. Expiry is no error, nor is a connection
// without a certificate.
func (a *Authenticator) Lost(ctx context.Context) error {
	presented := tlsOf(ctx).State.PeerCertificates
	if len(presented) == 0 {
		return nil
	}
	leaf, now := presented[0], a.cfg.Now()
	if now.After(leaf.NotAfter) {
		now = leaf.NotAfter
	}
	if _, err := a.verifyChain(presented, now); err != nil {
		return fmt.Errorf("the certificate with the serial number %x is no longer accepted: %w", leaf.SerialNumber, err)
	}
	return nil
}

func rawOf(list []*x509.Certificate) [][]byte {
	var out [][]byte
	for _, c := range list {
		out = append(out, c.Raw)
	}
	return out
}

// unrevoked drops the chains with a revoked certificate.
func (a *Authenticator) unrevoked(chains [][]*x509.Certificate) [][]*x509.Certificate {
	if a.cfg.Revoked == nil {
		return chains
	}
	return slices.DeleteFunc(chains, func(chain []*x509.Certificate) bool {
		for i, cert := range chain {
			if a.cfg.Revoked(cert, chain[min(i+1, len(chain)-1)]) { // a root signed itself
				return true
			}
		}
		return false
	})
}

// leafIdentity returns the identity in the SPIFFE id of a leaf certificate. It
// refuses leaves that violate the X509-SVID specification.
func leafIdentity(leaf *x509.Certificate) (mesh.Identity, error) {
	uris := certs.URIs(leaf) // as written: leaf.URIs has the scheme in lower case
	if len(uris) != 1 {
		return mesh.Identity{}, fmt.Errorf("%d URI names: want exactly one, the SPIFFE id", len(uris))
	}
	if leaf.IsCA || leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0 {
		return mesh.Identity{}, errors.New("it may sign certificates or revocation lists, so it is not a workload's")
	}
	if leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0 {
		return mesh.Identity{}, errors.New("its key usage does not include digitalSignature, which the handshake of TLS needs")
	}
	return mesh.ParseIdentity(uris[0])
}

// clusterOf returns the cluster of a verified leaf: the one that the leaf names, as
// a CA of the mesh wrote it, else the cluster of the CA that signed the leaf. It is
// unknown if no chain may prove it.
func (a *Authenticator) clusterOf(chains [][]*x509.Certificate) mesh.ClusterID {
	chain := chains[0] // every chain starts with the same CA key
	cluster, named := certs.ClusterOf(chain[0])
	if !named && a.cfg.IssuerCluster != nil && len(chain) > 1 {
		cluster = a.cfg.IssuerCluster(chain[1])
	}
	if a.cfg.MayProve != nil && !slices.ContainsFunc(chains, func(c []*x509.Certificate) bool { return a.cfg.MayProve(c[1:], cluster) }) {
		return ""
	}
	return cluster
}
