package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
)

// checkPorts returns an error that names each unavailable address and the process that needs
// it, or another demo as the cause.
func checkPorts(ctx context.Context, endpoints []endpoint) error {
	var (
		taken  []endpoint
		errs   []error
		config net.ListenConfig
	)
	for _, e := range endpoints {
		l, err := config.Listen(ctx, "tcp", e.addr.String())
		if err == nil {
			err = l.Close()
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, syscall.EADDRINUSE):
			taken = append(taken, e)
		case err != nil:
			errs = append(errs, fmt.Errorf("%s cannot listen on %s: %w", e.who, e.addr, err))
		}
	}
	return errors.Join(takenError(taken, endpoints), errors.Join(errs...))
}

// takenError reports which of all addresses are in use, nil for none.
func takenError(taken, all []endpoint) error {
	if len(taken) == 0 {
		return nil
	}
	if n := countControl(taken); n > 0 && n == countControl(all) {
		return fmt.Errorf("another demo seems to run on this machine: stop it first (%d of %d addresses are in use; "+
			"see who has %s, for example, with: ss -ltnp 'sport = :%d')",
			len(taken), len(all), taken[0].addr, taken[0].addr.Port())
	}
	var lines []string
	for _, e := range taken {
		lines = append(lines, fmt.Sprintf("%s is in use, but %s needs it for %s", e.addr, e.who, e.use))
	}
	return fmt.Errorf("%s\nsee who listens there with: ss -ltnp", strings.Join(lines, "\n"))
}

func countControl(endpoints []endpoint) int {
	n := 0
	for _, e := range endpoints {
		if e.control {
			n++
		}
	}
	return n
}
