package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/files"
)

// selfSignedTTL is the life of a CA that LoadOrCreate makes.
const selfSignedTTL = 10 * 365 * 24 * time.Hour

// LoadOrCreate loads the CA in dir. If there is none, it makes a self-signed one and
// sets created. The organization of a new CA is the trust domain.
func LoadOrCreate(dir, trustDomain string, now time.Time, rand io.Reader) (a *certs.Authority, created bool, err error) {
	for _, name := range []string{CertFile, KeyFile, RootCertFile, certChainFile} {
		// If there is a part of a CA, Load reports the missing files. A killed start
		// leaves dangling links, which Stat does not find.
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			a, err := Load(dir, now)
			return a, false, err
		}
	}
	if a, err = selfSigned(trustDomain, now, rand); err != nil {
		return nil, false, err
	}
	all, err := Files(a)
	if err != nil {
		return nil, false, err
	}
	err = files.WriteDir(dir, all, files.Options{})
	if errors.Is(err, fs.ErrExist) { // another process was faster
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

// SelfSigned makes a self-signed CA and returns the data of Istio's Secret
// istio-ca-secret. The organization of the CA is the trust domain.
func SelfSigned(trustDomain string, now time.Time, rand io.Reader) (map[string][]byte, error) {
	a, err := selfSigned(trustDomain, now, rand)
	if err != nil {
		return nil, err
	}
	all, err := Files(a)
	if err != nil {
		return nil, err
	}
	data := dataOf(all)
	data[certChainFile] = nil // as Istio does for a root
	return data, nil
}
