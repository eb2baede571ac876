package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Sizes of the mesh with AuthorizationPolicies, whatever the flags say.
const (
	authorizationNamespaces = 200
	authorizationPolicies   = 1000
)

// authorization measures a mesh with AuthorizationPolicies in many namespaces, all of which apply
// to the proxies of their namespace.
func (b *benchmark) authorization(ctx context.Context) (err error) {
	protected := *b
	protected.mesh.namespaces = authorizationNamespaces
	protected.config = filepath.Join(b.dir, "authorization")
	protected.starts, protected.rss = nil, nil
	if err := protected.mesh.write(protected.config, 0, b.services); err != nil {
		return err
	}
	for i := range authorizationPolicies {
		if err := protected.writeAuthorization(i, 0); err != nil {
			return err
		}
	}
	if err := protected.writeRootAuthorization(0); err != nil {
		return err
	}
	m, err := protected.serve(ctx)
	if err != nil {
		return err
	}
	defer m.end(&err)
	f := protected.residents(m)
	f.extensions = true
	defer f.close()
	const what = "authorization"
	if err := protected.connect(ctx, what, m.process, f); err != nil {
		return err
	}
	b.report.Figures = protected.report.Figures
	b.report.limit(what+": all proxies have everything", b.limit(3.5))
	b.report.limit(what+": server CPU for it", 0)
	b.report.limit(what+": memory a proxy (RSS growth)", 0)
	b.report.add(what+": start until ready", median(protected.starts), "seconds", 0)
	b.report.add(what+": RSS then", median(protected.rss), "bytes", 0)

	protects := func(proxy, policy int) bool {
		return protected.mesh.namespace(proxy) == protected.mesh.namespace(policy)
	}
	c, err := protected.changesSeen(ctx, what+" policy", m, f, xdswire.ExtensionType, protects, func(round int) (int, error) {
		policy := 7 * round % authorizationPolicies
		return policy, protected.writeAuthorization(policy, 1+round)
	})
	if err != nil {
		return err
	}
	add := func(change string, c *changes, half float64) {
		b.report.add(what+": "+change+": half of its proxies have it", median(c.half), "seconds", half)
		b.report.add(what+": "+change+": the last has it", median(c.last), "seconds", 0)
		b.report.add(what+": "+change+": server CPU", median(c.cpu), "seconds", 0)
		b.report.add(what+": "+change+": resources generated", median(c.generated), "count", 0)
		b.report.add(what+": "+change+": responses sent", median(c.sent), "count", 0)
	}
	add("a policy changes", c, b.limit(0.02))
	c, err = protected.changes(ctx, what+" root policy", m, f, xdswire.ExtensionType, func(round int) (int, error) {
		return 0, protected.writeRootAuthorization(1 + round)
	})
	if err != nil {
		return err
	}
	add("a policy of the root namespace changes", c, 0)
	return nil
}

// writeAuthorization writes an AuthorizationPolicy that permits requests; version changes a
// principal.
func (b *benchmark) writeAuthorization(i, version int) error {
	return replace(filepath.Join(b.config, fmt.Sprintf("authorization-%d.yaml", i)), fmt.Sprintf(`apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: readers-%[1]d, namespace: %[2]s}
spec:
  rules:
  - from:
    - source: {principals: [cluster.local/ns/%[2]s/sa/reader-%[1]d, cluster.local/ns/operators/sa/version-%[3]d]}
    to:
    - operation: {methods: [GET, HEAD], paths: [/api/%[1]d/*, "/orders/{*}/items"]}
  - from:
    - source: {namespaces: [writers-%[1]d], notIpBlocks: [203.0.113.0/24]}
    to:
    - operation: {methods: [POST], paths: [/api/%[1]d]}
    when:
    - {key: "request.headers[x-team]", values: [team-%[1]d]}
`, i, b.mesh.namespace(i), version))
}

// writeRootAuthorization writes an AuthorizationPolicy of the whole mesh that refuses requests;
// version changes a path.
func (b *benchmark) writeRootAuthorization(version int) error {
	return replace(filepath.Join(b.config, "authorization-root.yaml"), fmt.Sprintf(`apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-admin, namespace: %s}
spec:
  action: DENY
  rules:
  - to:
    - operation: {paths: [/admin/*, /version/%d]}
`, mesh.DefaultSystemNamespace, version))
}
