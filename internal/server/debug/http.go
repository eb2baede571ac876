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

	"github.com/meshctl/meshctl/internal/localtoken"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Access decides who may read the pages over HTTP.
type Access struct {
	// Operator is a token that shows everything to callers of this machine.
	// Empty means that there is none.
	Operator localtoken.Token
	// Authenticate says whose a bearer token is. The cluster is what the caller
	// says of it, perhaps nothing.
	Authenticate func(ctx context.Context, token, cluster string) (mesh.Caller, error)
	// Network admits callers of other machines.
	Network bool
	// Profiles serves runtime profiles to callers with the operator's token.
	Profiles bool
	Log      *slog.Logger
}

// Handler serves the pages below /debug/, and a list of links at /debug.
// Nothing is shown without a token, whoever asks.
func (p *Pages) Handler(a Access) http.Handler {
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
		mux.Handle("GET "+ProfilesPath, p.profiles(a))
	}
	mux.HandleFunc("GET /debug", func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, a, "") })
	return mux
}

func (p *Pages) serve(w http.ResponseWriter, r *http.Request, a Access, name string) {
	header := w.Header()
	setHeaders(header)
	caller, err := a.judge(r, p)
	if err == nil && name == "" {
		header.Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, p.index(caller))
		return
	}
	var page []byte
	if err == nil {
		page, err = p.get(r.Context(), caller, name, r.URL.Query())
	}
	if err != nil {
		refuse(w, err)
		return
	}
	header.Set("Content-Type", "application/json")
	_, _ = w.Write(page) //nolint:gosec // it is JSON, and nosniff has it taken as that
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

// judge says what a caller may see.
func (a *Access) judge(r *http.Request, p *Pages) (Caller, error) {
	local := fromLoopback(r)
	if local && !isLocal(r) {
		return Caller{}, &Error{http.StatusForbidden, "this page is not served to callers on this machine under the name of another host"}
	}
	scheme, raw, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if raw = strings.TrimSpace(raw); !strings.EqualFold(scheme, "Bearer") || raw == "" {
		return Caller{}, &Error{http.StatusUnauthorized, "this page needs a token: Authorization: Bearer …"}
	}
	if local && a.Operator.Is(raw) {
		return Caller{All: true}, nil
	}
	who, err := a.Authenticate(r.Context(), raw, r.Header.Get("Clusterid"))
	if err != nil {
		a.Log.Warn("caller of a status page not authenticated", "peer", r.RemoteAddr, "error", err)
		return Caller{}, &Error{http.StatusUnauthorized, "the token is of nobody who is known here"}
	}
	if !local && !a.Network {
		return Caller{}, &Error{http.StatusForbidden, "status pages are served to callers on this machine only: forward the port, ask over xDS, or start serve with --debug-network"}
	}
	caller := p.Judge(who.Identity)
	if caller == (Caller{}) {
		a.Log.Warn("caller may not see status pages", "peer", r.RemoteAddr, "identity", who.Identity.String())
		return Caller{}, &Error{http.StatusForbidden, "status pages are for identities of the mesh"}
	}
	return caller, nil
}

// isLocal reports whether a request comes from this machine and names it as its
// host. The page of a web site whose name was made to lead here names its own host.
func isLocal(r *http.Request) bool { return fromLoopback(r) && localtoken.IsLocal(r.Host) }

func fromLoopback(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	return err == nil && peer.Addr().Unmap().IsLoopback()
}

// index is the list of links.
func (p *Pages) index(caller Caller) string {
	var b strings.Builder
	b.WriteString("<!DOCTYPE html>\n<title>meshctl debug</title>\n" +
		"<p>Pages of this control plane. With <b>?pretty</b> they are indented.</p>\n<table>\n")
	for _, name := range append([]string{"list"}, p.Names()...) {
		if page := p.pages[name]; caller.All || page.Open {
			name = html.EscapeString(name)
			fmt.Fprintf(&b, "<tr><td><a href=\"/debug/%s\">/debug/%s</a></td><td>%s</td></tr>\n", name, name, html.EscapeString(page.Help))
		}
	}
	b.WriteString("</table>\n")
	return b.String()
}
