package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/internal/server/clusters"
	"github.com/meshctl/meshctl/internal/server/debug"
	"github.com/meshctl/meshctl/internal/server/identity"
	"github.com/meshctl/meshctl/internal/server/xds"
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
		strings.TrimPrefix(replicas.IdentityPath, "/debug/"): show("which replica this is", func() any {
			return replicas.Identity{Replica: s.cfg.Replica, Cluster: s.cfg.ClusterID}
		}),
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

// oidcPage makes /debug/oidc.
func (s *Server) oidcPage() []identity.OIDCStatus {
	if s.oidc == nil {
		return []identity.OIDCStatus{}
	}
	return s.oidc.Status()
}

// notReady returns the reasons why the server is not ready, none when it is.
func (s *Server) notReady() []string {
	if s.draining.Load() {
		return []string{"the server is stopping"}
	}
	if s.ca.Current() == nil {
		return s.ca.Problems()
	}
	if err := s.fit.get(); err != nil && !s.ready.Load() {
		return []string{fmt.Sprintf("signing CA: it does not fit the mesh: %v", err)}
	}
	if !s.ready.Load() {
		return append([]string{"the configuration was not read completely yet"}, s.ownFaults()...)
	}
	return nil
}

// notes returns lines for /ready?verbose in addition to the reasons not to be ready:
// the state of the CA and the clusters, and the problems of all parts.
func (s *Server) notes() []string {
	var lines []string
	set := s.ca.Current()
	if len(s.notReady()) == 0 && set != nil {
		signer := ca.Describe(set.Cert)
		lines = append(lines, "ready", fmt.Sprintf("signing CA: %s, valid until %s", signer.Subject, signer.Until.Format(time.RFC3339)))
		list, _ := s.sources.Status()
		for i := range list {
			lines = append(lines, clusterNote(&list[i]))
		}
	}
	lines = append(lines, s.policyNotes()...)
	if set != nil { // else it is a reason not to be ready
		lines = append(append(lines, s.ca.Problems()...), s.ca.Warnings()...)
	}
	lines = append(lines, bounded(s.registry.DuplicateExtensions(), "extensions that are configured twice: see the log")...)
	lines = append(lines, bounded(texts(s.hub.PatchFaults()), "patches without effect: see the log")...)
	lines = append(lines, bounded(s.registry.ServerConflicts(), "servers of Gateways that are not opened: see the log")...)
	lines = append(lines, bounded(s.registry.UnknownProviders(), "providers that MeshConfig lacks: see the log")...)
	lines = append(lines, bounded(texts(s.registry.UnreachableNetworks()), "networks that cannot be reached, which this command shows: meshctl remote-clusters")...)
	lines = append(lines, bounded(texts(s.registry.AddressConflicts()), "addresses that two services have, which this command shows: meshctl remote-clusters -o json")...)
	lines = append(lines, bounded(texts(s.registry.HostConflicts()), "hosts that several objects define, which this command shows: meshctl remote-clusters -o json")...)
	lines = append(lines, bounded(texts(s.registry.RouteProblems()), "problems of VirtualServices: see the log")...)
	lines = append(lines, bounded(texts(s.findings.Load().unlogged), "faults of the configuration, which this command shows: meshctl x internal-debug analysis")...)
	lines = append(lines, bounded(texts(s.registry.Faults()), "facts that could not be computed and keep their last good values: see the log")...)
	lines = append(lines, s.apiNotes()...)
	lines = append(lines, s.bundleNotes()...)
	lines = append(lines, s.ownNotes()...)
	lines = append(lines, s.keySetNotes()...)
	return append(lines, nackNotes(s.hub.NACKs())...)
}

// clusterNote returns a line about a cluster.
func clusterNote(c *clusters.Status) string {
	text := fmt.Sprintf("cluster %s: ", c.Cluster)
	switch c.State {
	case clusters.Synced:
		text += "read"
		if c.Reason != "" {
			text += "; " + c.Reason
		}
	case clusters.Lost:
		text += fmt.Sprintf("lost since %s: %s", c.LostSince.UTC().Format(time.RFC3339), c.Reason)
	case clusters.Syncing, clusters.Timeout:
		text += "not read yet"
		if c.Reason != "" {
			text = fmt.Sprintf("cluster %s: not read: %s", c.Cluster, c.Reason)
		}
	}
	if !strings.Contains(text, c.CredentialProblem) {
		text += "; " + c.CredentialProblem
	}
	return strings.Join(append([]string{text}, c.Problems...), "; ")
}

// policyNotes warns of security policies that are not enforced.
func (s *Server) policyNotes() []string {
	if own := s.ownCluster(); own != nil && len(own.Unenforced) > 0 {
		return []string{"warning: " + own.UnenforcedText()}
	}
	return nil
}

// configurationHints returns remarks on the configuration for the reader of proxies.
func (s *Server) configurationHints() []string {
	hints := s.analysisHint()
	if own := s.ownCluster(); own != nil {
		hints = append(own.Hints(), hints...)
	}
	return hints
}

// ownFaults returns why the own cluster is not read.
func (s *Server) ownFaults() []string {
	if own := s.ownCluster(); own != nil && own.Reason != "" {
		return []string{own.Reason}
	}
	return nil
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

// ownNotes returns the problems of the secure port's certificate and of OIDC issuers.
func (s *Server) ownNotes() []string {
	var lines []string
	if s.own != nil {
		if err := s.own.Problem(); err != nil {
			lines = append(lines, oneLine(err.Error()))
		}
	}
	for _, st := range s.oidcPage() {
		if st.Problem != "" {
			lines = append(lines, fmt.Sprintf("tokens of issuer %s: %s", st.Issuer, oneLine(st.Problem)))
		}
	}
	return lines
}

// bundleNotes returns the problems of trust bundles.
func (s *Server) bundleNotes() []string {
	var lines []string
	list := s.trust.Bundles.Status()
	for i := range list {
		if st := &list[i]; st.Problem != "" {
			lines = append(lines, fmt.Sprintf("trust bundle %s from %s: since %s: %s", cmp.Or(st.TrustDomain, "of the mesh"), st.Source,
				st.Since.Format(time.RFC3339), oneLine(st.Problem)))
		}
	}
	return bounded(lines, "trust bundles: see /debug/bundles")
}

func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }

func texts[T fmt.Stringer](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.String()
	}
	return out
}

// nackNotes returns the refused resources, after their number.
func nackNotes(page xds.NACKs) []string {
	all := len(page.Refused)
	if all == 0 {
		return nil
	}
	lines := []string{fmt.Sprintf("refused: %d", all)}
	for _, r := range page.Refused[:min(all, maxNotes)] {
		streams := "1 stream"
		if n := len(r.Streams); n != 1 {
			streams = fmt.Sprintf("%d streams", n)
		}
		lines = append(lines, fmt.Sprintf("%s %s: refused by %s since %s: %q",
			r.Type, r.Resource, streams, r.Since.UTC().Format(time.RFC3339), r.Error))
	}
	if more := all - maxNotes; more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more refused resources; all are in: meshctl xds nacks -o json", more))
	}
	return lines
}

// maxNotes bounds the lines of one kind in /ready?verbose.
const maxNotes = 50

// bounded returns the first lines, and a line with the number of the others.
func bounded(lines []string, what string) []string {
	more := len(lines) - maxNotes
	if more <= 0 {
		return lines
	}
	return append(slices.Clip(lines[:maxNotes]), fmt.Sprintf("and %d more %s", more, what))
}
