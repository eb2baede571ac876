package ca

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/files"
)

const (
	maxPEM = 1 << 20 // bytes in a file
	// fileInterval is the shortest interval between two reads of the files.
	fileInterval = time.Second
)

// FileConfig names the PEM files of a certificate. Now and Log are required.
type FileConfig struct {
	Cert string // followed by its intermediates
	Key  string // readable by its owner only
	CA   string // roots that the certificate must lead to; empty: any
	Now  func() time.Time
	Log  *slog.Logger
}

// FileCertificate is a serving certificate in files. Handshakes read them again, once
// a second at most. While the files are unreadable, inconsistent or expired, the last
// good certificate stays. It may be used concurrently.
type FileCertificate struct {
	cfg FileConfig

	mu      sync.Mutex // guards what follows
	looked  time.Time
	last    [3]string // contents of the files in use
	problem error
	current atomic.Pointer[tls.Certificate]
}

// LoadFileCertificate reads the files. It fails if they are not valid.
func LoadFileCertificate(cfg FileConfig) (*FileCertificate, error) {
	c := &FileCertificate{cfg: cfg}
	c.refresh()
	return c, c.problem
}

// GetCertificate is for tls.Config.GetCertificate.
func (c *FileCertificate) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.refresh()
	return c.current.Load(), nil
}

// Leaf returns the certificate in use.
func (c *FileCertificate) Leaf() *x509.Certificate { return c.current.Load().Leaf }

// Problem reports why the current files are not in use.
func (c *FileCertificate) Problem() error {
	c.refresh()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.problem
}

func (c *FileCertificate) refresh() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.cfg.Now()
	if !c.looked.IsZero() && now.Sub(c.looked).Abs() < fileInterval {
		return
	}
	c.looked = now
	before := c.problem
	cert, err := c.read(now)
	if err != nil {
		c.problem = fmt.Errorf("serving certificate %s: %w", c.cfg.Cert, err)
		if used := c.current.Load(); used != nil && (before == nil || before.Error() != c.problem.Error()) {
			c.cfg.Log.Error("new serving certificate refused, the last good one is shown", "until", used.Leaf.NotAfter.UTC().Format(time.RFC3339), "error", c.problem)
		}
		return
	}
	c.problem = nil
	if cert != nil {
		c.current.Store(cert)
		c.cfg.Log.Info("serving certificate loaded", "file", c.cfg.Cert, "until", cert.Leaf.NotAfter.UTC().Format(time.RFC3339), "sha256", certs.Fingerprint(cert.Leaf))
	}
}

// read returns the certificate in the files, nil if it is in use already.
func (c *FileCertificate) read(now time.Time) (*tls.Certificate, error) {
	chain, err := files.Read(c.cfg.Cert, maxPEM)
	if err != nil {
		return nil, err
	}
	key, err := files.ReadSecret(c.cfg.Key, maxPEM)
	if err != nil {
		return nil, err
	}
	var roots []byte
	if c.cfg.CA != "" {
		if roots, err = files.Read(c.cfg.CA, maxPEM); err != nil {
			return nil, err
		}
	}
	read := [3]string{string(chain), string(key), string(roots)}
	if shown := c.current.Load(); shown != nil && c.last == read {
		return nil, alive(shown.Leaf, now)
	}
	cert, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, errors.New("certificate and key do not belong together, or are no PEM")
	}
	if err := c.check(&cert, roots, now); err != nil {
		return nil, err
	}
	c.last = read
	return &cert, nil
}

func (c *FileCertificate) check(cert *tls.Certificate, roots []byte, now time.Time) error {
	if err := alive(cert.Leaf, now); err != nil || c.cfg.CA == "" {
		return err
	}
	trusted, err := certs.ParseCerts(roots)
	if err != nil {
		return fmt.Errorf("%s: %w", c.cfg.CA, err)
	}
	above := x509.NewCertPool()
	for _, der := range cert.Certificate[1:] {
		if a, err := x509.ParseCertificate(der); err == nil {
			above.AddCert(a)
		}
	}
	if _, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: certs.Pool(trusted), Intermediates: above, CurrentTime: now}); err != nil {
		return fmt.Errorf("it does not lead to %s: %w", c.cfg.CA, err)
	}
	return nil
}

func alive(leaf *x509.Certificate, now time.Time) error {
	if now.After(leaf.NotAfter) || now.Before(leaf.NotBefore) {
		return fmt.Errorf("it is valid from %s until %s, not now", leaf.NotBefore.UTC().Format(time.RFC3339), leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}
