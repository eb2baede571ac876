// Package serving bounds a server's life by a context.
package serving

import "context"

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
