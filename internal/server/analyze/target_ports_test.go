package analyze_test

import (
	"strings"
	"testing"

	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/load"
)

// TestTargetPorts: a port of a Service at which no pod listens is found, if the ports that the pods declare
// show it.
func TestTargetPorts(t *testing.T) {
	t.Parallel()
	const (
		proxy   = `{name: istio-proxy, image: "example.com/meshctl:2", ports: [{name: http-envoy-prom, containerPort: 15090}]}`
		pod     = "{apiVersion: v1, kind: Pod, metadata: {name: NAME, namespace: shop, labels: {app: a, security.istio.io/tlsMode: istio}, annotations: {sidecar.istio.io/status: '{}'}}, spec: {containers: [CONTAINERS]}, status: {podIP: 10.1.0.NUMBER}}\n---\n"
		service = "{apiVersion: v1, kind: Service, metadata: {name: a, namespace: shop}, spec: {clusterIP: 10.0.0.1, selector: {app: a}, ports: [{name: http, port: 80, targetPort: TARGET}]}}\n---\n"
		metrics = "{apiVersion: v1, kind: Service, metadata: {name: metrics, namespace: shop}, spec: {clusterIP: 10.0.0.2, selector: {app: a}, ports: [{name: http, port: 9090}]}}\n---\n"
		app     = "{name: app, ports: [{name: web, containerPort: 5000}]}"
	)
	pods := func(containers ...string) string {
		var out strings.Builder
		for i, c := range containers {
			out.WriteString(strings.NewReplacer("NAME", "a-"+string(rune('1'+i)), "NUMBER", string(rune('1'+i)), "CONTAINERS", c).Replace(pod))
		}
		return out.String()
	}
	to := func(target string) string { return strings.Replace(service, "TARGET", target, 1) }
	for name, tt := range map[string]struct {
		mesh, want, fix string
	}{
		"the declared port":           {to("5000") + pods(app+","+proxy), "", ""},
		"its name":                    {to("web") + pods(app+","+proxy), "", ""},
		"another port":                {to("5001") + pods(app+","+proxy), "Warning MSH0127 Service shop/a: spec.ports[0].targetPort: is 5001, but the pods declare only 5000: if nothing listens at 5001, requests to port 80 fail with 503", "set targetPort: 5000"},
		"of two pods":                 {to("5001") + pods(app+","+proxy, app+","+proxy), "Warning MSH0127", "set targetPort: 5000"},
		"one that one pod has":        {to("5001") + pods(app+","+proxy, "{name: app, ports: [{containerPort: 5001}]},"+proxy), "", ""},
		"one pod declares none":       {to("5001") + pods(app+","+proxy, "{name: app},"+proxy), "", ""},
		"one container declares none": {to("5001") + pods(app+",{name: helper},"+proxy), "", ""},
		"no proxy":                    {to("5001") + pods(app), "", ""},
		"a UDP port":                  {to("5001") + pods("{name: app, ports: [{containerPort: 5000, protocol: UDP}]},"+proxy), "", ""},
		"two candidates":              {to("5001") + pods("{name: app, ports: [{containerPort: 5000}, {containerPort: 6000}]},"+proxy), "declare only 5000, 6000", ""},
		"a port for metrics that is not declared": {to("5000") + metrics + pods(app+","+proxy), "", ""},
		"a gateway":              {to("8443") + pods(proxy), "", ""},
		"a name that no pod has": {to("wep") + pods(app+","+proxy), `Error MSH0127 Service shop/a: spec.ports[0].targetPort: no pod has a port with the name wep, but web: requests to port 80 fail`, `set targetPort: "web"`},
		"a name, no proxy":       {to("wep") + pods(app), "Error MSH0127", `set targetPort: "web"`},
		"a name of one pod":      {to("web") + pods(app+","+proxy, "{name: app, ports: [{containerPort: 5001}]},"+proxy), "", ""},
		"headless":               {strings.Replace(to("5001"), "clusterIP: 10.0.0.1", "clusterIP: None", 1) + pods(app+","+proxy), "", ""},
	} {
		found := analyze.Reports(checkWith(t, []load.Cluster{{ID: "east", Files: []load.File{{Name: "mesh.yaml", Text: []byte(tt.mesh)}}}}, options(true)))
		text, fix := "", ""
		for i := range found {
			if found[i].Code == "MSH0127" {
				text, fix = text+string(found[i].Level)+" "+strings.Replace(found[i].String(), "WrongTargetPort: ", "", 1), found[i].Fix
			}
		}
		if tt.want == "" && text != "" || !strings.Contains(text, tt.want) || fix != tt.fix {
			t.Errorf("%s: found %q, fix %q, want %q, %q", name, text, fix, tt.want, tt.fix)
		}
	}
}
