package ca

import (
	"cmp"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/bundle"
	"github.com/meshctl/meshctl/internal/mesh"
)

const (
	// defaultBundleRefresh is the default of BundleEndpoint.Refresh.
	defaultBundleRefresh = 5 * time.Minute
	// bundleLeafTTL is the lifetime of a certificate of the bundle endpoint.
	bundleLeafTTL = time.Hour
)

// BundleEndpoint serves the roots of the mesh as a SPIFFE bundle endpoint of the
// profile https_spiffe. It is an http.Handler, and needs TLSConfig.
type BundleEndpoint struct {
	CA *CA
	// Identity returns the SPIFFE identity of the control plane, or why it is not
	// known yet.
	Identity func() (mesh.Identity, error)
	// Refresh is the interval at which other meshes should ask for the bundle;
	// default 5 min. A new root must be in the bundle for as long before it signs.
	Refresh time.Duration
	Now     func() time.Time
	Rand    io.Reader
	Log     *slog.Logger

	renewed renewedCertificate
}

// ServeHTTP serves the roots to every caller, as they are public.
func (e *BundleEndpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method is not allowed", http.StatusMethodNotAllowed)
		return
	}
	set := e.CA.Current()
	if set == nil {
		http.Error(w, "there is no signing CA yet", http.StatusServiceUnavailable)
		return
	}
	roots, err := bundle.Parse(certs.EncodeCerts(set.Roots...))
	var doc []byte
	if err == nil {
		// The sequence number grows with each new set of roots.
		doc, err = roots.SPIFFE(uint64(max(1, set.LoadedAt.Unix())), cmp.Or(e.Refresh, defaultBundleRefresh))
	}
	if err != nil {
		e.Log.Error("the trust bundle is not served", "error", err)
		http.Error(w, "the bundle cannot be made", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(doc)
}

// TLSConfig returns a configuration that proves the SPIFFE identity of the control
// plane.
func (e *BundleEndpoint) TLSConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: e.certificate, SessionTicketsDisabled: true,
	}
}

// certificate returns a certificate for the identity of the control plane.
func (e *BundleEndpoint) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	id, err := e.Identity()
	if err != nil {
		return nil, err
	}
	set, now := e.CA.Current(), e.Now()
	if set == nil {
		return nil, errNone
	}
	cert, err := e.renewed.get(id, set.Authority, now, func(key crypto.PublicKey) (*x509.Certificate, error) {
		return set.SignLeaf(key, mesh.Caller{Identity: id}, bundleLeafTTL, now, e.Rand)
	})
	if err != nil {
		e.Log.Error("no certificate for the bundle endpoint", "error", err)
	}
	return cert, err
}
