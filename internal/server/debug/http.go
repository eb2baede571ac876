package debug

import (
	"context"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/profiles"
)

// HTTPConfig decides who reads the pages over HTTP.
type HTTPConfig struct {
	// Operator is the token of this machine. It allows local callers everything. May be
	// empty.
	Operator localtoken.Token
	// Authenticate returns the owner of a bearer token. The cluster is the caller's claim
	// and may be empty.
	Authenticate func(ctx context.Context, token, cluster string) (mesh.Caller, error)
	// Network allows callers on other machines.
	Network bool
	// Profiles serves runtime profiles to callers with the token of this machine.
	Profiles bool
	Log      *slog.Logger
}

// Handler serves the pages below /debug/, and an index at /debug. Every request needs
// a token.
func (p *Pages) Handler(a HTTPConfig) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/{name...}", func(w http.ResponseWriter, r *http.Request) {
		p.serve(w, r, a, r.PathValue("name"))
	})
	mux.HandleFunc("PUT /debug/{name...}", func(w http.ResponseWriter, r *http.Request) {
		if err := p.change(r, a, r.PathValue("name")); err != nil {
			refuse(w, err)
			return
		}
		p.serve(w, r, a, r.PathValue("name"))
	})
	if a.Profiles {
		mux.Handle("GET "+profiles.Path, p.profiles(a))
	}
	mux.HandleFunc("GET /debug", func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, a, "") })
	return mux
}

func (p *Pages) serve(w http.ResponseWriter, r *http.Request, a HTTPConfig, name string) {
	header := w.Header()
	setHeaders(header)
	rights, err := a.judge(r, p)
	if err == nil && name == "" {
		header.Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, p.index(rights))
		return
	}
	var page []byte
	if err == nil {
		page, err = p.get(r.Context(), rights, name, r.URL.Query())
	}
	if err != nil {
		refuse(w, err)
		return
	}
	header.Set("Content-Type", "application/json")
	_, _ = w.Write(page) //nolint:gosec // it is JSON, and nosniff makes browsers treat it as such
}

// profiles serves runtime profiles to callers with the operator's token.
func (p *Pages) profiles(a HTTPConfig) http.Handler {
	handler := profiles.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		setHeaders(w.Header())
		rights, err := a.judge(r, p)
		if err == nil && !rights.operator() {
			err = &Error{http.StatusForbidden, "profiles are for the user of the control plane on its machine only"}
		}
		if err != nil {
			refuse(w, err)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

func setHeaders(header http.Header) {
	header.Set("Cache-Control", "no-store")
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Security-Policy", "default-src 'none'")
}

func refuse(w http.ResponseWriter, err error) {
	code := statusOf(err)
	if code == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="meshctl"`)
	}
	http.Error(w, err.Error(), code)
}

// judge returns the rights of the caller of a request.
func (a *HTTPConfig) judge(r *http.Request, p *Pages) (Rights, error) {
	local := fromLoopback(r)
	if local && !isLocal(r) {
		return Rights{}, &Error{http.StatusForbidden, "this page is not served to callers on this machine under the name of another host"}
	}
	scheme, raw, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if raw = strings.TrimSpace(raw); !strings.EqualFold(scheme, "Bearer") || raw == "" {
		return Rights{}, &Error{http.StatusUnauthorized, "this page needs a token: Authorization: Bearer …"}
	}
	if local && a.Operator.Is(raw) {
		return Rights{All: true}, nil
	}
	who, err := a.Authenticate(r.Context(), raw, r.Header.Get("Clusterid"))
	if err != nil {
		a.Log.Warn("caller of a status page not authenticated", "peer", r.RemoteAddr, "error", err)
		if status.Code(err) == codes.Unavailable {
			return Rights{}, &Error{http.StatusServiceUnavailable, "the token could not be reviewed: the API server does not answer the control plane or refuses its credential, see the log of the control plane and /ready?verbose"}
		}
		return Rights{}, &Error{http.StatusUnauthorized, "the token belongs to no known identity"}
	}
	if !local && !a.Network {
		return Rights{}, &Error{http.StatusForbidden, "status pages are served to callers on this machine only: forward the port, ask over xDS, or start serve with --debug-network"}
	}
	rights := p.RightsOf(who.Identity)
	if rights == (Rights{}) {
		a.Log.Warn("caller may not see status pages", "peer", r.RemoteAddr, "identity", who.Identity.String())
		return Rights{}, &Error{http.StatusForbidden, "status pages are for identities of the mesh"}
	}
	return rights, nil
}

// isLocal reports whether a request comes from this machine and names it as its host.
// A web site whose name resolves to this machine has its own name as host.
func isLocal(r *http.Request) bool { return fromLoopback(r) && localtoken.IsLocal(r.Host) }

func fromLoopback(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && peer.Addr().Unmap().IsLoopback()
}

// index returns the list of links.
func (p *Pages) index(rights Rights) string {
	var b strings.Builder
	b.WriteString("<!DOCTYPE html>\n<title>meshctl debug</title>\n" +
		"<p>Pages of this control plane. With <b>?pretty</b> they are indented.</p>\n<table>\n")
	for _, name := range append([]string{"list"}, p.Names()...) {
		if page := p.pages[name]; rights.All || page.Open {
			name = html.EscapeString(name)
			fmt.Fprintf(&b, "<tr><td><a href=\"/debug/%s\">/debug/%s</a></td><td>%s</td></tr>\n", name, name, html.EscapeString(page.Help))
		}
	}
	b.WriteString("</table>\n")
	return b.String()
}
