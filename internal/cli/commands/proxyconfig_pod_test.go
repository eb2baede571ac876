package commands

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/test/kube"
)

// gatewayKind is the part of the Kubernetes Gateway API that the test needs.
const gatewayKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gateways.gateway.networking.k8s.io, annotations: {api-approved.kubernetes.io: unapproved}}
spec:
  group: gateway.networking.k8s.io
  names: {kind: Gateway, plural: gateways, singular: gateway}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// workloads are the pods of a deployment. One is the best choice: ready, and not the last by
// name.
const workloads = `
{apiVersion: v1, kind: Pod, metadata: {name: web-1, namespace: NS, labels: {app: web}}, spec: SPEC, status: {phase: Running}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-2, namespace: NS, labels: {app: web, batch.kubernetes.io/job-name: once, gateway.networking.k8s.io/gateway-name: entry}},
  spec: SPEC, status: {phase: Running, conditions: [{type: Ready, status: "True"}]}}
---
{apiVersion: v1, kind: Pod, metadata: {name: web-0, namespace: NS, labels: {app: web}}, spec: SPEC, status: {phase: Pending}}
---
{apiVersion: v1, kind: Pod, metadata: {name: ended, namespace: NS, labels: {app: ended}}, spec: SPEC, status: {phase: Succeeded}}
---
{apiVersion: v1, kind: Pod, metadata: {name: bare, namespace: NS, labels: {app: bare}}, spec: BARE, status: {phase: Running}}
---
{apiVersion: v1, kind: Service, metadata: {name: web, namespace: NS}, spec: {selector: {app: web}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: nobody, namespace: NS}, spec: {selector: {app: nobody}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: ended, namespace: NS}, spec: {selector: {app: ended}, ports: [{port: 80}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: selfless, namespace: NS}, spec: {ports: [{port: 80}]}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, namespace: NS}, spec: {replicas: 0, selector: {matchExpressions: [{key: app, operator: In, values: [web]}]}, template: TEMPLATE}}
---
{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: web, namespace: NS}, spec: {replicas: 0, selector: {matchLabels: {app: web}}, template: TEMPLATE}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: entry, namespace: NS}, spec: {}}
`

// TestProxyConfigOfAPod reads the configuration of Envoys in pods by port-forward.
func TestProxyConfigOfAPod(t *testing.T) {
	if testing.Short() {
		t.Skip("needs Kubernetes")
	}
	one, two := kube.Shared(t, "cluster1"), kube.Shared(t, "cluster2")
	ns, other := two.Namespace(t, "pc"), two.Namespace(t, "pc")
	two.Apply(t, gatewayKind)
	spec := fmt.Sprintf("{nodeName: %s, automountServiceAccountToken: false, containers: [{name: istio-proxy, image: none}]}", two.Kubelet(t).Node)
	two.Apply(t, strings.NewReplacer(
		"NS", ns, "SPEC", spec, "BARE", strings.Replace(spec, "istio-proxy", "web", 1),
		"TEMPLATE", "{metadata: {labels: {app: web}}, spec: {containers: [{name: web, image: none}]}}").Replace(workloads))
	asked := make(chan string, 10)
	envoy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		dump, err := os.ReadFile(map[string]string{
			"/clusters": "../../proxyconfig/testdata/c1-sleep.clusters.json", "/config_dump": "../../proxyconfig/testdata/c1-sleep.config.json",
		}[r.URL.Path])
		if err != nil {
			t.Error(err)
		}
		_, _ = w.Write(dump)
	}))
	defer envoy.Close()
	_, port, _ := strings.Cut(envoy.Listener.Addr().String(), ":")
	config := kube.MergedKubeconfig(t, one, two)
	run := func(vars map[string]string, args ...string) (int, string, string) {
		var out, errs strings.Builder
		env := &cli.Env{
			Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Now: time.Now,
			LookupEnv: func(name string) (string, bool) { v, ok := vars[name]; return v, ok },
		}
		return Run(t.Context(), env, args), out.String(), errs.String()
	}
	for _, tc := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"pc c web-2." + ns, 0, `outbound +EDS`, `^$`},
		{"pc ep web-1 -n " + ns, 0, `(?m)^192\.168\.1\.242:15443 `, `^$`},
		{"pc l pod/web-1." + ns + " -o json", 0, `^\[`, `^$`},
		{"pc r deploy/web." + ns, 0, `helloworld`, `^deployment/web\.NS has 2 pods, this is web-2\.NS\n$`},
		{"pc s deployments.apps/web -n " + ns, 0, `ROOTCA`, `this is web-2\.NS\n$`},
		{"pc c StatefulSet/web." + ns, 0, `EDS`, `this is web-2\.NS\n$`},
		{"pc c svc/web." + ns, 0, `EDS`, `this is web-2\.NS\n$`},
		{"pc c gateway.gateway.networking.k8s.io/entry." + ns, 0, `EDS`, `^$`},
		{"pc all web-1." + ns, 0, `(?m)^listener/virtualInbound `, `^The dump has no section of endpoint assignments: `},
		{"pc b web-1." + ns + " -o short", 0, `^Istio Version: unknown\nEnvoy Version: 1\.40\.0/`, `^$`},

		{"pc c web-3." + ns, 1, `^$`, `^Error: namespace NS has no pod web-3, did you mean web-[12], or a workload by kind/name, such as deploy/web\?\n$`},
		{"pc c absent." + ns, 1, `^$`, `namespace NS has no pod absent; select another namespace by name\.namespace or --namespace, and a workload by kind/name\n$`},
		{"pc c web-1." + other, 1, `^$`, `has no pod web-1 and no running pod; select`},
		{"pc c web-1", 1, `^$`, `namespace default has no pod web-1`},
		{"pc c web-1." + ns + " --context cluster1", 1, `^$`, `namespace NS has no pod web-1`},
		{"pc c deploy/absent." + ns, 1, `^$`, `^Error: deployment/absent\.NS: there is no such deployment in namespace NS\n$`},
		{"pc c svc/nobody." + ns, 1, `^$`, `no pods match "service/nobody\.NS": none in namespace NS has the labels app=nobody\n$`},
		{"pc c svc/ended." + ns, 1, `^$`, `no pods match "service/ended\.NS": of 1 pods none runs, ended is Succeeded\n$`},
		{"pc c svc/selfless." + ns, 1, `^$`, `service/selfless\.NS: the service selects no pods\n$`},
		{"pc c web-1." + ns + " --proxy-admin-port 1", 1, `^$`, `ask Envoy's admin interface localhost:1 by port-forward to pod NS/web-1: .*connection refused`},
		{"pc all bare." + ns + " --proxy-admin-port 1", 1, `^$`, `^Error: pod NS/bare has no sidecar: none of its containers is istio-proxy \(.*connection refused.*\)\n$`},
		{"pc log bare." + ns + " --proxy-admin-port 1", 1, `^$`, `pod NS/bare has no sidecar: `},
		{"pc c web-1." + ns + " --as nobody", 1, `^$`, `pods \\?"web-1\\?" is forbidden: User \\?"nobody\\?" cannot create resource \\?"pods/portforward`},

		{"pc c nonsense/web." + ns, 2, `^$`, `kind "nonsense" is none of daemonset, deployment, gateway, job, pod, replicaset, service, statefulset`},
		{"pc c Web." + ns, 2, `^$`, `"Web" is not a name of Kubernetes`},
		{"pc c web.", 2, `^$`, `"" is not the name of a namespace`},
		{"pc c web-1 -f dump.json", 2, `^$`, `give one source: either workload web-1 or --file`},
		{"pc c web-1 web-2", 2, `^$`, `want one workload: POD, POD.NAMESPACE or KIND/NAME`},
		{"pc c --context cluster2 --admin 127.0.0.1:1", 2, `^$`, `--context is for a workload: name it`},
	} {
		args := append(strings.Fields(tc.args), "--kubeconfig", config)
		if !strings.Contains(tc.args, "--context") {
			args = append(args, "--context", "cluster2")
		}
		if !strings.Contains(tc.args, "--proxy-admin-port") && tc.code != 2 {
			args = append(args, "--proxy-admin-port", port)
		}
		code, stdout, stderr := run(map[string]string{"MESHCTL_ADMIN": "127.0.0.1:1"}, args...)
		wantOut, wantErr := strings.ReplaceAll(tc.stdout, "NS", ns), strings.ReplaceAll(tc.stderr, "NS", ns)
		if code != tc.code || !regexp.MustCompile(wantOut).MatchString(stdout) || !regexp.MustCompile(wantErr).MatchString(stderr) {
			t.Errorf("%s: exit code %d, want %d, %s and %s:\n%.300s\n%s", tc.args, code, tc.code, wantOut, wantErr, stdout, stderr)
		}
		if wantAsked := tc.code == 0; wantAsked != (len(asked) == 1) {
			t.Errorf("%s: Envoy was asked %d times", tc.args, len(asked))
		}
		for len(asked) > 0 {
			<-asked
		}
	}
	if _, stdout, _ := run(nil, "__complete", "pc", "c", "--kubeconfig", config, "--context", "cluster2", "-n", ns, "web"); stdout != "web-1\nweb-2\n:4\n" {
		t.Errorf("completed: %q", stdout)
	}
}
