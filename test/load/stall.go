package main

import (
	"context"
	"errors"
	"fmt"
)

// stalled measures how much longer a change takes while as many other proxies have stopped
// reading and each has a response in flight.
func (b *benchmark) stalled(ctx context.Context) (err error) {
	m, err := b.serve(ctx)
	if err != nil {
		return err
	}
	defer m.end(&err)
	f := newFleet(m.plain, kind{}, nil)
	defer f.close()
	f.grow(ctx, b.proxies)
	if _, err := f.all(ctx, complete); err != nil {
		return err
	}
	without, err := b.moveEndpoints(ctx, "without stalled", m, f)
	if err != nil {
		return err
	}
	others := newFleet(m.plain, kind{}, nil)
	others.first, others.stopReading = b.proxies, make(chan struct{})
	defer others.close()
	others.grow(ctx, b.proxies)
	if _, err := others.all(ctx, complete); err != nil {
		return err
	}
	close(others.stopReading)
	// With a new Service, each proxy is sent the whole RouteConfiguration of its port.
	const more = 3
	for i := range more {
		f.drain()
		if err := b.mesh.writeService(b.config, b.services+i); err != nil {
			return err
		}
		name := b.mesh.cluster(b.services + i)
		if _, err := f.all(ctx, func(e event) bool { return e.has(name) }); err != nil {
			return err
		}
	}
	with, err := b.moveEndpoints(ctx, "stalled", m, f)
	if err != nil {
		return err
	}
	for i := range more {
		err = errors.Join(err, removeService(b.config, b.services+i))
	}
	what := fmt.Sprintf("%d of %d proxies stop reading: one endpoint changes: ", b.proxies, 2*b.proxies)
	b.report.add(what+"half of the others have it", median(with.half), "seconds", 0)
	b.report.add(what+"ratio to without them", median(with.half)/median(without.half), "ratio", 1.5)
	return err
}
