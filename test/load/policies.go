package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// Services of a mesh in which proxies get virtual hosts on demand, and the hosts that each requests.
const (
	onDemandServices = 2001
	requestedHosts   = 50
)

// policies measures a mesh in which each Service has a VirtualService and a
// DestinationRule, with as many proxies and Services as the ordinary rows: with whole route
// configurations, with virtual hosts one by one, and, with more Services, with virtual hosts on demand.
func (b *benchmark) policies(ctx context.Context) error {
	config := filepath.Join(b.dir, "policies")
	if err := b.mesh.write(config, 0, b.services); err != nil {
		return err
	}
	for i := range b.services {
		if err := b.writePolicies(config, i, 0); err != nil {
			return err
		}
	}
	if err := b.policyChanges(ctx, "policies, whole route configurations", config, xdswire.RouteType, 0, "--virtual-host-discovery=false"); err != nil {
		return err
	}
	if err := b.policyChanges(ctx, "policies", config, xdswire.VirtualHostType, 0); err != nil {
		return err
	}
	if err := b.mesh.write(config, b.services, onDemandServices); err != nil {
		return err
	}
	return b.policyChanges(ctx, "policies, on demand", config, xdswire.VirtualHostType, requestedHosts, "--virtual-hosts-on-demand")
}

// policyChanges measures the mesh of policies. typ is the type of the resources that contain the
// routes. A proxy requests as many virtual hosts as requested says, or gets all if it is 0. flags are
// flags of the control plane.
func (b *benchmark) policyChanges(ctx context.Context, what, config, typ string, requested int, flags ...string) (err error) {
	routed := *b
	routed.config = config
	routed.starts, routed.rss = nil, nil
	m, err := routed.serve(ctx, flags...)
	if err != nil {
		return err
	}
	defer m.end(&err)
	f, err := routed.fleet(m, kind{})
	if err != nil {
		return err
	}
	defer f.close()
	b.policyVersion++
	f.hosts, routed.mesh.onDemand = typ == xdswire.VirtualHostType, requested > 0
	for i := range requested {
		f.requests = appendField(f.requests, 3, routed.mesh.resource(typ, i))
	}
	if err := routed.connect(ctx, what, m.process, f); err != nil {
		return err
	}
	b.report.Figures = routed.report.Figures
	b.report.limit(what+": all proxies have everything", b.limit(3))
	b.report.add(what+": start until ready", median(routed.starts), "seconds", b.limit(0.6))
	b.report.add(what+": RSS then", median(routed.rss), "bytes", b.limit(140e6))
	c, err := routed.moveEndpoints(ctx, what+" change", m, f)
	b.changed = routed.changed // the next run must change other endpoints
	if err != nil {
		return err
	}
	b.report.add(what+": one endpoint changes: half of the proxies have it", median(c.half), "seconds", b.limit(0.015))
	c, err = routed.changes(ctx, what+" route", m, f, typ, func(round int) (int, error) {
		return round, b.writePolicies(config, round, b.policyVersion)
	})
	if err != nil {
		return err
	}
	b.report.add(what+": a VirtualService changes: half of the proxies have it", median(c.half), "seconds", b.limit(0.02))
	b.report.add(what+": a VirtualService changes: the last proxy has it", median(c.last), "seconds", 0)
	b.report.add(what+": a VirtualService changes: server CPU", median(c.cpu), "seconds", b.limit(0.06))
	b.report.add(what+": a VirtualService changes: resources generated", median(c.generated), "count", 0)
	return nil
}

// writePolicies writes the VirtualService and the DestinationRule of a Service; version
// changes the route.
func (b *benchmark) writePolicies(config string, i, version int) error {
	host := strings.TrimPrefix(b.mesh.cluster(i), "outbound|80||")
	return replace(filepath.Join(config, fmt.Sprintf("policies-%d.yaml", i)), fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: svc-%[1]d, namespace: %[2]s}
spec:
  hosts: [%[3]s]
  http:
  - match: [{uri: {prefix: /v2/}, headers: {x-version: {exact: "2"}}}]
    rewrite: {uri: /}
    route: [{destination: {host: %[3]s}}]
  - timeout: %[4]ds
    retries: {attempts: 3, perTryTimeout: 2s, retryOn: "5xx,reset"}
    route: [{destination: {host: %[3]s}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: svc-%[1]d, namespace: %[2]s}
spec:
  host: %[3]s
  trafficPolicy:
    connectionPool: {tcp: {maxConnections: 100}, http: {http2MaxRequests: 1000}}
    outlierDetection: {consecutive5xxErrors: 5, interval: 10s, baseEjectionTime: 30s}
    loadBalancer: {simple: LEAST_REQUEST}
`, i, b.mesh.namespace(i), host, 10+version))
}
