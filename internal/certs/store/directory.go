// Package store keeps certificate authorities in directories, in the layouts
// that openssl-made CAs for Istio have: a root in root-cert.pem and
// root-key.pem, the authority of a cluster in the four files of the Secret
// "cacerts".
package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/output"
)

// Names of the files.
const (
	rootCertFile  = "root-cert.pem"
	rootKeyFile   = "root-key.pem"
	caCertFile    = "ca-cert.pem"
	caKeyFile     = "ca-key.pem"
	certChainFile = "cert-chain.pem"
)

// Limits of what is read, in bytes: a key, and a file of certificates.
const (
	maxKey   = 64 << 10
	maxCerts = 1 << 20
	maxCRL   = 16 << 20
)

// Load reads the authority of a cluster from dir, in either layout of Read. The
// error names the directory and what is missing or wrong.
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

// LoadSigner reads whatever in dir can sign: a root, or the authority of a
// cluster.
func LoadSigner(dir string, now time.Time) (*certs.Authority, error) {
	if _, err := os.Lstat(filepath.Join(dir, rootKeyFile)); err == nil {
		return LoadRoot(dir, now)
	}
	return Load(dir, now)
}

// LoadRoot reads a root that can sign intermediates from dir: root-cert.pem
// and root-key.pem.
func LoadRoot(dir string, now time.Time) (*certs.Authority, error) {
	cert, err1 := files.Read(filepath.Join(dir, rootCertFile), maxCerts)
	key, err2 := files.ReadSecret(filepath.Join(dir, rootKeyFile), maxKey)
	if errors.Is(err1, fs.ErrNotExist) && errors.Is(err2, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no root: neither %s nor %s is there; make one with: meshctl certs root-ca --out %s",
			dir, rootCertFile, rootKeyFile, output.ShellWord(dir))
	}
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("load CA from %s: %w", dir, err)
	}
	set := verify.Arrange(dir, []verify.File{
		fileOf(dir, rootCertFile, cert), fileOf(dir, rootKeyFile, key),
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

func fileOf(dir, name string, data []byte) verify.File {
	f := verify.NewFile(name, data)
	f.Place = filepath.Join(dir, name)
	return f
}

// selfSignedTTL is how long a CA lives that LoadOrCreate makes.
const selfSignedTTL = 10 * 365 * 24 * time.Hour

// LoadOrCreate returns the self-signed CA that is kept in dir, and makes it at
// the first start. created tells whether it did. The organization of a new CA
// is the trust domain.
func LoadOrCreate(dir, trustDomain string, now time.Time, rand io.Reader) (a *certs.Authority, created bool, err error) {
	for _, name := range []string{caCertFile, caKeyFile, rootCertFile, certChainFile} {
		// Where a part of a CA is, Load says what is missing. Links to nowhere
		// are what a start left that was killed.
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			a, err := Load(dir, now)
			return a, false, err
		}
	}
	if a, err = selfSigned(trustDomain, now, rand); err != nil {
		return nil, false, err
	}
	all, err := authorityFiles(a)
	if err != nil {
		return nil, false, err
	}
	err = files.WriteDir(dir, all, files.Options{})
	if errors.Is(err, fs.ErrExist) { // by another process, meanwhile
		a, err := Load(dir, now)
		return a, false, err
	}
	if err != nil {
		return nil, false, fmt.Errorf("keep self-signed CA: %w", err)
	}
	return a, true, nil
}

func selfSigned(trustDomain string, now time.Time, rand io.Reader) (*certs.Authority, error) {
	a, err := certs.NewRoot(certs.CASpec{
		Algorithm:    certs.ECDSAP256,
		Organization: trustDomain,
		CommonName:   "meshctl self-signed CA",
		TTL:          selfSignedTTL,
	}, now, rand)
	if err != nil {
		return nil, fmt.Errorf("make self-signed CA: %w", err)
	}
	return a, nil
}

// SelfSigned makes a self-signed CA and returns it as Istio keeps it in the
// Secret istio-ca-secret. The organization of the CA is the trust domain.
func SelfSigned(trustDomain string, now time.Time, rand io.Reader) (map[string][]byte, error) {
	a, err := selfSigned(trustDomain, now, rand)
	if err != nil {
		return nil, err
	}
	all, err := authorityFiles(a)
	if err != nil {
		return nil, err
	}
	data := map[string][]byte{}
	for _, f := range all {
		data[f.Name] = f.Data
	}
	data[certChainFile] = nil // it is its own
	return data, nil
}

// HasAuthority reports whether a directory has the authority of a cluster, in
// either layout. A tls.crt may also be that of a workload.
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

// Authorities are the names of the directories in dir that have the authority of a
// cluster, sorted. Hidden ones do not count.
func Authorities(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("directory of the authorities: %w", err)
	}
	var out []string
	for _, e := range entries {
		if name := e.Name(); !strings.HasPrefix(name, ".") && HasAuthority(filepath.Join(dir, name)) {
			out = append(out, name)
		}
	}
	return out, nil
}
