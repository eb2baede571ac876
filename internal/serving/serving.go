// Package serving runs servers until a context ends and checks the paths of
// their Unix sockets.
package serving

import (
	"context"
	"net"
	"net/http"
	"time"
)

// Until serves until ctx ends; then it stops the server, waits for that and
// returns nil. When serve ends before, it returns why.
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

// grace is how long requests may go on once their server is to stop.
const grace = time.Second

// HTTP serves on l, which it closes, until ctx ends; then requests have a second
// to end by themselves. When the server ends before, it returns why.
func HTTP(ctx context.Context, srv *http.Server, l net.Listener) error {
	return Until(ctx, func() error { return srv.Serve(l) }, func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		defer cancel()
		if srv.Shutdown(end) != nil {
			_ = srv.Close()
		}
	})
}
