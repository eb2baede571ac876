package demo

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

// parsed is one document of a file.
type parsed struct {
	file       string
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct {
		Name   string
		Labels map[string]string
	}
	spec map[string]any
	raw  map[string]any
}

func parse(t *testing.T, all []files.File) map[string]parsed {
	t.Helper()
	out := map[string]parsed{}
	for _, f := range all {
		for i, text := range bytes.Split(f.Data, []byte("\n---\n")) {
			p := parsed{file: f.Name}
			if err := yaml.Unmarshal(text, &p); err != nil {
				t.Fatalf("%s, document %d: %v", f.Name, i, err)
			}
			if err := yaml.Unmarshal(text, &p.raw); err != nil {
				t.Fatalf("%s, document %d: %v", f.Name, i, err)
			}
			p.spec, _ = p.raw["spec"].(map[string]any)
			key := p.Kind + " " + p.Metadata.Name
			if p.APIVersion == "" || p.Kind == "" || p.Metadata.Name == "" {
				t.Errorf("%s, document %d: apiVersion, kind or name missing", f.Name, i)
			}
			if earlier, ok := out[key]; ok {
				t.Errorf("%s is in %s and in %s", key, earlier.file, f.Name)
			}
			out[key] = p
		}
	}
	return out
}

func configOf(t *testing.T, c *cluster) map[string]parsed {
	t.Helper()
	all, err := c.configFiles("127.0.0.1:4321")
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, all)
}

func TestConfigHasWhatTheControlPlaneNeeds(t *testing.T) {
	t.Parallel()
	for _, c := range newClusters() {
		t.Run(string(c.id), func(t *testing.T) {
			t.Parallel()
			got := configOf(t, c)
			for _, key := range []string{
				"Namespace istio-system", "Namespace sample", "ConfigMap istio", "PeerAuthentication default",
				"Gateway cross-network-gateway", "Service istio-eastwestgateway", "Service helloworld",
				"ServiceAccount helloworld", "ServiceAccount client", "ServiceAccount istio-eastwestgateway",
				"Deployment helloworld-" + c.version, "Deployment client", "Deployment istio-eastwestgateway",
				"Node " + string(c.id) + "-node", "Pod helloworld-" + c.version, "Pod client", "Pod istio-eastwestgateway",
				"EndpointSlice helloworld-demo", "EndpointSlice istio-eastwestgateway-demo",
				"Sidecar helloworld", "Sidecar client",
			} {
				if _, ok := got[key]; !ok {
					t.Errorf("%s is missing", key)
				}
			}
			if network := got["Namespace istio-system"].Metadata.Labels[mesh.LabelNetwork]; network != string(c.network) {
				t.Errorf("the system namespace is labelled with network %q, want %s", network, c.network)
			}
			if file := got["EndpointSlice helloworld-demo"].file; file != helloworldEndpoints {
				t.Errorf("helloworld's endpoints are in %s, want %s", file, helloworldEndpoints)
			}
			status := map[string]any{"loadBalancer": map[string]any{"ingress": []any{map[string]any{"ip": c.gateway.ip.String()}}}}
			if diff := cmp.Diff(status, got["Service istio-eastwestgateway"].raw["status"]); diff != "" {
				t.Errorf("status of the gateway's Service (-want +got):\n%s", diff)
			}
		})
	}
}

// unmarshal reads the spec as Istio's own type, which refuses unknown fields.
func unmarshal(t *testing.T, spec map[string]any, into proto.Message) {
	t.Helper()
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := protojson.Unmarshal(data, into); err != nil {
		t.Fatal(err)
	}
}

func TestConfigIsIstios(t *testing.T) {
	t.Parallel()
	c := newCluster(2)
	got := configOf(t, c)

	var server, client networkingv1alpha3.Sidecar
	unmarshal(t, got["Sidecar helloworld"].spec, &server)
	in := server.GetIngress()[0]
	if in.GetBind() != "127.2.0.11" || in.GetPort().GetNumber() != 5000 || in.GetDefaultEndpoint() != "127.0.0.1:4321" {
		t.Errorf("helloworld's ingress listener is %v", in)
	}
	unmarshal(t, got["Sidecar client"].spec, &client)
	out := client.GetEgress()
	if len(out) != 1 || out[0].GetBind() != "127.2.0.12" || out[0].GetPort().GetProtocol() != "HTTP_PROXY" {
		t.Errorf("the client's egress listeners are %v, want one HTTP_PROXY on 127.2.0.12", out)
	}

	var gateway networkingv1alpha3.Gateway
	unmarshal(t, got["Gateway cross-network-gateway"].spec, &gateway)
	servers := gateway.GetServers()
	if len(servers) != 1 || servers[0].GetBind() != "127.2.0.3" ||
		servers[0].GetTls().GetMode() != networkingv1alpha3.ServerTLSSettings_AUTO_PASSTHROUGH {
		t.Errorf("the gateway's servers are %v", servers)
	}
	var auth securityv1beta1.PeerAuthentication
	unmarshal(t, got["PeerAuthentication default"].spec, &auth)
	if auth.GetMtls().GetMode() != securityv1beta1.PeerAuthentication_MutualTLS_STRICT {
		t.Errorf("mTLS mode is %v, want STRICT", auth.GetMtls().GetMode())
	}
}

// What the demo runs has to be what the Deployments of the example describe.
func TestPodsFitTheExample(t *testing.T) {
	t.Parallel()
	for _, c := range newClusters() {
		got := configOf(t, c)
		for _, p := range c.pods() {
			template, _ := got["Deployment "+p.workload].spec["template"].(map[string]any)
			metadata, _ := template["metadata"].(map[string]any)
			labels, _ := metadata["labels"].(map[string]any)
			if len(labels) == 0 {
				t.Errorf("%s: no labels in the Deployment's template", p.role)
			}
			for key, value := range labels {
				if p.labels[key] != value && !strings.HasPrefix(key, "sidecar.istio.io/") {
					t.Errorf("%s: label %s is %q, the Deployment says %q", p.role, key, p.labels[key], value)
				}
			}
			pod, _ := template["spec"].(map[string]any)
			if pod["serviceAccountName"] != p.account {
				t.Errorf("%s: runs as %s, the Deployment says %v", p.role, p.account, pod["serviceAccountName"])
			}
		}
		for service, p := range map[string]pod{gatewayName: c.gateway, helloworld: c.server} {
			selector, _ := got["Service "+service].spec["selector"].(map[string]any)
			for key, value := range selector {
				if p.labels[key] != value {
					t.Errorf("%s: the Service does not select it by %s", p.role, key)
				}
			}
		}
	}
}
