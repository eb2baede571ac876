package bootstrap

import (
	"crypto/tls"
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/mesh"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMarshal(t *testing.T) {
	sidecar := Config{
		Node: mesh.NodeID{
			Type: mesh.Sidecar, IP: netip.MustParseAddr("10.1.0.11"), Name: "helloworld-v1",
			Namespace: "sample", Domain: "sample.svc.cluster.local",
		},
		NodeCluster: "helloworld.sample",
		Metadata: map[string]any{
			"CLUSTER_ID": "cluster1", "NETWORK": "network1",
			"LABELS": map[string]any{"app": "helloworld", "quote": `"{{ .x }}`},
		},
		Listen: netip.MustParseAddr("0.0.0.0"), Local: netip.MustParseAddr("127.0.0.1"),
		AdminPort: 15000, StatusPort: 15020, ReadyPort: 15021, StatsPort: 15090,
		SDSSocket: "etc/istio/proxy/sds/socket", XDSSocket: "etc/istio/proxy/XDS",
		Discovery: Server{Host: "istiod.istio-system.svc", Port: 15012, Name: "istiod.istio-system.svc"},
		Delta:     true,
	}
	router := sidecar
	router.Node.Type = mesh.Router
	router.Listen, router.Local = netip.MustParseAddr("127.1.0.3"), netip.MustParseAddr("127.1.0.3")
	router.Discovery.Host, router.XDSRootFile, router.Delta = "127.1.0.2", "root.pem", false
	router.Direct = true
	router.KeyExchanges = []tls.CurveID{tls.X25519MLKEM768, tls.X25519, tls.CurveP256}
	router.Stats = StatsInclusion{Prefixes: []string{"p"}, Suffixes: []string{"s"}, Regexps: []string{"r.*"}}
	router.ExtraStatTags = []string{"request_host", "a.b", "response_code"} // the last one is built-in
	router.MaxHeap, router.CountConnections, router.OutlierLog = 1<<30, true, "/dev/stdout"
	router.RuntimeValues = map[string]string{"a.b": "1", "re2.max_program_size.error_level": ""}

	proved := sidecar
	proved.MaxHeap = 1 << 30
	proved.ProofCert, proved.ProofKey = []byte("certificate"), []byte("key")
	shared, other := proved, proved
	shared.SharedXDS = true
	other.WorkloadSocket = "var/run/secrets/workload-spiffe-uds/socket"

	for name, c := range map[string]Config{
		"sidecar.json": sidecar, "router.json": router,
		"proved.json": proved, "proved-shared.json": shared, "proved-spiffe.json": other,
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name, got)
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("differs from %s (-want +got), run with -update:\n%s", file, diff)
	}
}

func TestGRPC(t *testing.T) {
	c := Config{
		NodeCluster: "client.sample",
		Node: mesh.NodeID{
			Type: mesh.Sidecar, IP: netip.MustParseAddr("10.1.0.11"), Name: "client", Namespace: "sample", Domain: "sample.svc.cluster.local",
		},
		Metadata: map[string]any{"CLUSTER_ID": "cluster1", "GENERATOR": "other", "LABELS": map[string]any{"app": "client"}},
	}
	got, err := MarshalGRPC(c, "/etc/istio/proxy/XDS", "/etc/istio/proxy/certs")
	if err != nil || !json.Valid(got) {
		t.Fatal(err)
	}
	golden(t, "grpc.json", got)
	if c.Metadata["GENERATOR"] != "other" {
		t.Error("the metadata of Envoy was changed")
	}
}

func TestMarshalRefusesMetadata(t *testing.T) {
	if _, err := Marshal(Config{Metadata: map[string]any{"X": make(chan int)}}); err == nil {
		t.Error("metadata that is no JSON is accepted")
	}
}
