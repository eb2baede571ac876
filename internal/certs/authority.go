package certs

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Authority is what a CA directory holds: a certificate that may sign, its
// key, and the way from it to the roots. It is immutable.
type Authority struct {
	Cert *x509.Certificate
	Key  crypto.Signer
	// Chain is what a peer needs beside a leaf to reach a root: Cert and what
	// signed it, each signed by the next, without self-signed certificates.
	// It is empty when Cert is a root itself.
	Chain []*x509.Certificate
	// Roots is what peers trust, at least one.
	Roots []*x509.Certificate
}

// CASpec says what a new CA certificate looks like.
type CASpec struct {
	Algorithm    Algorithm
	Organization string
	CommonName   string
	TTL          time.Duration
	// PathLen is how many CAs may stand between a root and a leaf; nil means
	// any number. It is 0 below the CAs of clusters, whatever stands here.
	PathLen *int
	// DNSNames are the alternative names of a cluster's CA; none means that
	// of Istio's control plane.
	DNSNames []string
	// PermittedURIDomains and PermittedDNSDomains are the name constraints of
	// a root: where they name anything, what is signed below it may name only
	// these hosts in URIs, and these domains and what is below them in DNS
	// names.
	PermittedURIDomains, PermittedDNSDomains []string
	// PermittedIPRanges are constraints, too. Where anything above names a
	// constraint, no e-mail address is permitted, and no IP address but these.
	PermittedIPRanges []*net.IPNet
	// Like, if set, is what the new CA is to be like: subject, key usages, URIs
	// and name constraints are taken from it where the fields above name none.
	Like *x509.Certificate
}

// controlPlaneName is the name that Istio puts into the CA of a cluster.
const controlPlaneName = "istiod." + mesh.DefaultSystemNamespace + ".svc"

// Backdate is how far before their making certificates begin to be valid, for
// peers whose clock is behind.
const Backdate = 2 * time.Minute

// signs are the key usages of each CA: without the second, peers refuse its
// revocation lists.
const signs = x509.KeyUsageCertSign | x509.KeyUsageCRLSign

// caKeyUsage is what Istio's own CA certificates carry, and the right to revoke.
const caKeyUsage = signs | x509.KeyUsageDigitalSignature |
	x509.KeyUsageContentCommitment | x509.KeyUsageKeyEncipherment

// NewRoot makes a self-signed root with a new key, valid from two minutes
// before now until TTL after it. rand gives the serial number.
func NewRoot(spec CASpec, now time.Time, rand io.Reader) (*Authority, error) {
	template, key, err := newCA(spec, now, rand)
	if err != nil {
		return nil, err
	}
	if spec.PathLen != nil {
		template.MaxPathLen = *spec.PathLen
		template.MaxPathLenZero = *spec.PathLen == 0
	}
	if spec.constrains() {
		spec.constrain(template)
	}
	cert, err := create(template, template, key.Public(), key, rand)
	if err != nil {
		return nil, err
	}
	return &Authority{Cert: cert, Key: key, Roots: []*x509.Certificate{cert}}, nil
}

// NewIntermediate makes the intermediate of one cluster, signed by the
// authority, with a new key. It may sign leaves only (path length 0), names
// the cluster as its locality (L) and does not outlive the authority.
func (a *Authority) NewIntermediate(cluster mesh.ClusterID, spec CASpec, now time.Time, rand io.Reader) (*Authority, error) {
	if !mesh.IsDNSLabel(string(cluster)) {
		return nil, fmt.Errorf("cluster name %q is not a DNS label", cluster)
	}
	template, key, err := newCA(spec, now, rand)
	if err != nil {
		return nil, err
	}
	template.Subject.Locality = []string{string(cluster)}
	template.DNSNames = spec.DNSNames
	if len(template.DNSNames) == 0 {
		template.DNSNames = []string{controlPlaneName}
	}
	template.MaxPathLenZero = true
	if err := a.fit(template, now); err != nil {
		return nil, err
	}
	cert, err := create(template, a.Cert, key.Public(), a.Key, rand)
	if err != nil {
		return nil, err
	}
	chain := append([]*x509.Certificate{cert}, a.Chain...)
	if err := verifyCA(cert, chain, a.Roots, now); err != nil {
		return nil, err
	}
	return &Authority{Cert: cert, Key: key, Chain: chain, Roots: a.Roots}, nil
}

// newCA makes a key and the template of a CA certificate for it.
func newCA(spec CASpec, now time.Time, rand io.Reader) (*x509.Certificate, crypto.Signer, error) {
	if spec.TTL <= 0 {
		return nil, nil, fmt.Errorf("life time of a CA certificate is %v, want more than 0", spec.TTL)
	}
	if spec.Organization == "" && spec.CommonName == "" && spec.Like == nil {
		return nil, nil, errors.New("a CA certificate needs an organization or a common name")
	}
	key, err := GenerateKey(spec.Algorithm)
	if err != nil {
		return nil, nil, err
	}
	serial, err := newSerial(rand)
	if err != nil {
		return nil, nil, err
	}
	subject := pkix.Name{CommonName: spec.CommonName}
	if spec.Organization != "" {
		subject.Organization = []string{spec.Organization}
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               subject,
		NotBefore:             now.Add(-Backdate),
		NotAfter:              now.Add(spec.TTL),
		KeyUsage:              caKeyUsage,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	if spec.Like != nil {
		if err := liken(template, spec); err != nil {
			return nil, nil, err
		}
	}
	return template, key, nil
}

// fit ends the life of what the authority is to sign at the earliest end of
// its own chain. It is an error when the authority is not valid now.
func (a *Authority) fit(template *x509.Certificate, now time.Time) error {
	for _, c := range append([]*x509.Certificate{a.Cert}, a.Chain...) {
		if err := checkTime(c, now); err != nil {
			return fmt.Errorf("signing certificate: %w", err)
		}
		if template.NotAfter.After(c.NotAfter) {
			template.NotAfter = c.NotAfter
		}
	}
	return nil
}

// create signs a template and reads the result back, so that callers see what
// peers will.
func create(template, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer, rand io.Reader) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand, template, parent, pub, key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back signed certificate: %w", err)
	}
	return cert, nil
}

// PEMs are the files of a CA directory, as they are on disk.
type PEMs struct {
	Cert  []byte // the signing certificate alone
	Key   []byte // its private key
	Chain []byte // Cert, then what signed it up to a root; may be empty when a root signed Cert
	Roots []byte // the roots that peers trust
}

// LoadAuthority reads a CA and checks that it can sign what peers accept: the
// key is that of the certificate, the certificate is a CA and valid now, the
// chain is in order and leads to one of the roots. Errors name the part.
func LoadAuthority(p PEMs, now time.Time) (*Authority, error) {
	certs, err := ParseCerts(p.Cert)
	if err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	if len(certs) != 1 {
		return nil, fmt.Errorf("CA certificate: the file holds %d certificates, want one; the others belong in the chain", len(certs))
	}
	cert := certs[0]
	if err := checkCA(cert); err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	if err := checkTime(cert, now); err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	key, err := ParseKey(p.Key)
	if err != nil {
		return nil, fmt.Errorf("CA key: %w", err)
	}
	if !sameKey(key.Public(), cert.PublicKey) {
		return nil, errors.New("CA key: it is not the key of the CA certificate")
	}
	roots, err := ParseCerts(p.Roots)
	if err != nil {
		return nil, fmt.Errorf("root certificates: %w", err)
	}
	for i, r := range roots {
		if err := checkCA(r); err != nil {
			return nil, fmt.Errorf("root certificate %d: %w", i+1, err)
		}
	}
	chain, err := loadChain(p.Chain, cert, roots)
	if err != nil {
		return nil, fmt.Errorf("certificate chain: %w", err)
	}
	if err := verifyCA(cert, chain, roots, now); err != nil {
		return nil, err
	}
	return &Authority{Cert: cert, Key: key, Chain: slices.DeleteFunc(chain, selfSigned), Roots: roots}, nil
}

// loadChain reads a chain and checks its order, up to a root. What stands
// behind that, such as further roots, is left out.
func loadChain(data []byte, cert *x509.Certificate, roots []*x509.Certificate) ([]*x509.Certificate, error) {
	if len(data) == 0 {
		return []*x509.Certificate{cert}, nil
	}
	all, err := ParseCerts(data)
	if err != nil {
		return nil, err
	}
	if !all[0].Equal(cert) {
		return nil, fmt.Errorf("it starts with %q, want the CA certificate %q", all[0].Subject, cert.Subject)
	}
	chain := all[:1:1]
	for i, next := range all[1:] {
		last := chain[len(chain)-1]
		if selfSigned(last) {
			break
		}
		if next.Equal(last) {
			continue
		}
		if err := last.CheckSignatureFrom(next); err != nil {
			signed := func(by *x509.Certificate) bool { return last.CheckSignatureFrom(by) == nil }
			if slices.ContainsFunc(roots, signed) && !slices.ContainsFunc(all[i+2:], signed) {
				break
			}
			return nil, fmt.Errorf("certificate %d (%q) is not signed by certificate %d (%q): %w",
				i+1, last.Subject, i+2, next.Subject, err)
		}
		chain = append(chain, next)
	}
	return chain, nil
}

// verifyCA checks that the chain leads from cert to one of the roots, and
// that what cert signs may too: the path length of a CA counts the CAs below.
func verifyCA(cert *x509.Certificate, chain, roots []*x509.Certificate, now time.Time) error {
	paths, err := cert.Verify(x509.VerifyOptions{
		Roots:         Pool(roots),
		Intermediates: Pool(chain),
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return fmt.Errorf("CA certificate %q does not lead to a root (%q is the first): %w", cert.Subject, roots[0].Subject, err)
	}
	if !slices.ContainsFunc(paths, longEnough) {
		return fmt.Errorf("CA certificate %q may not sign: the path length of a CA above it forbids it", cert.Subject)
	}
	return nil
}

// longEnough reports whether a leaf below path[0] keeps to the path length of
// each CA.
func longEnough(path []*x509.Certificate) bool {
	for below, c := range path {
		if c.MaxPathLen >= 0 && c.MaxPathLen < below {
			return false
		}
	}
	return true
}

// Pool makes a pool of certificates.
func Pool(list []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range list {
		p.AddCert(c)
	}
	return p
}

// checkCA checks that cert may sign others.
func checkCA(cert *x509.Certificate) error {
	if !cert.BasicConstraintsValid || !cert.IsCA {
		return fmt.Errorf("%q is not a CA (basic constraints)", cert.Subject)
	}
	if cert.KeyUsage != 0 && cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return fmt.Errorf("%q may not sign certificates (key usage)", cert.Subject)
	}
	return nil
}

// checkTime checks that cert is valid now.
func checkTime(cert *x509.Certificate, now time.Time) error {
	switch {
	case now.Before(cert.NotBefore):
		return fmt.Errorf("%q is valid only from %s", cert.Subject, cert.NotBefore.UTC().Format(time.RFC3339))
	case now.After(cert.NotAfter):
		return fmt.Errorf("%q expired at %s", cert.Subject, cert.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}
