package agent

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	secretv3 "github.com/envoyproxy/go-control-plane/envoy/service/secret/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/harness"
)

// TestKeyStaysInTheAgent: the private key of the workload is in no log, page, dump or file. The agent
// gives it to Envoy alone.
func TestKeyStaysInTheAgent(t *testing.T) {
	ca := certstest.NewIstioCA(t)
	ca.Serve(t, func(s *grpc.Server) {
		discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, &controlPlane{})
	})
	flags := flagsFor(t, ca, harness.ShortDir(t))
	p := run(t, flags, "", "--proxy-log-level", "trace")
	bootstrap := filepath.Join(flags.ConfigPath, "envoy-rev.json")
	proof, err := harness.EnvoyTLS(bootstrap, mesh.SDSCluster)
	if err != nil {
		t.Fatal(err)
	}
	key := keyOf(t, filepath.Join(flags.ConfigPath, "sds", "socket"), proof)
	proofKey, err := certs.EncodeKey(proof.Certificates[0].PrivateKey.(crypto.Signer))
	if err != nil {
		t.Fatal(err)
	}

	seen := map[string]string{"the log of the agent and Envoy": p.log.String()}
	for port, pages := range map[uint16][]string{
		15000: {"/config_dump?include_eds", "/certs", "/server_info", "/stats", "/clusters", "/listeners", "/init_dump", "/memory"},
		15020: {"/stats/prometheus", "/metrics", "/healthz/ready", "/debug/", "/debug/ndsz", "/debug/pprof/heap?debug=1", "/debug/pprof/goroutine?debug=2"},
	} {
		for _, page := range pages {
			seen[page] = p.get(t, port, page)
		}
	}
	if err := filepath.WalkDir(flags.ConfigPath, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var data []byte
			data, err = os.ReadFile(path)
			seen[path] = string(data)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	// The bootstrap has another key, by which Envoy proves itself to the sockets of the agent.
	if !strings.Contains(seen[bootstrap], "PRIVATE KEY") {
		t.Error("the bootstrap has no key for the sockets of the agent")
	}
	seen[bootstrap] = strings.ReplaceAll(seen[bootstrap], strings.ReplaceAll(string(proofKey), "\n", `\n`), "")
	for _, key := range [][]byte{key, proofKey} {
		block, _ := pem.Decode(key)
		if block == nil {
			t.Fatal("the key is not PEM")
		}
		for _, secret := range [][]byte{[]byte("PRIVATE KEY"), bytes.Split(key, []byte("\n"))[1], block.Bytes} {
			for place, text := range seen {
				if strings.Contains(text, string(secret)) {
					t.Errorf("%s shows the key", place)
				}
			}
		}
	}
	p.http.CloseIdleConnections()
	if resp, err := p.http.Get("http://" + bind + ":15020/healthz/ready"); err == nil { // it runs still
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Error(resp.Status)
		}
	}
}

// keyOf returns the key that an agent serves to Envoy.
func keyOf(t *testing.T, socket string, proof *tls.Config) (key []byte) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(credentials.NewTLS(proof)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	stream, err := secretv3.NewSecretDiscoveryServiceClient(conn).StreamSecrets(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: xdswire.SecretType, ResourceNames: []string{mesh.SecretCertificate}}); err != nil {
		t.Fatal(err)
	}
	r, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var s tlsv3.Secret
	if err := r.GetResources()[0].UnmarshalTo(&s); err != nil {
		t.Fatal(err)
	}
	return s.GetTlsCertificate().GetPrivateKey().GetInlineBytes()
}
