package agent

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/meshctl/meshctl/internal/localtoken"
)

// control passes the requests of local processes to end or to drain to the agent.
type control struct {
	admin *adminClient // nil without an Envoy
	log   *slog.Logger

	quitOnce sync.Once
	quit     chan struct{} // closed to end at once
	drained  atomic.Bool   // Envoy was asked to drain
}

func newControl(admin *adminClient, log *slog.Logger) *control {
	return &control{admin: admin, log: log, quit: make(chan struct{})}
}

// quitNow ends the agent without draining, for jobs whose application has ended.
func (c *control) quitNow(w http.ResponseWriter, _ *http.Request) {
	ok(w)
	c.quitOnce.Do(func() {
		c.log.Info("asked to end by /quitquitquit")
		close(c.quit)
	})
}

// drain makes Envoy drain and go on, until the agent gets a signal: the hook before the end
// of a native sidecar, whose application ends first.
func (c *control) drain(w http.ResponseWriter, r *http.Request) {
	if c.admin != nil {
		if err := c.admin.drain(r.Context(), "&skip_exit"); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		c.log.Info("asked to drain by /drain")
	}
	c.drained.Store(true)
	ok(w)
}

func ok(w http.ResponseWriter) { _, _ = w.Write([]byte("OK")) } // a client that left needs no answer

// local passes on requests of a method from processes of this machine or pod alone.
func local(method string, next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !isLocal(r):
			http.Error(w, "Only requests from localhost are allowed", http.StatusForbidden)
		case r.Method != method:
			http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
		default:
			next(w, r)
		}
	})
}

// isLocal reports whether a process of this machine or pod sent the request. Envoy passes on
// inbound connections from 127.0.0.6 and ::6, so these are the mesh. A request for another
// host comes from a browser whose page resolved its name to this machine.
func isLocal(r *http.Request) bool {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !from.Addr().Unmap().IsLoopback() || from.Addr().Unmap() == netip.AddrFrom4([4]byte{127, 0, 0, 6}) {
		return false
	}
	return localtoken.IsLocal(r.Host)
}

// drain asks Envoy to drain its listeners; query ends the query of the request.
func (a *adminClient) drain(ctx context.Context, query string) error {
	_, err := a.do(ctx, http.MethodPost, a.drainPath+query)
	return err
}
