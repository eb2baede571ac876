package xdsgen_test

import (
	"testing"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/yamldoc"
)

// FuzzVirtualService: a spec that the source accepts gives resources that obey the
// rules of Envoy's API.
func FuzzVirtualService(f *testing.F) {
	for _, spec := range []string{
		"hosts: [a], http: [{route: [{destination: {host: a}}]}]",
		"hosts: ['*.a.b', c], gateways: [mesh, g], exportTo: ['.'], http: [{match: [{uri: {regex: 'a+'}, headers: {x: {}, y: {regex: '*'}}, withoutHeaders: {z: {prefix: a}}, queryParams: {q: {exact: ''}}}], redirect: {uri: /}}]",
		"hosts: [a], http: [{match: [{uri: {prefix: /}}], rewrite: {uriRegexRewrite: {match: '(a)(b)', rewrite: '\\2'}}, retries: {attempts: 1, retryOn: '5xx,409', perTryTimeout: 1s}, timeout: 0s, fault: {delay: {percentage: {value: 0.1}, fixedDelay: 1s}, abort: {grpcStatus: INTERNAL}}, mirrors: [{destination: {host: b}, percentage: {value: 1}}], route: [{destination: {host: a, subset: s}, weight: 1}, {destination: {host: b, port: {number: 1}}, weight: 2, headers: {request: {set: {host: x, b: '%PROTOCOL%'}}}}]}]",
		"hosts: [a], http: [{corsPolicy: {allowOrigins: [{exact: '*'}], allowMethods: ['*'], maxAge: 1s}, directResponse: {status: 200, body: {bytes: AAAA}}}]",
		"hosts: [a, '*.d'], tls: [{match: [{sniHosts: ['*.d'], destinationSubnets: [10.0.0.0/8, '::1']}], route: [{destination: {host: a}}]}], tcp: [{match: [{destinationSubnets: [10.0.0.1], sourceLabels: {a: b}}], route: [{destination: {host: a}, weight: 1}, {destination: {host: b}, weight: 1}]}]",
	} {
		f.Add(spec)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		if len(spec) > 1<<12 {
			t.Skip()
		}
		doc, err := yamldoc.Parse(yamldoc.Chunk{Text: []byte("{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: v, namespace: n}, spec: {" + spec + "}}"), Line: 1})
		if err != nil {
			t.Skip()
		}
		r, err := (&source.Converter{Cluster: "c"}).Decode(doc, snapshot.Place{})
		if err != nil || r.Object == nil {
			t.Skip()
		}
		events := []snapshot.Event{{Key: r.Key, Object: r.Object}}
		svc := &snapshot.Service{Meta: snapshot.Meta{Cluster: "c", Namespace: "n", Name: "a"}}
		for i, p := range []mesh.Protocol{mesh.HTTP, mesh.TCP, mesh.TLS, mesh.Auto} {
			svc.Ports = append(svc.Ports, snapshot.ServicePort{Name: string(p), Number: uint32(80 + i), Protocol: p})
		}
		events = append(events, snapshot.Event{Key: svc.Key(), Object: svc})
		node := xdsgen.Node{Cluster: "c", Namespace: "n", Captured: true}
		node.ID.Type = mesh.Sidecar
		for _, resources := range generate(t, build(t, []mesh.ClusterID{"c"}, events), node) {
			render(t, resources) // which checks the rules
		}
	})
}
