package certs

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
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
