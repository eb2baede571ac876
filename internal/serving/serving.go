// Package serving runs servers until a context ends, and checks whether a Unix socket
// at a path is in use.
package serving

import (
	"context"
	"net"
	"net/http"
	"time"
)

// Until calls serve. When ctx ends, it calls stop, waits for both and returns nil. If
// serve returns first, Until returns its error.
func Until(ctx context.Context, serve func() error, stop func()) error {
	stopped := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(stopped)
		stop()
	})
	err := serve()
	if !cancel() {
		<-stopped
		return nil
	}
	return err
}

// grace is the time that running requests have when the server stops.
const grace = time.Second

// HTTP serves on l until ctx ends, and closes l. Running requests then have a second to
// finish. If the server fails first, HTTP returns its error.
func HTTP(ctx context.Context, srv *http.Server, l net.Listener) error {
	return Until(ctx, func() error { return srv.Serve(l) }, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if srv.Shutdown(end) != nil {
			_ = srv.Close()
		}
	})
}

// answerGrace is the time in which a response is sent after its request had to be done.
const answerGrace = time.Second

// WithTimeout bounds a request by d. The context ends then, or when the client leaves. The bound of
// the server for writing does not apply: it would drop the response of a request that may take longer.
func WithTimeout(w http.ResponseWriter, r *http.Request, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(r.Context(), d)
	if deadline, ok := ctx.Deadline(); ok { // an error only means that there is no server with bounds
		_ = http.NewResponseController(w).SetWriteDeadline(deadline.Add(answerGrace))
	}
	return ctx, cancel
}
