package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"unicode"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/server/debug"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// metricsPage returns the page /metrics.
func metricsPage(t *testing.T, s *Server) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Get("http://" + s.monitoring.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// connectAs connects a proxy with these claims, and waits for its clusters.
func connectAs(t *testing.T, s *Server, name, cluster, version string) error {
	t.Helper()
	conn, err := grpc.NewClient(s.plain.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	md, err := structpb.NewStruct(map[string]any{"CLUSTER_ID": cluster, "ISTIO_VERSION": version})
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Id: "sidecar~10.0.0.1~" + name + ".apps~apps.svc.cluster.local", Metadata: md}, TypeUrl: xdswire.ClusterType,
	}) // its error comes from Recv
	_, err = stream.Recv()
	return err
}

// TestMetricsOfManyClients: the number of series does not grow with the claims of clients.
func TestMetricsOfManyClients(t *testing.T) {
	s := start(t, func(c *Config) { write(t, c.ConfigDir, "a.yaml", serviceYAML(1)) })
	if err := connectAs(t, s, "first", "cluster1", "1.0.0"); err != nil {
		t.Fatal(err)
	}
	series := func() int {
		n := 0
		for line := range strings.Lines(metricsPage(t, s)) {
			if !strings.HasPrefix(line, "#") {
				n++
			}
		}
		return n
	}
	before := series()
	const clients = 60
	for i := range clients {
		version := fmt.Sprintf("1.%d.0", i)
		if i%2 == 0 {
			version = fmt.Sprintf("evil\n\x1b[31m%d\"}", i)
		}
		if err := connectAs(t, s, fmt.Sprintf("client-%d", i), fmt.Sprintf("cluster-%d", i), version); err != nil {
			t.Fatal(err)
		}
	}
	if after := series(); after > before+debug.MaxVersions {
		t.Errorf("%d series became %d", before, after)
	}
	page := metricsPage(t, s)
	for _, want := range []string{`pilot_xds{version="other"}`, "pilot_services 1\n", `pilot_info{version="test"} 1`, `istio_build{component="pilot",tag="test"} 1`, "istiod_uptime_seconds ", `pilot_xds_pushes{type="cds"} 61`} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	if strings.Contains(page, "evil") || strings.Contains(page, "client-1") || strings.Contains(page, "cluster-1\"") {
		t.Error("what clients say of themselves is in the metrics")
	}
}

// TestNoWayToStopOrProfile: no HTTP port serves a page that stops the server, or
// profiles without --profiling.
func TestNoWayToStopOrProfile(t *testing.T) {
	s := start(t, func(*Config) {})
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile", "/quitquitquit", "/drain", "/config_dump", "/ctrlz", "/scopez", "/debug/force_disconnect?proxyID=a"} {
		if code, _ := get(t, s, path); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
		resp, err := client.Post("http://"+s.monitoring.Addr().String()+path, "text/plain", strings.NewReader(""))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("metrics port %s: %s", path, resp.Status)
		}
	}
}

// TestTextOfClientsIsEscaped: a node whose text forges lines, colours a terminal and reorders
// text is escaped in logs and pages.
func TestTextOfClientsIsEscaped(t *testing.T) {
	const evil = "x\nlevel=ERROR msg=forged\x1b[2J\u202e\u2066\x07"
	var logs bytes.Buffer
	s, stop, done := launch(t, func(c *Config) {
		write(t, c.ConfigDir, "a.yaml", serviceYAML(1))
		c.Log = slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	waitFor(t, "readiness", func() bool { return s.ready.Load() })
	for _, name := range []string{"web", evil, "web" + evil} {
		_ = connectAs(t, s, name, evil, evil) // it may be refused
	}
	connect(t, s, "good").subscribeAll(t)
	shown := ""
	for _, page := range append(s.debug.Names(), "adsz?pretty", "xds/history?proxy=web.apps") {
		_, body := get(t, s, "/debug/"+page)
		plain(t, "/debug/"+page, body)
		shown += body
		if strings.HasPrefix(body, "{") && !json.Valid([]byte(body)) {
			t.Errorf("/debug/%s is no JSON", page)
		}
	}
	plain(t, "/ready?verbose", func() string { _, body := get(t, s, "/ready?verbose"); return body }())
	plain(t, "/metrics", metricsPage(t, s))
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	plain(t, "the log", logs.String())
	for what, text := range map[string]string{"pages": shown, "log": logs.String()} {
		if !strings.Contains(text, `\u202e`) || !strings.Contains(text, "forged") {
			t.Errorf("the %s do not have the text at all, so that this proves nothing", what)
		}
	}
}

// plain fails on text that controls a terminal, or on a line forged by a client.
func plain(t *testing.T, what, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "level=ERROR msg=forged") {
			t.Errorf("%s has a forged line", what)
		}
		for _, r := range strings.TrimSuffix(line, "\n") {
			if !unicode.IsPrint(r) && r != '\t' {
				t.Errorf("%s has %U in %.200q", what, r, line)
				break
			}
		}
	}
}
