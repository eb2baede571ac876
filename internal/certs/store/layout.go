package store

import (
	"crypto/x509"
	"slices"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/files"
)

// Names of files, in directories and in Secrets.
const (
	RootCertFile = "root-cert.pem"
	RootKeyFile  = "root-key.pem"

	CertFile      = "ca-cert.pem"
	KeyFile       = "ca-key.pem"
	CRLFile       = "ca-crl.pem"
	certChainFile = "cert-chain.pem"

	TLSCertFile  = "tls.crt"
	tlsKeyFile   = "tls.key"
	tlsRootsFile = "ca.crt"

	leafKeyFile = "key.pem"
)

// Size limits of files in bytes. MaxFile is the limit of revocation lists and the
// largest of all.
const (
	maxKey   = 64 << 10
	maxCerts = 1 << 20
	MaxFile  = 16 << 20
)

// Layout selects the names of a CA's files in a Secret.
type Layout string

// The layouts that Istio reads.
const (
	// LayoutIstio has ca-cert.pem, ca-key.pem, cert-chain.pem, root-cert.pem and
	// optionally ca-crl.pem.
	LayoutIstio Layout = "istio"
	// LayoutTLS has tls.crt (the chain from the CA to the root), tls.key and ca.crt.
	// It has no revocation lists.
	LayoutTLS Layout = "tls"
)

// Names returns the file names of a cluster's CA in a layout.
func Names(l Layout) []string {
	if l == LayoutTLS {
		return []string{TLSCertFile, tlsKeyFile, tlsRootsFile}
	}
	return []string{CertFile, KeyFile, RootCertFile, certChainFile}
}

// IsSigner reports whether the file of this name begins with the signing certificate.
func IsSigner(name string) bool { return name == CertFile || name == TLSCertFile }

// IsKey reports whether the file of this name has the signing key.
func IsKey(name string) bool { return name == KeyFile || name == tlsKeyFile }

// IsRoots reports whether the file of this name has the trusted roots.
func IsRoots(name string) bool { return name == RootCertFile || name == tlsRootsFile }

// Files encodes the files of a cluster's CA, in the order of Names.
func Files(a *certs.Authority) ([]files.File, error) {
	key, err := certs.EncodeKey(a.Key)
	if err != nil {
		return nil, err
	}
	chain := append(slices.Clone(a.Chain), rootOf(a)...)
	return []files.File{
		{Name: CertFile, Data: certs.EncodeCerts(a.Cert), Mode: files.Public},
		{Name: KeyFile, Data: key, Mode: files.Secret},
		{Name: RootCertFile, Data: certs.EncodeCerts(a.Roots...), Mode: files.Public},
		{Name: certChainFile, Data: certs.EncodeCerts(chain...), Mode: files.Public},
	}, nil
}

// RootFiles encodes the files of a root.
func RootFiles(root *certs.Authority) ([]files.File, error) {
	key, err := certs.EncodeKey(root.Key)
	if err != nil {
		return nil, err
	}
	return []files.File{
		{Name: RootCertFile, Data: certs.EncodeCerts(root.Cert), Mode: files.Public},
		{Name: RootKeyFile, Data: key, Mode: files.Secret},
	}, nil
}

// rootOf returns the root that signed the end of the chain, if it is known.
func rootOf(a *certs.Authority) []*x509.Certificate {
	if len(a.Chain) == 0 {
		return []*x509.Certificate{a.Cert}
	}
	top := a.Chain[len(a.Chain)-1]
	i := slices.IndexFunc(a.Roots, func(r *x509.Certificate) bool { return top.CheckSignatureFrom(r) == nil })
	if i < 0 {
		return nil
	}
	return a.Roots[i : i+1]
}
