package server

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/debug"
)

// newDebug makes the status pages.
func (s *Server) newDebug() *debug.Pages {
	return debug.New(debug.Config{
		Proxies: s.hub.Proxies, Sent: s.hub.Sent, Snapshot: s.registry.Current, Omitted: s.registry.Omitted,
		Unreachable: s.registry.UnreachableNetworks, Conflicts: s.registry.AddressConflicts,
		Pages: s.pages(), Changes: s.changes(),
		SystemNamespace: s.cfg.systemNamespace(), Namespaces: s.cfg.DebugNamespaces,
		ID: cmp.Or(s.cfg.Name, "meshctl"), Version: s.cfg.Version,
	})
}

// keepToken makes the token with which commands of this machine read status
// pages. Without one they need another token.
func (s *Server) keepToken() {
	s.forgetToken = func() {}
	if s.http == nil {
		return
	}
	token, path, forget, err := localtoken.Keep(s.cfg.TokenDirs, s.http.Addr(), s.cfg.Rand)
	if err != nil {
		s.cfg.Log.Warn("commands on this machine need --token-file to read status pages", "error", err)
		return
	}
	s.operator, s.forgetToken = token, forget
	s.cfg.Log.Debug("token for commands on this machine", "file", path)
}

// debugHandler serves the status pages over HTTP.
func (s *Server) debugHandler() http.Handler {
	return s.debug.Handler(debug.Access{
		Operator: s.operator, Network: s.cfg.DebugNetwork, Profiles: s.cfg.Profiling, Log: s.cfg.log(logHTTP),
		Authenticate: func(ctx context.Context, token, cluster string) (mesh.Caller, error) {
			c := s.callers.Load()
			if c == nil {
				return mesh.Caller{}, errors.New("the mesh configuration was not read yet")
			}
			return c.AuthenticateToken(ctx, token, cluster)
		},
	})
}
