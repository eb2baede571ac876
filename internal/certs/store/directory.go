// Package store keeps CAs in directories and in Secrets of Kubernetes clusters. It uses
// Istio's layouts: root-cert.pem and root-key.pem for a root, and the files of the
// Secret "cacerts" for the CA of a cluster.
package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
)

// Load reads the CA of a cluster from dir, in either layout.
func Load(dir string, now time.Time) (*certs.Authority, error) {
	m, err := Read(dir)
	if err != nil {
		return nil, err
	}
	a, _, err := m.Authority(verify.Options{Now: now})
	if err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	return a, nil
}

// LoadSigner reads a root or the CA of a cluster from dir.
func LoadSigner(dir string, now time.Time) (*certs.Authority, error) {
	if _, err := os.Lstat(filepath.Join(dir, RootKeyFile)); err == nil {
		return LoadRoot(dir, now)
	}
	return Load(dir, now)
}

// LoadRoot reads the root in root-cert.pem and root-key.pem of dir.
func LoadRoot(dir string, now time.Time) (*certs.Authority, error) {
	cert, err1 := files.Read(filepath.Join(dir, RootCertFile), maxCerts)
	key, err2 := files.ReadSecret(filepath.Join(dir, RootKeyFile), maxKey)
	if errors.Is(err1, fs.ErrNotExist) && errors.Is(err2, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no root: neither %s nor %s is there; make one with: meshctl certs root-ca --out %s",
			dir, RootCertFile, RootKeyFile, output.ShellWord(dir))
	}
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("load CA from %s: %w", dir, err)
	}
	set := verify.Arrange(dir, []verify.File{
		verify.NewFile(RootCertFile, filepath.Join(dir, RootCertFile), cert), verify.NewFile(RootKeyFile, filepath.Join(dir, RootKeyFile), key),
	})
	if err := verify.Refuse(verify.Check(set, verify.Options{Now: now})); err != nil {
		return nil, fmt.Errorf("load CA: %w", err)
	}
	a, err := certs.LoadAuthority(certs.PEMs{Cert: cert, Key: key, Roots: cert}, now)
	if err != nil {
		return nil, fmt.Errorf("load CA from %s: %w", dir, err)
	}
	return a, nil
}

// HasAuthority reports whether a directory has the CA of a cluster, in either layout.
// The certificate in tls.crt must be a CA.
func HasAuthority(dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, CertFile)); err == nil {
		return true
	}
	data, err := files.Read(filepath.Join(dir, TLSCertFile), MaxFile)
	if err != nil {
		return false
	}
	list, err := certs.ParseCerts(data)
	return err == nil && list[0].IsCA
}

// Clusters returns the sorted names of the directories in dir that have the CA of a
// cluster. It ignores hidden ones.
func Clusters(dir string) ([]mesh.ClusterID, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("directory of the certificates: %w", err)
	}
	var out []mesh.ClusterID
	for _, e := range entries {
		if name := e.Name(); !strings.HasPrefix(name, ".") && HasAuthority(filepath.Join(dir, name)) {
			out = append(out, mesh.ClusterID(name))
		}
	}
	return out, nil
}
