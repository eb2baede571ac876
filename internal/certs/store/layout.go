package store

import (
	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/files"
)

// Names of the files of an authority and of a root, for those who handle them
// one by one, and the limit for reading one, in bytes.
const (
	CertFile     = caCertFile
	KeyFile      = caKeyFile
	RootCertFile = rootCertFile
	RootKeyFile  = rootKeyFile
	CRLFile      = crlFile
	TLSCertFile  = tlsCertFile

	MaxFile = maxCRL
)

// Names are those of the files of a cluster's authority in a layout.
func Names(l Layout) []string {
	if l == LayoutTLS {
		return []string{tlsCertFile, tlsKeyFile, tlsRootsFile}
	}
	return []string{caCertFile, caKeyFile, rootCertFile, certChainFile}
}

// IsSigner reports whether a file, by its name in either layout, begins with the
// certificate that signs.
func IsSigner(name string) bool { return name == caCertFile || name == tlsCertFile }

// IsKey reports whether a file has the key that signs.
func IsKey(name string) bool { return name == caKeyFile || name == tlsKeyFile }

// IsRoots reports whether a file has what peers trust.
func IsRoots(name string) bool { return name == rootCertFile || name == tlsRootsFile }

// Files renders the files of a cluster's authority, in the order of Names.
func Files(a *certs.Authority) ([]files.File, error) { return authorityFiles(a) }

// RootFiles renders the files of a root.
func RootFiles(root *certs.Authority) ([]files.File, error) {
	key, err := certs.EncodeKey(root.Key)
	if err != nil {
		return nil, err
	}
	return []files.File{
		{Name: rootCertFile, Data: certs.EncodeCerts(root.Cert), Mode: files.Public},
		{Name: rootKeyFile, Data: key, Mode: files.Secret},
	}, nil
}
