package agent

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/agent/bootstrap"
	agentconfig "github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/test/harness"
)

// TestAdminAddressOfACustomBootstrap: the admin interface listens only at the socket of the agent,
// which nobody else may open, even if the bootstrap of the user has another address.
func TestAdminAddressOfACustomBootstrap(t *testing.T) {
	ca, plane := certstest.NewIstioCA(t), &controlPlane{}
	ca.Serve(t, func(s *grpc.Server) { discoveryv3.RegisterAggregatedDiscoveryServiceServer(s, plane) })
	flags := flagsFor(t, ca, harness.ShortDir(t))
	cfg, _, err := agentconfig.Resolve(agentconfig.Input{Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort(bind, "15999")
	cfg.Override = []byte("admin: {ignore_global_conn_limit: true, address: {socket_address: {address: " + bind + ", port_value: 15999}}}")
	data, err := bootstrap.Marshal(cfg.Config)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "custom.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	a := start(t, flags, "PROXY_CONFIG={customConfigFile: "+file+"}")
	a.waitReady(t)

	dump := a.get(t, 15000, "/config_dump?mask=bootstrap")
	if !strings.Contains(dump, `"ignore_global_conn_limit": true`) || strings.Contains(dump, "15999") {
		t.Errorf("the bootstrap of Envoy: %s", dump)
	}
	if conn, err := net.Dial("tcp", address); err == nil {
		conn.Close()
		t.Errorf("Envoy listens on %s", address)
	}
	sockets, err := filepath.Glob(filepath.Join(cfg.ConfigPath, "sds", "admin-*"))
	if err != nil || len(sockets) != 1 {
		t.Fatalf("sockets of the admin interface: %v, %v", sockets, err)
	}
	for path, want := range map[string]string{sockets[0]: "Srw-------", filepath.Dir(sockets[0]): "drwx------"} {
		if info, err := os.Stat(path); err != nil || info.Mode().String() != want {
			t.Errorf("%s: %v, %v, want %s", path, info.Mode(), err, want)
		}
	}
	a.stop()
	if err := a.ended(t); err != nil {
		t.Errorf("the agent ended with %v", err)
	}
}
