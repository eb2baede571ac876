package server

import (
	"cmp"
	"crypto/tls"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/bundle"
	"github.com/meshctl/meshctl/internal/mesh"
)

// defaultBundleRefresh is how often other meshes are to ask for the bundle. A
// new root has to be in it for as long before it signs.
const defaultBundleRefresh = 5 * time.Minute

// serveBundle gives the mesh's own roots to whoever asks: they are public.
func (s *Server) serveBundle(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method is not allowed", http.StatusMethodNotAllowed)
		return
	}
	set := s.ca.Current()
	if set == nil {
		http.Error(w, "there is no signing CA yet", http.StatusServiceUnavailable)
		return
	}
	roots, err := bundle.Parse(certs.EncodeCerts(set.Roots...))
	if err == nil {
		var doc []byte
		// What changes with a new set of roots and never goes back.
		if doc, err = roots.SPIFFE(uint64(max(1, set.LoadedAt.Unix())), cmp.Or(s.cfg.BundleRefresh, defaultBundleRefresh)); err == nil {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(doc)
			return
		}
	}
	s.cfg.Log.Error("the trust bundle is not served", "error", err)
	http.Error(w, "the bundle cannot be made", http.StatusInternalServerError)
}

// bundleTLS proves that the endpoint is the mesh's control plane by its SPIFFE
// id: the profile https_spiffe.
func (s *Server) bundleTLS() *tls.Config {
	c := &svid{server: s}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: c.get, SessionTicketsDisabled: true,
	}
}

// svid is the certificate of the control plane as a workload: made anew when
// half of its life is over, or the CA or the trust domain is another.
type svid struct {
	server *Server

	mu        sync.Mutex // guards what follows
	cert      *tls.Certificate
	id        mesh.Identity
	authority *certs.Authority // that signed cert
	renewAt   time.Time
}

// controlPlaneAccount is the service account of the control plane.
const controlPlaneAccount = "istiod"

func (c *svid) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s := c.server
	callers, set, now := s.callers.Load(), s.ca.Current(), s.cfg.Now()
	if callers == nil || set == nil || s.fit.get() != nil {
		return nil, errors.New("the trust domain or its CA is not known yet")
	}
	id := mesh.Identity{TrustDomain: callers.trustDomain, Namespace: s.cfg.systemNamespace(), ServiceAccount: controlPlaneAccount}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cert != nil && c.id == id && c.authority == set.Authority && now.Before(c.renewAt) {
		return c.cert, nil
	}
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		return nil, err
	}
	leaf, err := set.SignLeaf(key.Public(), mesh.Caller{Identity: id}, bundleLeafTTL, now, s.cfg.Rand)
	if err != nil {
		s.cfg.Log.Error("no certificate for the bundle endpoint", "error", err)
		return nil, err
	}
	cert := &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	for _, above := range set.Chain {
		cert.Certificate = append(cert.Certificate, above.Raw)
	}
	c.cert, c.id, c.authority, c.renewAt = cert, id, set.Authority, now.Add(leaf.NotAfter.Sub(now)/2)
	return cert, nil
}

// bundleLeafTTL is how long a certificate of the endpoint lives.
const bundleLeafTTL = time.Hour
