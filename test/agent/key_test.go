package agent

import (
	"bytes"
	"context"
	"encoding/pem"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/agent/sds"
	"github.com/meshctl/meshctl/internal/certs/certstest"
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
	key := keyOf(t, filepath.Join(flags.ConfigPath, "sds", "socket"))

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
	if len(seen[filepath.Join(flags.ConfigPath, "envoy-rev.json")]) == 0 {
		t.Error("the bootstrap is not there")
	}
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
	p.http.CloseIdleConnections()
	if resp, err := p.http.Get("http://" + bind + ":15020/healthz/ready"); err == nil { // it runs still
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Error(resp.Status)
		}
	}
}

// keyOf returns the key that an agent serves to Envoy.
func keyOf(t *testing.T, socket string) (key []byte) {
	t.Helper()
	got := errors.New("got the key")
	ctx, cancel := context.WithTimeoutCause(t.Context(), deadline, errors.New("no key"))
	defer cancel()
	err := sds.Follow(ctx, socket, "sidecar~127.0.0.1~test.test~test", func(s sds.Secrets) error {
		key = s.Key
		cancel()
		return got
	})
	if len(key) == 0 {
		t.Fatalf("no key: %v", err)
	}
	return key
}
