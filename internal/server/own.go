package server

import (
	"fmt"
	"strings"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/server/identity"
	"github.com/meshctl/meshctl/internal/server/issuer"
)

// loadOwn reads the files of the secure port's certificate and of OIDC keys.
func (s *Server) loadOwn() (err error) {
	if f := s.cfg.Own; f.Cert != "" {
		s.own, err = issuer.LoadFileCertificate(issuer.FileConfig{Cert: f.Cert, Key: f.Key, CA: f.CA, Now: s.cfg.Now, Log: s.cfg.log(logAuthn)})
		if err != nil {
			return err
		}
	}
	if len(s.cfg.OIDC) == 0 {
		return nil
	}
	s.oidc, err = identity.NewOIDC(identity.OIDCConfig{
		Rules: s.cfg.OIDC, Roots: s.cfg.OIDCRoots, Guard: dial.Guard{Loopback: !s.cfg.InPod},
		Now: s.cfg.Now, Log: s.cfg.log(logAuthn),
	})
	if err != nil {
		return fmt.Errorf("OIDC: %w", err)
	}
	return nil
}

// ownNotes are what is wrong with the secure port's certificate and with OIDC
// issuers, a line each.
func (s *Server) ownNotes() []string {
	var lines []string
	if s.own != nil {
		if err := s.own.Problem(); err != nil {
			lines = append(lines, strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	for _, st := range s.oidcPage() {
		if st.Problem != "" {
			lines = append(lines, fmt.Sprintf("tokens of issuer %s: %s", st.Issuer, strings.ReplaceAll(st.Problem, "\n", "; ")))
		}
	}
	return lines
}

// oidcPage is /debug/oidc: the issuers besides clusters.
func (s *Server) oidcPage() []identity.OIDCStatus {
	if s.oidc == nil {
		return []identity.OIDCStatus{}
	}
	return s.oidc.Status()
}
