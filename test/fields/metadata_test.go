//go:build !race

package fields

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/server/render"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// nodeMetadata holds the metadata of nodes that Istio's agent or control plane reads, with a value of
// each, and the reason for those that only describe a proxy for people and other programs.
var nodeMetadata = map[string]struct{ value, describes string }{
	"ANNOTATIONS":                      {`{"a": "b"}`, "tools show them"},
	"APP_CONTAINERS":                   {"web", "tools show them"},
	"AUTO_REGISTER_GROUP":              {"machines", ""},
	"CERT_SIGNER":                      {"a", ""},
	"CLUSTER_ID":                       {"c1", ""},
	"DISABLE_HBONE_SEND":               {"true", ""},
	"DNS_AUTO_ALLOCATE":                {"false", ""},
	"DNS_CAPTURE":                      {"false", ""},
	"DNS_PROXY_ADDR":                   {"127.0.0.9:15053", ""},
	"ENABLE_HBONE":                     {"true", ""},
	"ENABLE_SELF_DISCOVERY":            {"true", ""},
	"ENVOY_PROMETHEUS_PORT":            {"15099", ""},
	"ENVOY_SECURE_MERGED_METRICS_PORT": {"15098", ""},
	"ENVOY_SECURE_METRICS_PORT":        {"15097", ""},
	"ENVOY_SKIP_DEPRECATED_LOGS":       {"false", ""},
	"ENVOY_STATUS_PORT":                {"15096", ""},
	"EXIT_ON_ZERO_ACTIVE_CONNECTIONS":  {"true", ""},
	"GENERATOR":                        {"grpc", ""},
	"HTTP10":                           {"1", ""},
	"HTTP_PROXY_PORT":                  {"15007", ""},
	"IDLE_TIMEOUT":                     {"30s", ""},
	"INBOUND_LISTENER_EXACT_BALANCE":   {"true", ""},
	"INSTANCE_IPS":                     {"10.0.1.1,10.0.1.9", ""},
	"INTERCEPTION_MODE":                {"NONE", ""},
	"ISTIO_PROXY_SHA":                  {"a", "tools show it"},
	"ISTIO_REVISION":                   {"a", "tools show it"},
	"ISTIO_VERSION":                    {"1.18.2", ""},
	"LABELS":                           {`{"app": "other"}`, ""},
	"MESH_ID":                          {"mesh1", ""},
	"METADATA_DISCOVERY":               {"true", "it is for filters of Istio's Envoy"},
	"NAME":                             {"web-1", ""},
	"NAMESPACE":                        {"shop", ""},
	"NETWORK":                          {"other", ""},
	"NODE_NAME":                        {"node-a", "the control plane knows the nodes of pods"},
	"OUTBOUND_LISTENER_EXACT_BALANCE":  {"true", ""},
	"OUTLIER_LOG_PATH":                 {"/dev/stdout", ""},
	"OWNER":                            {"kubernetes://apis/apps/v1/namespaces/shop/deployments/web", "tools show it"},
	"PILOT_SAN":                        {`["a"]`, ""},
	"PLATFORM_METADATA":                {`{"a": "b"}`, "the control plane knows the nodes of pods"},
	"POD_PORTS":                        {`[{"containerPort": 1}]`, "the control plane knows the ports of pods"},
	"REQUESTED_NETWORK_VIEW":           {"other", ""},
	"ROUTER_MODE":                      {"sni-dnat", ""},
	"SERVICE_ACCOUNT":                  {"other", ""},
	"STATIC_LABELS":                    {`{"a": "b"}`, "the agent makes it of the labels"},
	"STS_PORT":                         {"15463", ""},
	"TLS_CLIENT_CERT_CHAIN":            {"/etc/a.pem", ""},
	"TLS_CLIENT_KEY":                   {"/etc/a.pem", ""},
	"TLS_CLIENT_ROOT_CERT":             {"/etc/a.pem", ""},
	"TLS_SERVER_CERT_CHAIN":            {"/etc/a.pem", ""},
	"TLS_SERVER_KEY":                   {"/etc/a.pem", ""},
	"TLS_SERVER_ROOT_CERT":             {"/etc/a.pem", ""},
	"TRUST_DOMAIN":                     {"other.example", ""},
	"UNPRIVILEGED_POD":                 {"true", ""},
	"WORKLOAD_ENTRY":                   {"vm", ""},
	"WORKLOAD_IDENTITY_SOCKET_FILE":    {"other", ""},
	"WORKLOAD_NAME":                    {"web", ""},
}

// TestNoMetadataIsSilent: each variable ISTIO_META_NAME that Istio reads changes the agent or the
// configuration that the control plane generates for the proxy, is refused or reported, or only
// describes the proxy.
func TestNoMetadataIsSilent(t *testing.T) {
	t.Parallel()
	objects := append(objectsOf(t, "testdata/metadata.yaml"), objectsOf(t, "testdata/mesh.yaml")...)
	objects = append(objects, objectsOf(t, "../../internal/server/render/testdata/base.yaml")...)
	m, err := render.Read(t.Context(), renderConfig(resultOf(t, objects).clusters))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(nodeMetadata)) {
		given := nodeMetadata[name]
		result := onAgent(name, given.value)
		if result == "" {
			result = onNodes(t, m, name, given.value)
		}
		switch {
		case result == "" && given.describes == "":
			t.Errorf("%s is silent", name)
		case result == "":
			result = "describes the proxy: " + given.describes
		case given.describes != "":
			t.Errorf("%s only describes the proxy, but %s", name, result)
		}
		lines = append(lines, name+": "+result)
	}
	golden(t, filepath.Join("testdata", "metadata.out.txt"), strings.Join(lines, "\n")+"\n")
}

// onAgent returns the effect of a variable on an agent apart from the metadata of its node.
func onAgent(name, value string) string {
	refused := ""
	resolve := func(more ...string) (string, []string) {
		cfg, warnings, err := config.Resolve(config.Input{
			Environ: append([]string{
				"POD_NAME=reviews-1", "POD_NAMESPACE=shop", "INSTANCE_IP=10.0.1.1", "SERVICE_ACCOUNT=reviews", "CA_ADDR=istiod.istio-system.svc:15012", "ISTIO_META_DNS_CAPTURE=true",
			}, more...),
			Interfaces: []netip.Addr{netip.MustParseAddr("10.0.1.1")}, Flags: config.Flags{Type: "sidecar", Domain: "shop.svc.cluster.local"}, Version: "1.0",
		})
		if err != nil {
			refused = err.Error()
			return refused, nil
		}
		cfg.Metadata = nil
		return textOf(&cfg), warnings
	}
	before, _ := resolve()
	for _, prefix := range []string{"ISTIO_META_", ""} {
		after, warnings := resolve(prefix + name + "=" + value)
		for _, w := range warnings {
			if strings.Contains(w, name) {
				return "reported: " + w
			}
		}
		if refused != "" {
			return "refused: " + refused
		}
		if before != after {
			return "changes the agent"
		}
	}
	return ""
}

// onNodes returns the effect of a metadata entry on the configuration of the proxies of the mesh, or
// on what the control plane knows of a proxy.
func onNodes(t *testing.T, m *render.Mesh, name, value string) string {
	t.Helper()
	for _, n := range m.Nodes() {
		before := generated(t, m, n)
		was := n.Metadata.Fields[name]
		v := structpb.NewStringValue(value)
		if parsed := new(structpb.Value); strings.HasPrefix(value, "{") && protojson.Unmarshal([]byte(value), parsed) == nil {
			v = parsed
		}
		n.Metadata.Fields[name] = v
		after := generated(t, m, n)
		if n.Metadata.Fields[name] = was; was == nil {
			delete(n.Metadata.Fields, name)
		}
		if before != after {
			return "changes the configuration"
		}
		if was != nil {
			delete(n.Metadata.Fields, name)
			without := generated(t, m, n)
			if n.Metadata.Fields[name] = was; without != before {
				return "changes the configuration"
			}
		}
	}
	return ""
}

// generated returns the configuration of a proxy, and what the control plane knows of it apart from
// texts that EnvoyFilters may match.
func generated(t *testing.T, m *render.Mesh, n render.Node) string {
	t.Helper()
	node, err := proxy.ParseNode(n, 1<<20)
	if err != nil {
		return err.Error()
	}
	node.Metadata = nil
	p, err := m.Proxy(n)
	if err != nil {
		return err.Error()
	}
	dump, err := p.Resources()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%+v\n", node)
	for _, typ := range render.Types() {
		for _, r := range dump.Of(typ) {
			text, err := r.MarshalJSON()
			if err != nil {
				t.Fatal(err)
			}
			out.Write(text)
		}
	}
	return out.String()
}
