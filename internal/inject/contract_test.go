package inject

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshctl/meshctl/internal/mesh"
)

// injected returns the pod of a Pod in YAML after injection.
func injected(t *testing.T, s Settings, in Pod, annotations map[string]string) *corev1.Pod {
	t.Helper()
	i, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "app:1"}}}}
	pod.Name, pod.Namespace, pod.Annotations = "web-1", "sample", annotations
	if in.Object, err = decoded[map[string]any](pod); err != nil {
		t.Fatal(err)
	}
	r, err := i.Inject(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	_, made, err := decodePod(r.Object)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// facts returns what other programs rely on in a container, a line each.
func facts(c *corev1.Container) []string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, p := range c.Ports {
		add("port %s %d %s", p.Name, p.ContainerPort, p.Protocol)
	}
	for _, e := range c.Env {
		switch f := e.ValueFrom; {
		case f == nil:
			add("env %s=%s", e.Name, e.Value)
		case f.FieldRef != nil:
			add("env %s field %s", e.Name, f.FieldRef.FieldPath)
		default:
			add("env %s resource %s / %s", e.Name, f.ResourceFieldRef.Resource, f.ResourceFieldRef.Divisor.String())
		}
	}
	for name, p := range map[string]*corev1.Probe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
		if p != nil {
			add("%s GET %s %s initial %d period %d timeout %d failures %d", name, p.HTTPGet.Port.String(), p.HTTPGet.Path,
				p.InitialDelaySeconds, p.PeriodSeconds, p.TimeoutSeconds, p.FailureThreshold)
		}
	}
	for _, m := range c.VolumeMounts {
		add("mount %s", m.MountPath)
	}
	s := c.SecurityContext
	add("user %d:%d non-root %v read-only %v privileged %v add %v drop %v", *s.RunAsUser, *s.RunAsGroup, *s.RunAsNonRoot,
		*s.ReadOnlyRootFilesystem, *s.Privileged, s.Capabilities.Add, s.Capabilities.Drop)
	slices.Sort(out)
	return out
}

// TestContract: ports, environment, probes, mounts and users of an injected pod are those
// that Istio's agent, control plane and tools rely on.
func TestContract(t *testing.T) {
	t.Parallel()
	s := Settings{Cluster: "cluster1", Network: "network1"}
	s.Values.Global.MeshID = "mesh1"
	pod := injected(t, s, Pod{Workload: mesh.Workload{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}, nil)
	if len(pod.Spec.InitContainers) != 2 || pod.Spec.InitContainers[0].Name != "istio-init" || pod.Spec.InitContainers[1].Name != "istio-proxy" ||
		!isNative(&pod.Spec.InitContainers[1]) {
		t.Fatalf("init containers are %+v", pod.Spec.InitContainers)
	}
	want := strings.Split(`env CA_ADDR=istiod.istio-system.svc:15012
env GOMEMLIMIT resource limits.memory / 0
env HOST_IP field status.hostIP
env INSTANCE_IP field status.podIP
env ISTIO_CPU_LIMIT resource limits.cpu / 1
env ISTIO_META_APP_CONTAINERS=app
env ISTIO_META_CLUSTER_ID=cluster1
env ISTIO_META_INTERCEPTION_MODE=REDIRECT
env ISTIO_META_MESH_ID=mesh1
env ISTIO_META_NETWORK=network1
env ISTIO_META_NODE_NAME field spec.nodeName
env ISTIO_META_OWNER=kubernetes://apis/apps/v1/namespaces/sample/deployments/web
env ISTIO_META_POD_PORTS=[]
env ISTIO_META_WORKLOAD_NAME=web
env PILOT_CERT_PROVIDER=istiod
env POD_NAME field metadata.name
env POD_NAMESPACE field metadata.namespace
env PROXY_CONFIG={}
env SERVICE_ACCOUNT field spec.serviceAccountName
env TRUST_DOMAIN=cluster.local
mount /etc/istio/pod
mount /etc/istio/proxy
mount /var/lib/istio/data
mount /var/run/secrets/credential-uds
mount /var/run/secrets/istio
mount /var/run/secrets/istio/crl
mount /var/run/secrets/tokens
mount /var/run/secrets/workload-spiffe-credentials
mount /var/run/secrets/workload-spiffe-uds
port http-envoy-prom 15090 TCP
readiness GET 15021 /healthz/ready initial 0 period 15 timeout 3 failures 4
startup GET 15021 /healthz/ready initial 0 period 1 timeout 3 failures 600
user 1337:1337 non-root true read-only true privileged false add [] drop [ALL]`, "\n")
	if diff := cmp.Diff(want, facts(&pod.Spec.InitContainers[1])); diff != "" {
		t.Errorf("istio-proxy (-want +got):\n%s", diff)
	}
	order := "PILOT_CERT_PROVIDER CA_ADDR POD_NAME POD_NAMESPACE INSTANCE_IP SERVICE_ACCOUNT HOST_IP ISTIO_CPU_LIMIT PROXY_CONFIG " +
		"ISTIO_META_POD_PORTS ISTIO_META_APP_CONTAINERS GOMEMLIMIT ISTIO_META_CLUSTER_ID ISTIO_META_NODE_NAME " +
		"ISTIO_META_INTERCEPTION_MODE ISTIO_META_NETWORK ISTIO_META_WORKLOAD_NAME ISTIO_META_OWNER ISTIO_META_MESH_ID TRUST_DOMAIN"
	var got []string
	for _, e := range pod.Spec.InitContainers[1].Env {
		got = append(got, e.Name)
	}
	if strings.Join(got, " ") != order {
		t.Errorf("environment in the order %s\nwant %s", got, order)
	}
	redirect := "agent redirect -p 15001 -z 15006 -u 1337 -m REDIRECT -i * -x  -b * -d 15090,15021,15020"
	if args := strings.Join(pod.Spec.InitContainers[0].Args, " "); args != redirect {
		t.Errorf("istio-init runs %s\nwant %s", args, redirect)
	}
	if diff := cmp.Diff([]string{"user 0:0 non-root false read-only false privileged false add [NET_ADMIN NET_RAW] drop [ALL]"}, facts(&pod.Spec.InitContainers[0])); diff != "" {
		t.Errorf("istio-init (-want +got):\n%s", diff)
	}
	volumes := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.EmptyDir != nil:
			volumes[v.Name] = "empty " + string(v.EmptyDir.Medium)
		case v.ConfigMap != nil:
			volumes[v.Name] = "ConfigMap " + v.ConfigMap.Name
		case v.Projected != nil:
			token := v.Projected.Sources[0].ServiceAccountToken
			volumes[v.Name] = fmt.Sprint("token ", token.Audience, " ", *token.ExpirationSeconds, " ", token.Path)
		case v.DownwardAPI != nil:
			volumes[v.Name] = fmt.Sprint("downward ", v.DownwardAPI.Items[0].Path, " ", v.DownwardAPI.Items[1].Path)
		}
	}
	if diff := cmp.Diff(map[string]string{
		"workload-socket": "empty ", "credential-socket": "empty ", "workload-certs": "empty ", "istio-envoy": "empty Memory",
		"istio-data": "empty ", "istio-podinfo": "downward labels annotations", "istio-token": "token istio-ca 43200 istio-token",
		"istiod-ca-cert": "ConfigMap istio-ca-root-cert", "istio-ca-crl": "ConfigMap istio-ca-crl",
	}, volumes); diff != "" {
		t.Errorf("volumes (-want +got):\n%s", diff)
	}
	for name, want := range map[string]string{
		"security.istio.io/tlsMode": "istio", "service.istio.io/canonical-name": "web", "service.istio.io/canonical-revision": "latest",
		"topology.istio.io/network": "network1",
	} {
		if pod.Labels[name] != want {
			t.Errorf("label %s is %q, want %q", name, pod.Labels[name], want)
		}
	}
}

// TestContractOfGRPC: the agent of an application with gRPC differs from a sidecar as Istio's
// template grpc-agent does. Its probes are at the port of the agent, because no Envoy listens.
func TestContractOfGRPC(t *testing.T) {
	t.Parallel()
	s, in := Settings{Cluster: "cluster1"}, Pod{Workload: mesh.Workload{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}
	sidecar := injected(t, s, in, nil)
	pod := injected(t, s, in, map[string]string{"inject.istio.io/templates": "grpc-agent"})
	if len(pod.Spec.InitContainers) != 1 {
		t.Fatalf("init containers are %+v", pod.Spec.InitContainers)
	}
	var got []string
	before, after := facts(&sidecar.Spec.InitContainers[1]), facts(&pod.Spec.InitContainers[0])
	for _, fact := range before {
		if !slices.Contains(after, fact) {
			got = append(got, "- "+fact)
		}
	}
	for _, fact := range after {
		if !slices.Contains(before, fact) {
			got = append(got, "+ "+fact)
		}
	}
	want := strings.Split(`- env ISTIO_META_INTERCEPTION_MODE=REDIRECT
- mount /var/run/secrets/istio/crl
- port http-envoy-prom 15090 TCP
- readiness GET 15021 /healthz/ready initial 0 period 15 timeout 3 failures 4
- startup GET 15021 /healthz/ready initial 0 period 1 timeout 3 failures 600
+ env DISABLE_ENVOY=true
+ env GRPC_XDS_BOOTSTRAP=/etc/istio/proxy/grpc-bootstrap.json
+ env ISTIO_META_DNS_CAPTURE=false
+ env ISTIO_META_GENERATOR=grpc
+ env OUTPUT_CERTS=/var/lib/istio/data
+ readiness GET 15020 /healthz/ready initial 0 period 15 timeout 3 failures 4
+ startup GET 15020 /healthz/ready initial 0 period 1 timeout 3 failures 600`, "\n")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("istio-proxy (-want +got):\n%s", diff)
	}
	if _, set := pod.Labels["security.istio.io/tlsMode"]; set {
		t.Error("the pod has a label that only its user may set")
	}
}

// TestPathOverrides: cluster, network and metadata of a Pod override the settings.
func TestPathOverrides(t *testing.T) {
	t.Parallel()
	s := Settings{Cluster: "c", Network: "n"}
	s.Values.Global.Network, s.Values.Global.MultiCluster.ClusterName = "values", "values"
	pod := injected(t, s, Pod{Cluster: "path", Network: "net", Metadata: map[string]string{"ISTIO_META_CLUSTER_ID": "last", "A": "b"}}, nil)
	got := strings.Join(facts(&pod.Spec.InitContainers[1]), "\n")
	for _, want := range []string{"env ISTIO_META_CLUSTER_ID=last", "env ISTIO_META_NETWORK=net", "env A=b"} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("%s is missing in\n%s", want, got)
		}
	}
	if pod.Labels["topology.istio.io/network"] != "net" {
		t.Errorf("labels are %v", pod.Labels)
	}
}

const docs = "../../docs/injection.md"

// TestDocumentedAnnotations: docs/injection.md has the table of annotations.
func TestDocumentedAnnotations(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	table.WriteString("<!-- table: annotations -->\n| annotation | meaning |\n|---|---|\n")
	for _, a := range annotations {
		meaning := a.meaning
		if a.check == nil {
			meaning = "**no effect**: " + a.withoutEffect
		}
		fmt.Fprintf(&table, "| `%s` | %s |\n", a.name, meaning)
	}
	table.WriteString("<!-- end -->")
	text, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	section := regexp.MustCompile(`(?s)<!-- table: annotations -->.*<!-- end -->`)
	if !section.Match(text) {
		t.Fatalf("%s has no table of annotations", docs)
	}
	made := section.ReplaceAllLiteral(text, []byte(table.String()))
	if *update {
		if err := os.WriteFile(docs, made, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(text), string(made)); diff != "" {
		t.Errorf("%s: run go test ./internal/inject -update:\n%s", docs, diff)
	}
}
