package server

import (
	"cmp"
	"context"
	"crypto/x509"
	"net/http"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/server/clusters"
	"github.com/meshctl/meshctl/internal/server/debug"
	"github.com/meshctl/meshctl/internal/server/identity"
)

// newDebug makes the status pages.
func (s *Server) newDebug() *debug.Pages {
	return debug.New(debug.Config{
		Proxies: s.hub.Proxies, Sent: s.hub.Sent, Accepted: s.hub.Accepted, Versions: s.hub.Versions,
		Snapshot: s.registry.Current, Omitted: s.registry.Omitted, Rules: s.registry.Rules,
		Unreachable: s.registry.UnreachableNetworks, Conflicts: s.registry.AddressConflicts, Hints: s.configurationHints,
		Pages: s.pages(), Changes: map[string]debug.Change{"log-levels": s.setLogLevels},
		SystemNamespace: s.cfg.systemNamespace(), Namespaces: s.cfg.DebugNamespaces,
		ID: cmp.Or(s.cfg.Name, "meshctl"), Version: s.cfg.Version, Replica: s.cfg.Replica,
		Now: s.cfg.Now, Log: s.cfg.log(logHTTP),
	})
}

// keepToken makes the token by which commands of this machine and user read status
// pages. Without it they need --token-file.
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
	return s.debug.Handler(debug.HTTPConfig{
		Operator: s.operator, Network: s.cfg.DebugNetwork, Profiles: s.cfg.Profiling,
		Authenticate: s.authenticateToken, Log: s.cfg.log(logHTTP),
	})
}

// pages returns the status pages that show other parts of the server.
func (s *Server) pages() map[string]debug.Page {
	recorder := s.hub.History()
	show := func(help string, what func() any) debug.Page {
		return debug.Page{Help: help, Make: func(context.Context, debug.Query) (any, error) { return what(), nil }}
	}
	views := func(ctx context.Context, _ debug.Query) (any, error) { return s.hub.Views(ctx) }
	return map[string]debug.Page{
		"analysis": {Help: "the faults between objects, as meshctl analyze finds them", Make: s.analysisPage},
		"bundles":  show("the bundles of other trust domains", func() any { return s.trust.Bundles.Status() }),
		"certs":    show("the signing CA: on disk, in use, and in issued certificates", func() any { return s.caPage() }),
		"clusters": show("the clusters, and the state of each", func() any { return s.sources.Page() }),
		"clusterz": show("the clusters, as istioctl reads them", func() any { return s.sources.SyncInfos() }),
		"gateways": show("the gateways of networks, and why some are not used", func() any { return s.gatewaysPage() }),
		"keysets":  show("the key sets of RequestAuthentications", func() any { return s.keySets.Status() }),
		"oidc":     show("the issuers of OIDC tokens", func() any { return s.oidcPage() }),
		"tokens":   show("the clusters whose API servers review tokens", func() any { return s.apis.reviewers.Status() }),
		"writers":  show("the writes to Kubernetes", func() any { return s.writersPage() }),
		"proxies":  show("the connected proxies", func() any { return s.hub.Proxies() }),
		strings.TrimPrefix(replicas.IdentityPath, "/debug/"): show("which replica this is", func() any { return s.identityPage() }),
		"xds/history": {Help: "the last responses to ?proxy=, or the names of all streams", Make: func(_ context.Context, q debug.Query) (any, error) {
			name := q.Get("proxy")
			if name == "" {
				return recorder.Streams(), nil
			}
			history := recorder.History(name)
			if len(history) == 0 {
				return nil, debug.NotFound("proxy %q: not found", name)
			}
			return history, nil
		}},
		"cachez":       {Help: "another name of xds/views", Make: views},
		"log-levels":   show("the log level of each area; PUT changes it", func() any { return s.logLevels() }),
		"xds/timeline": show("the last changes and how they reached the proxies", func() any { return recorder.Timeline() }),
		"xds/nacks":    show("the resources that proxies refused", func() any { return s.hub.NACKs() }),
		"xds/views":    {Help: "the lists of resources in use", Make: views},
	}
}

// identityPage makes /debug/replica.
func (s *Server) identityPage() replicas.Identity {
	out := replicas.Identity{
		Replica: s.cfg.Replica, Cluster: s.cfg.ClusterID, Revision: cmp.Or(s.cfg.Revision, mesh.DefaultRevision), MeshID: s.cfg.MeshID,
	}
	if now := s.registry.Current(); now != nil {
		out.TrustDomains = append([]string{now.Mesh.TrustDomain}, now.Mesh.Aliases...)
	}
	if set := s.ca.Current(); set != nil {
		for _, root := range set.Top {
			out.SignsBelow = append(out.SignsBelow, certs.Fingerprint(root))
		}
		trusted := [][]*x509.Certificate{set.Roots}
		for _, roots := range s.trust.Bundles.Domains() {
			trusted = append(trusted, roots)
		}
		for _, root := range slices.Concat(trusted...) {
			out.Trusts = append(out.Trusts, certs.Fingerprint(root))
		}
		slices.Sort(out.Trusts)
		out.Trusts = slices.Compact(out.Trusts)
	}
	return out
}

// oidcPage makes /debug/oidc.
func (s *Server) oidcPage() []identity.OIDCStatus {
	if s.oidc == nil {
		return []identity.OIDCStatus{}
	}
	return s.oidc.Status()
}

// configurationHints returns remarks on the configuration for the reader of proxies.
func (s *Server) configurationHints() []string {
	hints := s.analysisHint()
	if own := s.ownCluster(); own != nil {
		hints = append(own.Hints(), hints...)
	}
	return hints
}

func (s *Server) ownCluster() *clusters.Status {
	list, _ := s.sources.Status()
	for i := range list {
		if list[i].Own {
			return &list[i]
		}
	}
	return nil
}
