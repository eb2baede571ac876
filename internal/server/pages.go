package server

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/replicas"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/internal/server/debug"
	"github.com/meshctl/meshctl/internal/server/xds"
)

// pages are the status pages of meshctl's own.
func (s *Server) pages() map[string]debug.Page {
	recorder := s.hub.History()
	show := func(help string, what func() any) debug.Page {
		return debug.Page{Help: help, Make: func(context.Context, debug.Query) (any, error) { return what(), nil }}
	}
	return map[string]debug.Page{
		"bundles":  show("the bundles of other trust domains", func() any { return s.bundles.Status() }),
		"certs":    show("the signing CA on disk, loaded and given out", func() any { return s.caPage() }),
		"clusters": show("the clusters that are read, and how each of them lives", func() any { return s.clustersPage() }),
		"clusterz": show("the clusters that are read", func() any { return s.clusterz() }),
		"oidc":     show("the issuers of OIDC tokens", func() any { return s.oidcPage() }),
		"tokens":   show("whose tokens count", func() any { return s.apis.reviewers.Status() }),
		"writers":  show("what is written to Kubernetes", func() any { return s.writersPage() }),
		"proxies":  show("the connected proxies", func() any { return s.hub.Proxies() }),
		strings.TrimPrefix(replicas.IdentityPath, "/debug/"): show("which replica this is", func() any {
			return replicas.Identity{Replica: s.cfg.Replica, Cluster: s.cfg.ClusterID}
		}),
		"xds/history": {Help: "the last responses of ?proxy=, or who there is", Make: func(_ context.Context, q debug.Query) (any, error) {
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
		"cachez": {Help: "lists of resources in use, which are what is cached", Make: func(ctx context.Context, _ debug.Query) (any, error) {
			return s.hub.Views(ctx)
		}},
		"xds/proxies":  show("how far each proxy is with each type", func() any { return s.proxiesPage() }),
		"log-levels":   show("the least level that is logged of each area; PUT changes it", func() any { return s.logLevels() }),
		"xds/timeline": show("the last changes and how they reached the proxies", func() any { return recorder.Timeline() }),
		"xds/nacks":    show("what proxies refused", func() any { return s.hub.NACKs() }),
		"xds/views": {Help: "lists of resources in use", Make: func(ctx context.Context, _ debug.Query) (any, error) {
			return s.hub.Views(ctx)
		}},
	}
}

// notes are what is known besides the reasons not to be ready, for
// /ready?verbose: what the server is ready with, what is wrong with the signing
// CA, which extensions are configured twice, which networks cannot be reached from
// others, which addresses two services have, and what proxies refused.
func (s *Server) notes() []string {
	var lines []string
	set := s.ca.Current()
	if len(s.notReady()) == 0 && set != nil {
		signer := ca.Describe(set.Cert)
		lines = append(lines, "ready", fmt.Sprintf("signing CA: %s, valid until %s", signer.Subject, signer.Until.Format(time.RFC3339)))
		list, _ := s.sources.Status()
		for i := range list {
			lines = append(lines, noteOf(&list[i]))
		}
	}
	lines = append(lines, s.policyNotes()...)
	if set != nil { // else it is a reason not to be ready
		lines = append(append(lines, s.ca.Problems()...), s.ca.Warnings()...)
	}
	lines = append(lines, bounded(s.registry.DuplicateExtensions(), "extensions that are configured twice: see the log")...)
	lines = append(lines, bounded(texts(s.registry.UnreachableNetworks()), "networks that cannot be reached, which this command shows: meshctl remote-clusters")...)
	lines = append(lines, bounded(texts(s.registry.AddressConflicts()), "addresses that two services have, which this command shows: meshctl remote-clusters -o json")...)
	lines = append(lines, s.apiNotes()...)
	lines = append(lines, s.bundleNotes()...)
	lines = append(lines, s.ownNotes()...)
	return append(lines, notesOf(s.hub.NACKs())...)
}

func texts[T fmt.Stringer](list []T) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.String()
	}
	return out
}

func notesOf(page xds.NACKs) []string {
	var refused []string
	for _, r := range page.Refused[:min(len(page.Refused), maxNotes)] {
		streams := "1 stream"
		if n := len(r.Streams); n != 1 {
			streams = fmt.Sprintf("%d streams", n)
		}
		refused = append(refused, fmt.Sprintf("%s %s: refused by %s since %s: %q",
			r.Type, r.Resource, streams, r.Since.UTC().Format(time.RFC3339), r.Error))
	}
	return numbered(refused, len(page.Refused), "refused")
}

// maxNotes is how many things of a kind /ready?verbose tells of.
const maxNotes = 50

// bounded is the first of the lines, and how many more there are of what.
func bounded(lines []string, what string) []string {
	more := len(lines) - maxNotes
	if more <= 0 {
		return lines
	}
	return append(slices.Clip(lines[:maxNotes]), fmt.Sprintf("and %d more %s", more, what))
}

// numbered is lines under their full number, none for none.
func numbered(lines []string, all int, what string) []string {
	if all == 0 {
		return nil
	}
	out := append([]string{fmt.Sprintf("%s: %d", what, all)}, lines...)
	if more := all - len(lines); more > 0 {
		out = append(out, fmt.Sprintf("and %d more %s resources; all are in: meshctl xds nacks -o json", more, what))
	}
	return out
}
