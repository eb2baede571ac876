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

// Names are those of the files of a cluster's authority.
func Names() []string { return []string{caCertFile, caKeyFile, rootCertFile, certChainFile} }

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
