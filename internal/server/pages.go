package server

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/meshctl/meshctl/internal/server/admin"
)

// pages are the status pages for callers on loopback.
func (s *Server) pages() map[string]admin.Page {
	flight := s.hub.Flight()
	return map[string]admin.Page{
		"/debug/clusters": func(context.Context, url.Values) (any, error) { return s.sources.list(), nil },
		"/debug/proxies":  func(context.Context, url.Values) (any, error) { return s.hub.Proxies(), nil },
		// One proxy's history, or without a name who there is.
		"/debug/xds/history": func(_ context.Context, query url.Values) (any, error) {
			name := query.Get("proxy")
			if name == "" {
				return flight.Streams(), nil
			}
			history := flight.History(name)
			if len(history) == 0 {
				return nil, fmt.Errorf("proxy %q: %w", name, admin.ErrNotFound)
			}
			return history, nil
		},
		"/debug/xds/timeline": func(context.Context, url.Values) (any, error) { return flight.Timeline(), nil },
		"/debug/xds/nacks":    func(context.Context, url.Values) (any, error) { return s.hub.NACKs(), nil },
		"/debug/xds/views":    func(ctx context.Context, _ url.Values) (any, error) { return s.hub.Views(ctx) },
	}
}

// notes are what proxies refused, for /ready?verbose.
func (s *Server) notes() []string {
	const most = 50
	refused := s.hub.NACKs().Refused
	var out []string
	for _, r := range refused[:min(len(refused), most)] {
		out = append(out, fmt.Sprintf("%s %s: refused by %d streams since %s: %q",
			r.Type, r.Resource, len(r.Streams), r.Since.UTC().Format(time.RFC3339), r.Error))
	}
	if len(refused) > most {
		out = append(out, fmt.Sprintf("and %d more refused resources: see meshctl xds nacks -o json", len(refused)-most))
	}
	return out
}
