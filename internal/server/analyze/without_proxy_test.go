package analyze_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/analyze"
)

// TestPodsWithoutProxy: pods without a proxy in a namespace without a label are reported if the mesh
// counts on their proxies, or if it requires mTLS. Labels say that pods need none.
func TestPodsWithoutProxy(t *testing.T) {
	t.Parallel()
	const (
		disabled   = "metadata: {name: plain, labels: {istio-injection: disabled}}"
		unlabelled = "metadata: {name: plain}"
		strict     = "metadata: {name: default, namespace: istio-system}\nspec: {mtls: {mode: STRICT}}"
		permissive = "metadata: {name: default, namespace: istio-system}\nspec: {mtls: {mode: PERMISSIVE}}"
		pod        = "metadata: {name: web-1, namespace: plain}"
		inject     = "kubectl label namespace plain istio-injection=enabled && kubectl -n plain get pod web-1 -o yaml | kubectl -n plain replace --force -f - # or, if they need no proxy: kubectl label namespace plain istio-injection=disabled"
		service    = "\n---\n{apiVersion: v1, kind: Service, metadata: {name: web, namespace: plain}, spec: {clusterIP: 10.1.0.77, selector: {app: web}, ports: [{name: http, port: 80}]}}"
		labelled   = "metadata: {name: web-1, namespace: plain, labels: {app: web}}"
	)
	proxied := strings.NewReplacer(pod, labelled+service+"\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: web-2, namespace: plain, labels: {app: web, sidecar.istio.io/inject: \"true\", security.istio.io/tlsMode: istio}, annotations: {sidecar.istio.io/status: \"{}\", istio.io/rev: default}}\n"+
		"spec: {containers: [{name: istio-proxy, image: \"example.com/meshctl:2\"}]}\nstatus: {phase: Running, podIP: 10.1.1.33}\n---\napiVersion: v1\nkind: Pod\n"+labelled)
	policy := func(spec string) string {
		return "\n---\n{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: p, namespace: " + spec + "}"
	}
	route := "\n---\n{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: web, namespace: plain}, spec: {hosts: [web], http: [{route: [{destination: {host: web}}]}]}}"
	for name, tt := range map[string]struct {
		mesh, added string
		edit        *strings.Replacer
		want        string // level, code, object and message; "" if nothing is found
	}{
		"STRICT and a namespace without a label": {
			unlabelled, "", nil,
			"Info MSH0126 PeerAuthentication istio-system/default: spec.mtls.mode: is STRICT, but the pods of namespace plain (1) have no proxy, and no label says that they need none: their calls to pods with a proxy fail, and they accept plaintext themselves",
		},
		"STRICT and a label":            {disabled, "", nil, ""},
		"STRICT and no pod":             {unlabelled, "", strings.NewReplacer(pod, "metadata: {name: web-1, namespace: ambient}"), ""},
		"STRICT and the label of a pod": {unlabelled, "", strings.NewReplacer(pod, "metadata: {name: web-1, namespace: plain, labels: {sidecar.istio.io/inject: 'false'}}"), ""},
		"STRICT and an ambient pod":     {unlabelled, "", strings.NewReplacer(pod, "metadata: {name: web-1, namespace: plain, labels: {istio.io/dataplane-mode: ambient}}"), ""},
		"PERMISSIVE":                    {unlabelled, "", strings.NewReplacer(strict, permissive), ""},
		"STRICT in the namespace of a Service": {
			unlabelled, "\n---\n{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: default, namespace: shop}, spec: {mtls: {mode: STRICT}}}", strings.NewReplacer(strict, permissive),
			"Info MSH0126 PeerAuthentication shop/default: spec.mtls.mode: is STRICT, but the pods of namespace plain (1) have no proxy, and no label says that they need none: their calls to pods of namespace shop fail",
		},
		"a policy for them": {unlabelled, policy("plain}, spec: {action: DENY, rules: [{to: [{operation: {ports: ['80']}}]}]}"), nil, "Warning IST0102 Namespace plain: metadata.labels: has no label for injection, so 1 pod has no proxy, although objects of the mesh need one: AuthorizationPolicy plain/p (applies to them)"},
		"a policy for them, STRICT of the namespace": {
			unlabelled, "\n---\n{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: own, namespace: plain}, spec: {mtls: {mode: STRICT}}}", strings.NewReplacer(strict, permissive),
			"Warning IST0102 Namespace plain: metadata.labels: has no label for injection, so 1 pod has no proxy, although objects of the mesh need one: PeerAuthentication plain/own (applies to them)",
		},
		"a policy that permits their namespace": {unlabelled, policy("shop}, spec: {rules: [{from: [{source: {namespaces: [plain]}}]}]}"), nil, "AuthorizationPolicy shop/p (names them as callers)"},
		"a policy that permits their account":   {unlabelled, policy("shop}, spec: {rules: [{from: [{source: {principals: [cluster.local/ns/plain/sa/default]}}]}]}"), strings.NewReplacer(`containers: [{name: web, image: "example.com/web:1"}]`, `serviceAccountName: default, containers: [{name: web, image: "example.com/web:1"}]`), "AuthorizationPolicy shop/p (names them as callers)"},
		"a route for their calls":               {unlabelled, "", strings.NewReplacer("http: [{route:", "http: [{match: [{sourceNamespace: plain}], route:"), "VirtualService shop/reviews (has routes for their calls)"},
		"a label and a policy":                  {disabled, policy("shop}, spec: {rules: [{from: [{source: {namespaces: [plain]}}]}]}"), nil, ""},
		"a Service with both kinds of pods":     {unlabelled, "", proxied, "Service plain/web (other pods of it have a proxy)"},
		"routes for their Service":              {unlabelled, service + route, strings.NewReplacer(strict, permissive, pod, labelled), "Info IST0102 Namespace plain: metadata.labels: has no label for injection, so 1 pod has no proxy: their own calls do not use VirtualService plain/web"},
	} {
		clusters := twoClusters(t)[:1]
		file := &clusters[0].Files[0]
		text := strings.Replace(string(file.Text), disabled, tt.mesh, 1)
		if tt.edit != nil {
			text = tt.edit.Replace(text)
		}
		file.Text = []byte(text + tt.added)
		found := ""
		for _, r := range analyze.Reports(checkWith(t, clusters, options(true))) {
			if r.Code == "IST0102" || r.Code == "MSH0126" {
				found += fmt.Sprintf("%s %s %s: %s\n", r.Level, r.Code, r.Origin, r.Text())
				if !strings.Contains(r.Fix, "kubectl label namespace plain istio-injection=enabled && kubectl -n plain get pod web-1 ") || !strings.HasSuffix(r.Fix, inject[strings.Index(inject, " # "):]) {
					t.Errorf("%s: fix %s", name, r.Fix)
				}
			}
		}
		if tt.want == "" && found != "" || !strings.Contains(found, tt.want) {
			t.Errorf("%s: want %q, found %q", name, tt.want, found)
		}
	}
}
