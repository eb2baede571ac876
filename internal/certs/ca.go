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

// Authority is a CA: a certificate that may sign, its key, its chain to a root
// and the roots that peers trust. It is immutable.
type Authority struct {
	Cert *x509.Certificate
	Key  crypto.Signer
	// Chain has the certificates between a leaf and a root: Cert first, each signed
	// by the next, without self-signed ones. It is empty if Cert is a root.
	Chain []*x509.Certificate
	// Roots are the roots that peers trust, at least one.
	Roots []*x509.Certificate
}

// CASpec describes a new CA certificate.
type CASpec struct {
	Algorithm    Algorithm
	Organization string
	CommonName   string
	TTL          time.Duration
	// PathLen is the number of CAs that a root allows between itself and a leaf;
	// nil means any number. The CA of a cluster always allows 0.
	PathLen *int
	// DNSNames are the alternative names of a cluster's CA. The default is the name
	// of Istio's control plane.
	DNSNames []string
	// The name constraints of a root, if any of the three is set: the hosts that
	// URIs below the root may name, the domains that its DNS names may be in, and
	// its IP addresses. E-mail addresses are then forbidden.
	PermittedURIDomains, PermittedDNSDomains []string
	PermittedIPRanges                        []*net.IPNet
	// Like, if set, is an older CA. The new CA gets its subject, key usages, URIs and
	// name constraints unless the fields above replace them.
	Like *x509.Certificate
}

// controlPlaneName is the DNS name that Istio writes into the CA of a cluster.
const controlPlaneName = "istiod." + mesh.DefaultSystemNamespace + ".svc"

// Backdate is how long before its creation a certificate becomes valid, for peers
// with a slow clock.
const Backdate = 2 * time.Minute

// signs are the key usages of every CA. Peers refuse revocation lists of a CA
// without cRLSign.
const signs = x509.KeyUsageCertSign | x509.KeyUsageCRLSign

// caKeyUsage is the key usage of Istio's CA certificates, plus cRLSign.
const caKeyUsage = signs | x509.KeyUsageDigitalSignature |
	x509.KeyUsageContentCommitment | x509.KeyUsageKeyEncipherment

// NewRoot makes a self-signed root with a new key. It is valid from Backdate before
// now until TTL after now. rand supplies the serial number.
func NewRoot(spec CASpec, now time.Time, rand io.Reader) (*Authority, error) {
	template, key, err := newCA(spec, now, rand)
	if err != nil {
		return nil, err
	}
	if spec.PathLen != nil {
		template.MaxPathLen = *spec.PathLen
		template.MaxPathLenZero = *spec.PathLen == 0
	}
	spec.constrain(template)
	cert, err := create(template, template, key.Public(), key, rand)
	if err != nil {
		return nil, err
	}
	return &Authority{Cert: cert, Key: key, Roots: []*x509.Certificate{cert}}, nil
}

// NewIntermediate makes the intermediate of a cluster with a new key, signed by a.
// It may sign leaves only (path length 0), has the cluster as its locality (L) and
// does not outlive a.
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

// newCA makes a key and the template of its CA certificate.
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

// fit shortens the life of a template to the earliest end of the authority's chain.
// It fails if the authority is not valid now.
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

// create signs a template and parses the result, so that callers see the same
// certificate as peers.
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
