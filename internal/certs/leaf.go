package certs

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/meshctl/meshctl/internal/mesh"
)

// SignLeaf signs the certificate of a workload. Its only name is the caller's SPIFFE
// id, and an extension names the caller's cluster, if known. It is valid from
// Backdate before now until ttl after now, but does not outlive the authority. rand
// supplies the serial number.
func (a *Authority) SignLeaf(pub crypto.PublicKey, caller mesh.Caller, ttl time.Duration, now time.Time, rand io.Reader) (*x509.Certificate, error) {
	template, err := leafTemplate(caller)
	if err != nil {
		return nil, err
	}
	return a.signEndEntity(template, pub, ttl, now, rand)
}

// leafTemplate returns a template with the names of a workload.
func leafTemplate(caller mesh.Caller) (*x509.Certificate, error) {
	name := caller.Identity.String()
	if _, err := mesh.ParseIdentity(name); err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	if caller.Cluster != "" && !validCluster(string(caller.Cluster)) {
		return nil, fmt.Errorf("sign certificate: cluster id %q is not 1 to %d visible ASCII characters", caller.Cluster, maxCluster)
	}
	id, err := url.Parse(name)
	if err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	template := &x509.Certificate{
		URIs:        []*url.URL{id},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if caller.Cluster != "" {
		value, err := asn1.MarshalWithParams(string(caller.Cluster), "utf8")
		if err != nil {
			return nil, fmt.Errorf("sign certificate: encode cluster id: %w", err)
		}
		template.ExtraExtensions = []pkix.Extension{{Id: clusterOID(), Value: value}}
	}
	return template, nil
}

// SignServer signs a certificate for a server of the control plane. Each name is a
// DNS name or an IP address. Life and serial number are as in SignLeaf.
func (a *Authority) SignServer(pub crypto.PublicKey, names []string, ttl time.Duration, now time.Time, rand io.Reader) (*x509.Certificate, error) {
	if len(names) == 0 {
		return nil, errors.New("sign server certificate: no names")
	}
	template := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, name := range names {
		if addr, err := netip.ParseAddr(name); err == nil {
			template.IPAddresses = append(template.IPAddresses, addr.AsSlice())
		} else if mesh.IsDNSName(name) {
			template.DNSNames = append(template.DNSNames, name)
		} else {
			return nil, fmt.Errorf("sign server certificate: %q is neither a DNS name nor an IP address", name)
		}
	}
	return a.signEndEntity(template, pub, ttl, now, rand)
}

// LeafSpec has the names of a certificate, at least one, and its life.
type LeafSpec struct {
	SPIFFEID    string // any form that the SPIFFE specification allows
	DNSNames    []string
	IPAddresses []netip.Addr
	TTL         time.Duration
}

// Check returns an error for the first wrong name.
func (s LeafSpec) Check() error {
	if s.SPIFFEID == "" && len(s.DNSNames) == 0 && len(s.IPAddresses) == 0 {
		return errors.New("a certificate needs a SPIFFE id, a DNS name or an IP address")
	}
	if s.SPIFFEID != "" {
		switch _, path, err := ParseSPIFFEID(s.SPIFFEID); {
		case err != nil:
			return err
		case path == "":
			return fmt.Errorf("SPIFFE id %q names a trust domain, not a workload: it has no path", s.SPIFFEID)
		}
	}
	for _, name := range s.DNSNames {
		if !mesh.IsDNSName(strings.TrimPrefix(name, "*.")) {
			return fmt.Errorf("%q is not a DNS name", name)
		}
	}
	return nil
}

// maxSPIFFEID is the limit of the SPIFFE specification, in bytes.
const maxSPIFFEID = 2048

// ParseSPIFFEID returns the trust domain and the path of a SPIFFE id. The path is
// empty if the id names a trust domain.
func ParseSPIFFEID(s string) (trustDomain, path string, err error) {
	if len(s) > maxSPIFFEID {
		return "", "", fmt.Errorf("SPIFFE id is longer than %d bytes", maxSPIFFEID)
	}
	id, err := spiffeid.FromString(s)
	if err != nil {
		return "", "", fmt.Errorf("SPIFFE id %q: %w", s, err)
	}
	return id.TrustDomain().Name(), id.Path(), nil
}

// SignNames signs a certificate with the names of spec for a workload, a gateway or a
// test. Life and serial number are as in SignLeaf. It fails if peers would refuse the
// certificate, for example because of a name constraint of the root.
func (a *Authority) SignNames(pub crypto.PublicKey, spec LeafSpec, now time.Time, rand io.Reader) (*x509.Certificate, error) {
	if err := spec.Check(); err != nil {
		return nil, fmt.Errorf("sign certificate: %w", err)
	}
	template := &x509.Certificate{
		DNSNames:    spec.DNSNames,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if spec.SPIFFEID != "" {
		id, err := url.Parse(spec.SPIFFEID)
		if err != nil {
			return nil, fmt.Errorf("sign certificate: %w", err)
		}
		template.URIs = []*url.URL{id}
	}
	for _, addr := range spec.IPAddresses {
		template.IPAddresses = append(template.IPAddresses, addr.AsSlice())
	}
	cert, err := a.signEndEntity(template, pub, spec.TTL, now, rand)
	if err != nil {
		return nil, err
	}
	_, err = cert.Verify(x509.VerifyOptions{Roots: Pool(a.Roots), Intermediates: Pool(a.Chain), CurrentTime: now})
	if err != nil {
		return nil, fmt.Errorf("sign certificate: peers would refuse it: %w", err)
	}
	return cert, nil
}

// signEndEntity completes and signs the template of a certificate that is no CA. The
// subject stays empty, which makes the names critical.
func (a *Authority) signEndEntity(template *x509.Certificate, pub crypto.PublicKey, ttl time.Duration, now time.Time, rand io.Reader) (*x509.Certificate, error) {
	if ttl <= 0 {
		return nil, fmt.Errorf("sign certificate: life time is %v, want more than 0", ttl)
	}
	serial, err := newSerial(rand)
	if err != nil {
		return nil, err
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = serial, now.Add(-Backdate), now.Add(ttl)
	template.KeyUsage = x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment
	template.BasicConstraintsValid = true
	if err := a.fit(template, now); err != nil {
		return nil, err
	}
	return create(template, a.Cert, pub, a.Key, rand)
}

// clusterOID identifies the non-critical extension with the cluster of a workload as
// UTF8String. All numbers but
// the last come from the UUID e41a792c-dc9e-4846-83a1-f11032b616f4, cut into numbers
// of 16 and 24 bits below an arc that is open for this use. Go and other programs
// cannot read the large numbers of the arc for whole UUIDs (2.25).
func clusterOID() asn1.ObjectIdentifier {
	return asn1.ObjectIdentifier{
		1, 2, 840, 113556, 1, 8000, 2554,
		58394, 31020, 56478, 18502, 33697, 15798322, 11933428,
		1,
	}
}

// ClusterOf returns the cluster that cert names for its workload. It returns false if
// the extension is missing or malformed. The caller must have verified cert.
func ClusterOf(cert *x509.Certificate) (mesh.ClusterID, bool) {
	oid := clusterOID()
	for _, ext := range cert.Extensions {
		if !ext.Id.Equal(oid) {
			continue
		}
		var raw asn1.RawValue
		rest, err := asn1.Unmarshal(ext.Value, &raw)
		if err != nil || len(rest) > 0 || ext.Critical ||
			raw.Class != asn1.ClassUniversal || raw.Tag != asn1.TagUTF8String || raw.IsCompound ||
			!validCluster(string(raw.Bytes)) {
			return "", false
		}
		return mesh.ClusterID(raw.Bytes), true
	}
	return "", false
}

// maxCluster bounds a cluster id in a certificate, in bytes.
const maxCluster = 253

// validCluster accepts visible ASCII characters: also ids such as "Kubernetes" or the
// ARN of a managed cluster.
func validCluster(s string) bool {
	if s == "" || len(s) > maxCluster {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
