package store

import (
	"crypto"
	"crypto/x509"
	"path/filepath"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

// SaveRoot writes root-cert.pem and root-key.pem into dir, both or none, and returns
// their paths. Without force it overwrites nothing.
func SaveRoot(dir string, root *certs.Authority, force bool) ([]string, error) {
	set, err := RootFiles(root)
	if err != nil {
		return nil, err
	}
	return save(dir, set, force)
}

// Intermediate is the CA of a cluster.
type Intermediate struct {
	Cluster   mesh.ClusterID
	Authority *certs.Authority
}

// SaveIntermediates writes the four files of each cluster into dir/<cluster>, for all
// clusters or none, and returns their paths. Without force it overwrites nothing.
func SaveIntermediates(dir string, clusters []Intermediate, force bool) ([]string, error) {
	var dirs []files.Dir
	var all []string
	for _, c := range clusters {
		if err := files.CheckOutput(filepath.Join(dir, string(c.Cluster))); err != nil {
			return nil, err
		}
		set, err := Files(c.Authority)
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

// SaveLeaf writes the files that agents read into dir and returns their paths:
// cert-chain.pem with the leaf and its chain, root-cert.pem and, unless key is nil,
// key.pem. Without force it overwrites nothing.
func SaveLeaf(dir string, leaf *x509.Certificate, key crypto.Signer, by *certs.Authority, force bool) ([]string, error) {
	set := []files.File{
		{Name: certChainFile, Data: certs.EncodeCerts(append([]*x509.Certificate{leaf}, by.Chain...)...), Mode: files.Public},
		{Name: RootCertFile, Data: certs.EncodeCerts(by.Roots...), Mode: files.Public},
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
	if err := files.CheckOutput(dir); err != nil {
		return nil, err
	}
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
