package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/harness"
)

// benchmark is one run of the command.
type benchmark struct {
	options
	dir, config string
	mesh        services
	report      report
	starts      []float64 // seconds from start until ready
	rss         []float64 // RSS at that time
	changed     int       // endpoints changed so far
	// policyVersion is the version of the VirtualServices that change.
	policyVersion int
}

// kind is the way in which proxies connect.
type kind struct {
	sotw, tls bool
	library   bool // with the gRPC library
}

// kinds has the plain kinds first, as the ordinary figures come first in the report.
var kinds = []kind{
	{sotw: true}, {}, {sotw: true, tls: true}, {tls: true}, {sotw: true, library: true}, {library: true},
}

func (k kind) String() string {
	s := "delta"
	if k.sotw {
		s = "sotw"
	}
	if k.tls {
		s += " tls"
	}
	if k.library {
		s += " grpc"
	}
	return s
}

func (b *benchmark) all(ctx context.Context) error {
	switch only, part, _ := strings.Cut(b.only, "/"); only {
	case "":
	case "certificates":
		return b.certificates(ctx)
	case "agent":
		return b.agent(ctx)
	case "kube":
		return b.kube(ctx)
	case "policies":
		return b.policies(ctx)
	case "authorization":
		return b.authorization(ctx)
	case "scale":
		return b.scale(ctx, part)
	default:
		return fmt.Errorf("-only %q: want agent, certificates, kube, policies, authorization or scale", b.only)
	}
	for _, k := range kinds {
		if !slices.Contains(strings.Split(b.kinds, ","), k.String()) {
			continue
		}
		if err := b.meshctl(ctx, k); err != nil {
			return fmt.Errorf("%v: %w", k, err)
		}
	}
	if b.returning > 0 {
		for _, k := range []kind{{}, {sotw: true}} {
			if err := b.restart(ctx, k); err != nil {
				return fmt.Errorf("%v: %w", k, err)
			}
		}
	}
	if b.others {
		if err := b.stalled(ctx); err != nil {
			return fmt.Errorf("proxies that stop reading: %w", err)
		}
		if err := b.certificates(ctx); err != nil {
			return fmt.Errorf("certificates: %w", err)
		}
		if err := b.agent(ctx); err != nil {
			return fmt.Errorf("agent: %w", err)
		}
		if err := b.kube(ctx); err != nil {
			return fmt.Errorf("mesh in a Kubernetes API: %w", err)
		}
		if err := b.policies(ctx); err != nil {
			return fmt.Errorf("policies: %w", err)
		}
		if err := b.authorization(ctx); err != nil {
			return fmt.Errorf("authorization: %w", err)
		}
		if err := b.scale(ctx, ""); err != nil {
			return err
		}
	}
	if len(b.starts) == 0 {
		return fmt.Errorf("-kinds %q has nothing that can be measured", b.kinds)
	}
	b.report.add("start until ready", median(b.starts), "seconds", 0.3)
	b.report.add("RSS then", median(b.rss), "bytes", 80e6)
	if !b.yardstick {
		return nil
	}
	for _, k := range []kind{{sotw: true}, {}} {
		if b.report.value(k.String()+": sent for it") == 0 {
			continue // was not measured
		}
		if err := b.compareYardstick(ctx, k); err != nil {
			return fmt.Errorf("yardstick, %v: %w", k, err)
		}
	}
	return nil
}

// limit returns v for 500 proxies and 1,000 Services with 10 endpoints, and no limit for
// other sizes.
func (b *benchmark) limit(v float64) float64 {
	if b.proxies == 500 && b.services == 1000 && b.endpoints == 10 {
		return v
	}
	return 0
}

// serve starts a meshctl and records its start time.
func (b *benchmark) serve(ctx context.Context, args ...string) (*meshctl, error) {
	m, err := newMeshctl(b.binary, b.profiles, b.dir, b.config, args...)
	if err != nil {
		return nil, err
	}
	if err := m.start(ctx); err != nil {
		return nil, err
	}
	b.starts = append(b.starts, m.ready.Seconds())
	b.rss = append(b.rss, m.atReady.rss)
	return m, nil
}

// fleet returns proxies that are not connected yet.
func (b *benchmark) fleet(m *meshctl, k kind) (*fleet, error) {
	f := newFleet(m.plain, k, nil)
	f.hosts = b.hosts && !k.sotw && !k.library
	if !k.tls {
		return f, nil
	}
	all := make(map[string]credentials.TransportCredentials)
	for i := range 10 {
		namespace := fmt.Sprintf("load-%d", i)
		config, err := m.clientConfig(namespace)
		if err != nil {
			return nil, err
		}
		// As Envoy:
		config.DynamicRecordSizingDisabled = true
		config.CurvePreferences = []tls.CurveID{tls.X25519, tls.CurveP256}
		all[namespace] = credentials.NewTLS(config)
	}
	f.addr, f.creds = m.secure, func(ns string) credentials.TransportCredentials { return all[ns] }
	return f, nil
}

// meshctl measures connections and changes.
func (b *benchmark) meshctl(ctx context.Context, k kind) (err error) {
	m, err := b.serve(ctx)
	if err != nil {
		return err
	}
	defer m.end(&err)
	if b.yardstick && !k.tls && !k.library {
		if err := saveResources(ctx, m.plain, b.dir); err != nil {
			return err
		}
	}
	f, err := b.fleet(m, k)
	if err != nil {
		return err
	}
	defer f.close()
	if err := b.connect(ctx, k.String(), m.process, f); err != nil {
		return err
	}
	if err := b.endpointChanges(ctx, k, m, f); err != nil {
		return err
	}
	if k == (kind{}) {
		return b.newServices(ctx, k, m, f)
	}
	return nil
}

// connect connects all proxies. It does not count the costs of the first proxy, for which the
// server makes the views that all proxies share.
func (b *benchmark) connect(ctx context.Context, what string, p *process, f *fleet) error {
	f.grow(ctx, 1)
	if _, err := f.all(ctx, complete); err != nil {
		return err
	}
	_, _ = f.losses() // attempts before the server listened
	before, err := p.settled(ctx)
	if err != nil {
		return err
	}
	f.bytes.Store(0)
	p.phase(what + " connect")
	f.drain()
	f.events <- event{complete: true} // of the first proxy
	start := time.Now()
	f.grow(ctx, b.proxies+1)
	at, err := f.all(ctx, complete)
	if err != nil {
		return err
	}
	wall := at[len(at)-1].Sub(start)
	after, err := p.settled(ctx)
	if err != nil {
		return err
	}
	if lost, errs := f.losses(); lost > 0 {
		return fmt.Errorf("%d streams ended %v", lost, errs)
	}
	b.report.add(what+": all proxies have everything", wall.Seconds(), "seconds", b.ours(what, 2.5))
	b.report.add(what+": server CPU for it", after.cpu-before.cpu, "seconds", b.ours(what, 2))
	b.report.add(what+": sent for it", float64(f.bytes.Load()), "bytes", 0)
	b.report.add(what+": memory a proxy (RSS growth)", (after.rss-before.rss)/float64(b.proxies), "bytes", b.ours(what, 100e3))
	return nil
}

// ours returns the limit of figures of meshctl with this command's own client.
func (b *benchmark) ours(what string, v float64) float64 {
	if strings.HasPrefix(what, "yardstick") || strings.HasSuffix(what, "grpc") {
		return 0
	}
	return b.limit(v)
}

// endpointChanges moves endpoints, one at a time, and waits until every proxy has the change.
func (b *benchmark) endpointChanges(ctx context.Context, k kind, m *meshctl, f *fleet) error {
	c, err := b.moveEndpoints(ctx, k.String()+" change", m, f)
	if err != nil {
		return err
	}
	limit := func(v float64) float64 { return b.ours(k.String(), v) }
	what := k.String() + ": one endpoint changes: "
	b.report.add(what+"the first proxy has it", median(c.first), "seconds", 0)
	b.report.add(what+"half of the proxies have it", median(c.half), "seconds", limit(0.015))
	b.report.add(what+"the last proxy has it", median(c.last), "seconds", limit(0.04))
	b.report.add(what+"server CPU", median(c.cpu), "seconds", limit(0.01))
	b.report.add(what+"resources generated", median(c.generated), "count", limit(1))
	b.report.add(what+"responses sent", median(c.sent), "count", limit(float64(f.size())))
	return nil
}

// moveEndpoints measures changes of one endpoint each.
func (b *benchmark) moveEndpoints(ctx context.Context, phase string, m *meshctl, f *fleet) (*changes, error) {
	return b.changes(ctx, phase, m, f, xdswire.EndpointType, func(int) (int, error) {
		b.changed++
		service := b.changed % b.services
		return service, b.mesh.writeSlice(b.config, service, b.changed)
	})
}

// newServices creates services and waits until each of 200 proxies has the cluster.
func (b *benchmark) newServices(ctx context.Context, k kind, m *meshctl, f *fleet) error {
	const proxies = 200
	f.shrink(min(proxies, f.size()))
	c, err := b.changes(ctx, k.String()+" service", m, f, xdswire.ClusterType, func(round int) (int, error) {
		return b.services + round, b.mesh.writeService(b.config, b.services+round)
	})
	if err != nil {
		return err
	}
	for round := range b.rounds {
		if err := removeService(b.config, b.services+round); err != nil {
			return err
		}
	}
	what := fmt.Sprintf("%v: a new Service, %d proxies: ", k, f.size())
	b.report.add(what+"the last has its cluster", median(c.last), "seconds", b.limit(0.15))
	b.report.add(what+"server CPU", median(c.cpu), "seconds", b.limit(0.1))
	return nil
}

// changes holds the effects of changes of the mesh, one element for each change: the seconds
// until the first, half and all of the proxies had it, the CPU seconds of the server, and the
// numbers of resources that it generated and of responses that it sent.
type changes struct{ first, half, last, cpu, generated, sent []float64 }

// changes makes changes and waits after each until every proxy has a resource of the type for the
// service that change returns.
func (b *benchmark) changes(ctx context.Context, phase string, m *meshctl, f *fleet, typ string, change func(round int) (service int, err error)) (*changes, error) {
	return b.changesSeen(ctx, phase, m, f, typ, seesAll, change)
}

// changesSeen waits like changes, but only for the proxies that see the service.
func (b *benchmark) changesSeen(
	ctx context.Context, phase string, m *meshctl, f *fleet, typ string,
	sees func(proxy, service int) bool, change func(round int) (service int, err error),
) (*changes, error) {
	m.phase(phase)
	defer m.phase("")
	c := new(changes)
	for round := range b.rounds {
		if _, err := m.settled(ctx); err != nil {
			return nil, err
		}
		counted, err := m.counters()
		if err != nil {
			return nil, err
		}
		before, err := m.settled(ctx)
		if err != nil {
			return nil, err
		}
		f.drain()
		start := time.Now()
		service, err := change(round)
		if err != nil {
			return nil, err
		}
		at, err := f.each(ctx, func(proxy int) bool { return sees(proxy, service) }, func(e event) bool {
			return e.typ == typ && (typ == xdswire.ExtensionType || e.has(b.mesh.resource(typ, service)))
		})
		if err != nil {
			return nil, err
		}
		after, err := m.settled(ctx)
		if err != nil {
			return nil, err
		}
		now, err := m.counters()
		if err != nil {
			return nil, err
		}
		c.first = append(c.first, at[0].Sub(start).Seconds())
		c.half = append(c.half, at[len(at)/2].Sub(start).Seconds())
		c.last = append(c.last, at[len(at)-1].Sub(start).Seconds())
		c.cpu = append(c.cpu, after.cpu-before.cpu)
		c.generated = append(c.generated, now["meshctl_xds_generated_total"]-counted["meshctl_xds_generated_total"])
		c.sent = append(c.sent, now["meshctl_xds_sent_total"]-counted["meshctl_xds_sent_total"])
	}
	return c, nil
}

// restart kills the server of many proxies, starts it again and waits until all proxies are
// back.
func (b *benchmark) restart(ctx context.Context, k kind) (err error) {
	m, err := b.serve(ctx)
	if err != nil {
		return err
	}
	defer func() { m.end(&err) }() // of the last start
	f, err := b.fleet(m, k)
	if err != nil {
		return err
	}
	defer f.close()
	f.grow(ctx, b.returning)
	if _, err := f.all(ctx, complete); err != nil {
		return err
	}
	m.kill()
	f.drain()
	_, _ = f.losses()
	start := time.Now()
	if err := m.start(ctx); err != nil {
		return err
	}
	m.phase(k.String() + " return")
	at, err := f.all(ctx, complete)
	m.phase("")
	if err != nil {
		return err
	}
	wall := at[len(at)-1].Sub(start)
	b.report.add(fmt.Sprintf("%v: kill -9, all of %d proxies are back", k, b.returning), wall.Seconds(), "seconds", 5)
	return nil
}

// compareYardstick measures a snapshot cache that serves the same resources.
func (b *benchmark) compareYardstick(ctx context.Context, k kind) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	addrs, err := harness.FindAddrs(1)
	if err != nil {
		return err
	}
	p, err := startProcess(ctx, self, "-serve-yardstick", b.dir, "-addr", addrs[0])
	if err != nil {
		return err
	}
	defer p.end(&err)
	f := newFleet(addrs[0], k, nil)
	defer f.close()
	what := "yardstick " + k.String()
	if err := b.connect(ctx, what, p, f); err != nil {
		return err
	}
	for _, c := range []struct {
		name  string
		limit float64
	}{
		{": all proxies have everything", 0.3},
		{": server CPU for it", 0.15},
		{": memory a proxy (RSS growth)", 0.1},
	} {
		ratio := b.report.value(k.String()+c.name) / b.report.value(what+c.name)
		b.report.add("ratio to yardstick, "+k.String()+c.name, ratio, "ratio", b.limit(c.limit))
	}
	return nil
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}
