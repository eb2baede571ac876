package workload

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/files"
)

const groupYAML = `
apiVersion: networking.istio.io/v1
kind: WorkloadGroup
metadata: {name: ledger, namespace: bank}
spec:
  metadata: {labels: {app: ledger, version: v1}, annotations: {proxy.istio.io/config: "concurrency: 3\nproxyMetadata: {B: own}"}}
  template: {serviceAccount: ledger-sa, network: datacenter, ports: {http: 9090}}
  probe: {httpGet: {path: /ready, port: 9090}, periodSeconds: 5}
`

// TestConfigure writes the files of Istio, which the reader of this package reads.
func TestConfigure(t *testing.T) {
	g, err := ParseGroup([]byte(groupYAML), "default")
	if err != nil {
		t.Fatal(err)
	}
	all, err := Configure(g, Input{
		Cluster: "cluster1", Discovery: "istiod.istio-system.svc:15012", Address: netip.MustParseAddr("192.0.2.1"),
		MeshConfig: "trustDomain: mesh.example\ndefaultConfig: {meshId: mesh1, concurrency: 2, drainDuration: 9s, proxyMetadata: {A: mesh, B: mesh}}", Entry: "ledger-vm-1", Roots: []byte("roots"), Token: []byte("token"),
	})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range all {
		got[f.Name] = string(f.Data)
		if f.Mode != files.Secret {
			t.Errorf("%s has mode %v", f.Name, f.Mode)
		}
	}
	want := map[string]string{
		"cluster.env": `CA_ADDR='istiod.istio-system.svc:15012'
ISTIO_INBOUND_PORTS='*'
ISTIO_LOCAL_EXCLUDE_PORTS='22,15090,15021,15020'
ISTIO_METAJSON_LABELS='{"app":"ledger","service.istio.io/canonical-name":"ledger","service.istio.io/canonical-revision":"v1","version":"v1"}'
ISTIO_META_CLUSTER_ID='cluster1'
ISTIO_META_DNS_CAPTURE='true'
ISTIO_META_MESH_ID='mesh1'
ISTIO_META_NETWORK='datacenter'
ISTIO_META_WORKLOAD_ENTRY='ledger-vm-1'
ISTIO_META_WORKLOAD_NAME='ledger'
ISTIO_NAMESPACE='bank'
ISTIO_SERVICE='ledger.bank'
ISTIO_SERVICE_CIDR='*'
POD_NAMESPACE='bank'
SERVICE_ACCOUNT='ledger-sa'
TRUST_DOMAIN='mesh.example'
`,
		"mesh.yaml": `defaultConfig:
  concurrency: 3
  discoveryAddress: istiod.istio-system.svc:15012
  drainDuration: 9s
  meshId: mesh1
  proxyMetadata:
    A: mesh
    B: own
  readinessProbe:
    httpGet:
      path: /ready
      port: 9090
    periodSeconds: 5
`,
		"hosts":         "192.0.2.1 istiod.istio-system.svc\n",
		"root-cert.pem": "roots",
		"istio-token":   "token",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	registered, err := Configure(g, Input{Discovery: "istiod.istio-system.svc:15012", AutoRegister: true})
	if err != nil || !strings.Contains(string(registered[0].Data), "\nISTIO_META_AUTO_REGISTER_GROUP='"+g.Name+"'\n") ||
		strings.Contains(string(registered[0].Data), "WORKLOAD_ENTRY") {
		t.Errorf("for a machine that is registered, the environment is\n%s%v", registered[0].Data, err)
	}
	environ, err := ParseEnvironment([]byte(got["cluster.env"]))
	if err != nil || len(environ) != 16 || environ[0] != "CA_ADDR=istiod.istio-system.svc:15012" || !strings.HasPrefix(environ[3], `ISTIO_METAJSON_LABELS={"app":"ledger"`) {
		t.Errorf("read %q, %v", environ, err)
	}
	if pc, err := ProxyConfig([]byte(got["mesh.yaml"])); err != nil || !strings.Contains(pc, `"periodSeconds":5`) {
		t.Errorf("read %s, %v", pc, err)
	}
	if a, err := Address([]byte("# comment\n"+got["hosts"]), "istiod.istio-system.svc"); err != nil || a.String() != "192.0.2.1" {
		t.Errorf("read %v, %v", a, err)
	}
}

func TestRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"[]": "WorkloadGroup: ",
		"apiVersion: v1\nkind: Service\nmetadata: {name: a}":                                                                      `got kind "Service"`,
		"apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {name: A}":                                            `metadata.name "A"`,
		"apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {name: a, namespace: b.c}":                            `metadata.namespace "b.c"`,
		"apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {name: a}\nspec: {templates: {}}":                     "default/a: spec: ",
		"apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {name: a}\nspec: {template: {serviceAccount: 'a b'}}": "spec.template.serviceAccount",
	} {
		if _, err := ParseGroup([]byte(text), "default"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	g, err := ParseGroup([]byte(strings.Replace(groupYAML, "app: ledger", `app: "led'ger"`, 1)), "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Configure(g, Input{Discovery: "a.test:15012"}); err == nil || !strings.Contains(err.Error(), "ISTIO_METAJSON_LABELS would contain a quote") {
		t.Errorf("a quote: %v", err)
	}
	for _, discovery := range []string{"", "a.test", "192.0.2.1", "a b:1"} {
		if _, err := Configure(g, Input{Discovery: discovery}); err == nil || !strings.Contains(err.Error(), "discovery address") {
			t.Errorf("%q: %v", discovery, err)
		}
	}
	if g, err = ParseGroup([]byte(strings.Replace(groupYAML, "concurrency: 3", "concurrency: -3", 1)), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := Configure(g, Input{Discovery: "a.test:15012"}); err == nil || !strings.Contains(err.Error(), "concurrency of ProxyConfig: -3: want 0") {
		t.Errorf("a setting that the agent refuses: %v", err)
	}
	for text, want := range map[string]string{"a b=c": "cluster.env:1", "A='b": "not closed", "\n=b": "cluster.env:2", "A": "want NAME"} {
		if _, err := ParseEnvironment([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	if _, err := Address([]byte("none a.test"), "a.test"); err == nil {
		t.Error("a hosts file without an address is accepted")
	}
}

// FuzzGroup: the files of a group can be read, and hold no other line.
func FuzzGroup(f *testing.F) {
	f.Add(groupYAML)
	f.Add("apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {name: a}\nspec: {template: {network: \"a\\nPATH=/tmp\"}}")
	f.Fuzz(func(t *testing.T, text string) {
		g, err := ParseGroup([]byte(text), "default")
		if err != nil {
			return
		}
		environment, err := g.environment(Input{Discovery: "a.test:15012", TrustDomain: "cluster.local"})
		if err != nil {
			return
		}
		environ, err := ParseEnvironment(environment)
		if err != nil {
			t.Fatalf("%v: %s", err, environment)
		}
		for _, e := range environ {
			name, _, _ := strings.Cut(e, "=")
			if !strings.HasPrefix(name, "ISTIO_") && name != "CA_ADDR" && name != "POD_NAMESPACE" && name != "SERVICE_ACCOUNT" && name != "TRUST_DOMAIN" {
				t.Errorf("variable %s", name)
			}
		}
	})
}
