package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// checkPorts returns an error that names every address that cannot be
// listened on, and who needs it.
func checkPorts(ctx context.Context, endpoints []endpoint) error {
	var (
		errs   []error
		config net.ListenConfig
	)
	for _, e := range endpoints {
		l, err := config.Listen(ctx, "tcp", e.addr.String())
		switch {
		case err == nil:
			if err := l.Close(); err != nil {
				errs = append(errs, fmt.Errorf("try %s for %s: %w", e.addr, e.who, err))
			}
		case errors.Is(err, syscall.EADDRINUSE):
			errs = append(errs, fmt.Errorf("%s is in use, but %s needs it; see who listens there with: ss -ltnp 'sport = :%d'",
				e.addr, e.who, e.addr.Port()))
		default:
			errs = append(errs, fmt.Errorf("cannot listen on %s for %s: %w", e.addr, e.who, err))
		}
	}
	return errors.Join(errs...)
}
