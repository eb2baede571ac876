package workloadcert

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/files"
)

// Files names a certificate chain, its key and the roots of the mesh, PEM, which another
// program obtains and renews.
type Files struct {
	Chain, Key, Roots string
	// Mounted permits any mode of the key file: a volume of a pod belongs to the pod alone.
	Mounted bool
}

// filesPeriod is the interval at which the files are read.
const filesPeriod = time.Second

// maxCertFile bounds each file, in bytes.
const maxCertFile = 1 << 20

// Load returns the certificate in the files. An expired one is an error.
func (f *Files) Load(now time.Time) (*Certificate, error) {
	chainPEM, err := files.Read(f.Chain, maxCertFile)
	if err != nil {
		return nil, fmt.Errorf("certificate chain: %w", err)
	}
	rootPEM, err := files.Read(f.Roots, maxCertFile)
	if err != nil {
		return nil, fmt.Errorf("roots: %w", err)
	}
	read := files.ReadSecret
	if f.Mounted {
		read = files.Read
	}
	keyPEM, err := read(f.Key, maxCertFile)
	if err != nil {
		return nil, fmt.Errorf("key of the certificate: %w", err)
	}
	return parse(provided{chainPEM, keyPEM, rootPEM}, placeOf{f.Chain, f.Key, f.Roots}, now)
}

// provided holds a certificate of another program, PEM, and placeOf where its parts come from.
type (
	provided struct{ chain, key, roots []byte }
	placeOf  struct{ chain, key, roots string }
)

// parse returns a certificate of another program. An expired one is an error.
func parse(p provided, at placeOf, now time.Time) (*Certificate, error) {
	var r Response
	var err error
	if r.Chain, err = certs.ParseCerts(p.chain); err != nil || len(r.Chain) == 0 {
		return nil, fmt.Errorf("certificate chain %s: %w", at.chain, errors.Join(err, errNoCertificate(r.Chain)))
	}
	if r.Roots, err = certs.ParseCerts(p.roots); err != nil {
		return nil, fmt.Errorf("roots %s: %w", at.roots, err)
	}
	key, err := certs.ParseKey(p.key)
	if err != nil {
		return nil, fmt.Errorf("key of the certificate: %s: %w", at.key, err) // which quotes no key
	}
	r.Roots = distinct(r.Roots)
	r.Chain = without(r.Chain, r.Roots)
	if len(r.Chain) == 0 {
		return nil, fmt.Errorf("certificate chain %s holds only roots", at.chain)
	}
	if end := r.Chain[0].NotAfter; !now.Before(end) {
		return nil, fmt.Errorf("the certificate in %s expired at %s", at.chain, end.UTC().Format(time.RFC3339))
	}
	return verified(key, r, now)
}

func errNoCertificate[T any](list []T) error {
	if len(list) == 0 {
		return errors.New("it holds no certificate")
	}
	return nil
}

// Client returns the certificate in the files for connections, nil if it cannot be used now.
func (f *Files) Client(now time.Time) *tls.Certificate {
	cert, err := f.Load(now)
	if err != nil {
		return nil
	}
	return cert.client()
}

// follow publishes the certificate in the files, and each one that replaces it, until ctx ends.
func (m *Manager) follow(ctx context.Context) {
	var (
		current  *Certificate
		seen     [sha256.Size]byte
		failures int
	)
	for {
		cert, err := m.cfg.Files.Load(m.cfg.Now())
		if err == nil && cert.sum() != seen {
			if err = m.cfg.Publish(ctx, cert); err == nil {
				current, seen = cert, cert.sum()
				m.note(current, nil)
				m.cfg.Log.Info("using the certificate in files", "file", m.cfg.Files.Chain, "expires", cert.NotAfter().UTC().Format(time.RFC3339))
			}
		}
		if err == nil {
			failures = 0
		} else if failures++; failures == 2 { // at first, the files may be replaced one after the other
			m.note(current, err)
			m.cfg.Log.Error("no certificate in files, trying again", "error", err)
		}
		select {
		case <-time.After(filesPeriod):
		case <-ctx.Done():
			return
		}
	}
}

// sum identifies the content of a certificate.
func (c *Certificate) sum() [sha256.Size]byte {
	return sha256.Sum256(append(c.Chain(), c.Roots()...)) // each key has its certificate
}
