package store

import (
	"crypto"
	"crypto/x509"
	"path/filepath"
	"slices"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Names of a leaf's files, as agents read them.
const (
	leafChainFile = certChainFile
	leafKeyFile   = "key.pem"
)

// SaveRoot writes root-cert.pem and root-key.pem into dir, both or none, and
// returns their paths. Unless force is set it overwrites nothing.
func SaveRoot(dir string, root *certs.Authority, force bool) ([]string, error) {
	set, err := RootFiles(root)
	if err != nil {
		return nil, err
	}
	return save(dir, set, force)
}

// Intermediate is the authority of one cluster.
type Intermediate struct {
	Cluster   mesh.ClusterID
	Authority *certs.Authority
}

// SaveIntermediates writes the four files of each cluster into dir/<cluster>
// and returns their paths: the files of all clusters or none. Unless force is
// set it overwrites nothing.
func SaveIntermediates(dir string, clusters []Intermediate, force bool) ([]string, error) {
	var dirs []files.Dir
	var all []string
	for _, c := range clusters {
		set, err := authorityFiles(c.Authority)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, files.Dir{Name: string(c.Cluster), Files: set})
		all = append(all, paths(filepath.Join(dir, string(c.Cluster)), set)...)
	}
	if err := files.WriteDirs(dir, dirs, files.Options{Force: force}); err != nil {
		return nil, err
	}
	return all, nil
}

// authorityFiles renders the four files of an authority.
func authorityFiles(a *certs.Authority) ([]files.File, error) {
	key, err := certs.EncodeKey(a.Key)
	if err != nil {
		return nil, err
	}
	chain := append(slices.Clone(a.Chain), rootOf(a)...)
	return []files.File{
		{Name: caCertFile, Data: certs.EncodeCerts(a.Cert), Mode: files.Public},
		{Name: caKeyFile, Data: key, Mode: files.Secret},
		{Name: rootCertFile, Data: certs.EncodeCerts(a.Roots...), Mode: files.Public},
		{Name: certChainFile, Data: certs.EncodeCerts(chain...), Mode: files.Public},
	}, nil
}

// rootOf returns the root at the end of the chain: of several, those that did
// not sign it are no part of it.
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

// SaveLeaf writes what a peer needs besides its own trust into dir, in the
// names that agents read, and returns the paths: cert-chain.pem with the leaf
// and what leads from it to a root, root-cert.pem, and key.pem unless key is
// nil. Unless force is set it overwrites nothing.
func SaveLeaf(dir string, leaf *x509.Certificate, key crypto.Signer, by *certs.Authority, force bool) ([]string, error) {
	set := []files.File{
		{Name: leafChainFile, Data: certs.EncodeCerts(append([]*x509.Certificate{leaf}, by.Chain...)...), Mode: files.Public},
		{Name: rootCertFile, Data: certs.EncodeCerts(by.Roots...), Mode: files.Public},
	}
	if key != nil {
		data, err := certs.EncodeKey(key)
		if err != nil {
			return nil, err
		}
		set = append(set, files.File{Name: leafKeyFile, Data: data, Mode: files.Secret})
	}
	return save(dir, set, force)
}

func save(dir string, set []files.File, force bool) ([]string, error) {
	if err := files.WriteDir(dir, set, files.Options{Force: force}); err != nil {
		return nil, err
	}
	return paths(dir, set), nil
}

func paths(dir string, set []files.File) []string {
	out := make([]string, len(set))
	for i, f := range set {
		out[i] = filepath.Join(dir, f.Name)
	}
	return out
}
