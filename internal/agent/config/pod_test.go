package config

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// podEnvironment is the environment that Istio's injection gives to the proxy of a pod.
var podEnvironment = []string{
	"PILOT_CERT_PROVIDER=istiod", "CA_ADDR=istiod.istio-system.svc:15012",
	"POD_NAME=web-7d9-x2x", "POD_NAMESPACE=shop", "INSTANCE_IP=10.1.2.3", "SERVICE_ACCOUNT=web", "HOST_IP=192.168.0.7",
	"ISTIO_CPU_LIMIT=2", "PROXY_CONFIG={}\n",
	`ISTIO_META_POD_PORTS=[{"name":"http","containerPort":8080,"protocol":"TCP"}]`,
	"ISTIO_META_APP_CONTAINERS=web", "GOMEMLIMIT=1073741824", "ISTIO_META_CLUSTER_ID=cluster1", "ISTIO_META_NODE_NAME=node-7",
	"ISTIO_META_INTERCEPTION_MODE=REDIRECT", "ISTIO_META_NETWORK=network1", "ISTIO_META_WORKLOAD_NAME=web",
	"ISTIO_META_OWNER=kubernetes://apis/apps/v1/namespaces/shop/deployments/web", "ISTIO_META_MESH_ID=mesh1",
	"TRUST_DOMAIN=mesh.example", "ISTIO_META_DNS_CAPTURE=true",
	`ISTIO_KUBE_APP_PROBERS={"/app-health/web/readyz":{"httpGet":{"path":"/ready","port":8080,"scheme":"HTTP"}}}`,
	"KUBERNETES_SERVICE_HOST=10.96.0.1",
}

// TestPodOfIstio: with the environment and the files of a pod that Istio injected, the node
// equals the node of Istio's agent, field by field. Only the version and the relay are meshctl's.
func TestPodOfIstio(t *testing.T) {
	cfg, warnings, err := Resolve(Input{
		Environ:        podEnvironment,
		PodLabels:      []byte("app=\"web\"\npod-template-hash=\"7d9\"\nservice.istio.io/canonical-name=\"web\"\n"),
		PodAnnotations: []byte("istio.io/rev=\"default\"\nkubectl.kubernetes.io/last-applied-configuration=\"{}\"\n"),
		Interfaces:     []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.1.2.3")},
		Flags:          Flags{Type: "sidecar", Domain: "shop.svc.cluster.local", LogLevel: "warning,misc:error"},
		Version:        "v1.4.0",
	})
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	if got := cfg.Node.String(); got != "sidecar~10.1.2.3~web-7d9-x2x.shop~shop.svc.cluster.local" {
		t.Errorf("node %s", got)
	}
	if cfg.NodeCluster != "web.shop" || cfg.Identity.String() != "spiffe://mesh.example/ns/shop/sa/web" {
		t.Errorf("node cluster %s, identity %s", cfg.NodeCluster, cfg.Identity)
	}
	want := map[string]any{
		"ANNOTATIONS": map[string]any{"istio.io/rev": "default"}, "APP_CONTAINERS": "web", "CLUSTER_ID": "cluster1", "DNS_CAPTURE": "true",
		"ENVOY_PROMETHEUS_PORT": 15090, "ENVOY_STATUS_PORT": 15021, "ENVOY_SKIP_DEPRECATED_LOGS": "true",
		"INSTANCE_IPS": "10.1.2.3", "INTERCEPTION_MODE": "REDIRECT", "ISTIO_VERSION": "meshctl-v1.4.0",
		"LABELS":  map[string]any{"app": "web", "service.istio.io/canonical-name": "web"},
		"MESH_ID": "mesh1", "MESHCTL_METRICS": "true", "MESHCTL_RELAY": "true", "MESHCTL_VIRTUAL_HOSTS": "true", "METADATA_DISCOVERY": "false",
		"NAME": "web-7d9-x2x", "NAMESPACE": "shop", "NETWORK": "network1", "NODE_NAME": "node-7",
		"OWNER":     "kubernetes://apis/apps/v1/namespaces/shop/deployments/web",
		"PILOT_SAN": []any{"istiod.istio-system.svc"}, "POD_PORTS": `[{"name":"http","containerPort":8080,"protocol":"TCP"}]`,
		"PROXY_CONFIG": map[string]any{
			"concurrency": 2.0, "configPath": "./etc/istio/proxy", "controlPlaneAuthPolicy": "MUTUAL_TLS",
			"discoveryAddress": "istiod.istio-system.svc:15012", "drainDuration": "45s", "proxyAdminPort": 15000.0,
			"serviceCluster": "istio-proxy", "statNameLength": 189.0, "statusPort": 15020.0, "terminationDrainDuration": "5s",
		},
		"SERVICE_ACCOUNT": "web", "WORKLOAD_IDENTITY_SOCKET_FILE": "socket", "WORKLOAD_NAME": "web",
	}
	if diff := cmp.Diff(want, cfg.Metadata); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
}

// TestLayers: annotations override PROXY_CONFIG, which overrides the mesh file, field by field.
func TestLayers(t *testing.T) {
	in := Input{
		Environ: append(base(), "PROXY_CONFIG=drainDuration: 20s\nstatusPort: 15121\nconcurrency: 3\n"),
		MeshConfig: []byte("trustDomain: other\ndefaultConfig:\n  drainDuration: 10s\n  terminationDrainDuration: 11s\n  statusPort: 15122\n" +
			"  discoveryAddress: mesh.svc:15012\n"),
		PodAnnotations: []byte(`proxy.istio.io/config="concurrency: 4\nproxyMetadata: {ISTIO_META_NETWORK: net}\n"` + "\n" +
			`sidecar.istio.io/discoveryAddress="pod.svc:15012"` + "\n" + `status.sidecar.istio.io/port="15123"` + "\n"),
	}
	cfg, warnings, err := Resolve(in)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	got := []any{cfg.Drain.String(), cfg.TerminationDrain.String(), cfg.StatusPort, cfg.Concurrency, cfg.Discovery.Host, cfg.Metadata["NETWORK"]}
	if diff := cmp.Diff([]any{"20s", "11s", uint16(15123), 4, "pod.svc", "net"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for name, tc := range map[string]struct {
		change func(*Input)
		want   string
	}{
		"mesh file":  {func(in *Input) { in.MeshConfig = []byte("defaultConfig: [") }, "--mesh-config"},
		"mesh field": {func(in *Input) { in.MeshConfig = []byte("defaultConfig: {statusPort: x}") }, "defaultConfig of the mesh configuration"},
		"annotation": {func(in *Input) { in.PodAnnotations = []byte(`proxy.istio.io/config="statusPort: x"`) }, "annotation proxy.istio.io/config"},
		"port":       {func(in *Input) { in.PodAnnotations = []byte(`status.sidecar.istio.io/port="x"`) }, "annotation status.sidecar.istio.io/port"},
		"domain":     {func(in *Input) { in.Flags.Domain = "a b" }, "--domain"},
	} {
		other := in
		tc.change(&other)
		if _, _, err := Resolve(other); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
}

// TestStatTags: Envoy's statistics have the tags of PROXY_CONFIG and of the pod's annotation.
func TestStatTags(t *testing.T) {
	in := Input{
		Environ:        append(base(), "PROXY_CONFIG=extraStatTags: [method, '', authority]"),
		PodAnnotations: []byte(`sidecar.istio.io/extraStatTags="request_host, method,"`),
	}
	cfg, warnings, err := Resolve(in)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	if diff := cmp.Diff([]string{"method", "authority", "request_host"}, cfg.ExtraStatTags); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	many := make([]string, maxStatTags+1)
	for i := range many {
		many[i] = fmt.Sprint("t", i)
	}
	for annotation, want := range map[string]string{
		`"a b"`:                                `annotation sidecar.istio.io/extraStatTags: "a b"`,
		strconv.Quote(strings.Join(many, ",")): "want at most 100",
	} {
		in.PodAnnotations = []byte("sidecar.istio.io/extraStatTags=" + annotation)
		if _, _, err := Resolve(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", annotation, err, want)
		}
	}
}

// TestUnusedSettings: variables and fields that only Istio's agent reads are named with a reason.
func TestUnusedSettings(t *testing.T) {
	_, warnings, err := Resolve(Input{Environ: append(base(), "JWT_POLICY=first-party-jwt", "XDS_HEADER_A=b", "ISTIO_ENABLE_HTTP2_PROBING=false",
		"PROXY_CONFIG={statsdUdpAddress: 'a:1', statNameLength: 100}")})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"PROXY_CONFIG: field statNameLength has no effect here: Envoy does not limit the names of statistics",
		"PROXY_CONFIG: field statsdUdpAddress has no effect here: Envoy's statistics are read from /stats/prometheus",
		"ISTIO_ENABLE_HTTP2_PROBING has no effect here: HTTPS probes use HTTP/2 if the application supports it",
		"JWT_POLICY has no effect here: the agent sends the token of --token",
		"XDS_HEADER_A has no effect here: the agent sends no further headers",
	}
	if diff := cmp.Diff(want, warnings); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestTransparentNeedsNetAdmin: the log names the capability that interception mode TPROXY needs.
func TestTransparentNeedsNetAdmin(t *testing.T) {
	for _, mode := range []string{"REDIRECT", "TPROXY"} {
		for _, lacks := range []bool{false, true} {
			_, warnings, err := Resolve(Input{Environ: append(base(), "ISTIO_META_INTERCEPTION_MODE="+mode), NoNetAdmin: lacks})
			if warned := strings.Contains(strings.Join(warnings, "\n"), "NET_ADMIN"); err != nil || warned != (lacks && mode == "TPROXY") {
				t.Errorf("%s, without NET_ADMIN %v: %v %v", mode, lacks, warnings, err)
			}
		}
	}
}

// FuzzLayers: no environment, mesh file or annotations make Resolve panic, and what it accepts
// reaches the node unchanged: quotes and templates are text.
func FuzzLayers(f *testing.F) {
	f.Add("concurrency: 1", "defaultConfig: {}", `proxy.istio.io/config="{}"`, `"}}{{ .x }}`)
	f.Fuzz(func(t *testing.T, proxyConfig, meshConfig, annotations, text string) {
		if strings.ContainsRune(text, 0) || text == "" {
			return
		}
		cfg, _, err := Resolve(Input{
			Environ:    append(base(), "PROXY_CONFIG="+proxyConfig, "ISTIO_META_TEXT="+text),
			MeshConfig: []byte(meshConfig), PodAnnotations: []byte(annotations),
		})
		if err == nil && cfg.Metadata["TEXT"] != text {
			t.Errorf("metadata %q, want %q", cfg.Metadata["TEXT"], text)
		}
	})
}
