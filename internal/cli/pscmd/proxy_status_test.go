package pscmd

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxystatus"
	"github.com/meshctl/meshctl/test/clitest"
)

// TestProxyStatus follows one proxy through its states.
func TestProxyStatus(t *testing.T) {
	m := clitest.StartMesh(t, status())
	m.Eventually(`(?m)^NAME +CLUSTER +ISTIOD +VERSION +SUBSCRIBED TYPES +STATUS\nclient-1\.apps +meshctl-\w+ +1 \(CDS\) +SYNCED$`, "ps")
	m.Eventually(`(?m)^NAME +CLUSTER +CDS +ECDS +EDS +LDS +RDS +ISTIOD +VERSION\nclient-1\.apps +SYNCED \(\d+m?s\) +IGNORED +IGNORED `, "proxy-status", "-v", "1")
	m.Eventually(`(?m)^NAME +STREAM +KIND +CLUSTER +NETWORK .*\nclient-1\.apps +1 +sidecar +- +SYNCED `, "ps", "-o", "wide")
	m.Eventually(`^NAME .*\nclient-1`, "ps", "-n", "apps", "--fail")
	if code, stdout, stderr := m.Run("ps", "-n", "other"); code != 0 || strings.Contains(stdout, "client") || !regexp.MustCompile(`^No proxy in namespace other is connected: looked at 1 proxy of control plane meshctl-\w+, in namespaces apps\n$`).MatchString(stderr) {
		t.Errorf("another namespace: exit code %d, %s%s", code, stdout, stderr)
	}

	m.Service(81)
	r, err := m.Stream.Recv() // without an answer
	if err != nil {
		t.Fatal(err)
	}
	m.Eventually(`STALE CDS for `, "ps")
	m.Eventually(`STALE \(`, "ps", "-v", "1")
	if code, _, stderr := m.Run("ps", "--fail", "--stale-after", "0s"); code != 3 || !regexp.MustCompile(`client-1\.apps at meshctl-\w+: CDS: no answer for `).MatchString(stderr) {
		t.Errorf("a proxy that does not answer: exit code %d: %s", code, stderr)
	}
	if code, _, stderr := m.Run("ps", "--fail", "--stale-after", "1d"); code != 0 {
		t.Errorf("a proxy that may take a day: exit code %d: %s", code, stderr)
	}
	if err := m.Stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}); err != nil {
		t.Fatal(err)
	}
	m.Eventually(` SYNCED\n`, "ps")

	m.Service(82)
	m.Next("Error adding/updating cluster(s) outbound|82||web.apps.svc.cluster.local: no good")
	m.Eventually(`ERROR CDS: .*no good`, "ps")
	code, stdout, stderr := m.Run("ps", "--fail", "-o", "json")
	if code != 3 || !strings.Contains(stderr, "no good") {
		t.Errorf("a proxy that refused: exit code %d: %s", code, stderr)
	}
	var reports []proxystatus.Report
	if err := json.Unmarshal([]byte(stdout), &reports); err != nil {
		t.Fatal(err)
	}
	cds := reports[0].Proxies[0].Types[0]
	if cds.State != proxystatus.Error || cds.Acked == "" || cds.AnsweredAt.IsZero() || len(cds.Refused) != 1 {
		t.Errorf("got %+v", cds)
	}
	if code, stdout, _ := m.Run("ps", "-o", "yaml"); code != 0 || !strings.Contains(stdout, "state: ERROR") {
		t.Errorf("exit code %d: %s", code, stdout)
	}
}

func TestProxyStatusErrors(t *testing.T) {
	m := clitest.StartMesh(t, status())
	alive := m.Debug
	for _, tc := range []struct {
		server string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{"ftp://a", []string{"ps"}, 2, `^$`, "want host:port"},
		{alive, []string{"ps", "-v", "2"}, 2, `^$`, "want 0 or 1"},
		{alive, []string{"ps", "-w", "--fail"}, 2, `^$`, "give one of them"},
		{alive, []string{"ps", "-o", "xml"}, 2, `^$`, "use table, wide, name, csv, custom-columns=COLUMNS, json, yaml or jsonpath=TEMPLATE"},
		{"127.0.0.1:1", []string{"ps"}, 1, `^$`, "127.0.0.1:1: .*connection refused; --server takes the --http-addr of control planes"},
		{"127.0.0.1:1", []string{"ps", "-w"}, 1, `^$`, "127.0.0.1:1: .*connection refused"},
		// Other replicas are shown.
		{"127.0.0.1:1," + alive, []string{"ps"}, 4, `\nclient-1`, "^not read: 127.0.0.1:1: .*connection refused"},
		{"127.0.0.1:1,127.0.0.1:2", []string{"ps"}, 1, `^$`, "^Error: 127.0.0.1:1: .*refused\n127.0.0.1:2: .*refused; --server takes"},
		{"127.0.0.1:1", []string{"ps", "web.apps", "--admin", "127.0.0.1:1"}, 1, `^$`, "^Error: 127.0.0.1:1: .*refused; --server takes"},
		{"127.0.0.1:1," + alive, []string{"ps", "--fail"}, 4, `\nclient-1`, "^not read: 127.0.0.1:1: .*connection refused"},
	} {
		m.Debug = tc.server
		code, stdout, stderr := m.Run(tc.args...)
		if code != tc.code || !regexp.MustCompile(tc.stdout).MatchString(stdout) || !regexp.MustCompile(tc.stderr).MatchString(stderr) {
			t.Errorf("%s %v: exit code %d, want %d, %s and %s:\n%s%s", tc.server, tc.args, code, tc.code, tc.stdout, tc.stderr, stdout, stderr)
		}
	}
}

// TestProxyStatusWatch shows a proxy at first, after changes, and when it disconnects.
func TestProxyStatusWatch(t *testing.T) {
	for format, want := range map[string][]string{
		"table": {`(?s)^NAME .*\nclient-1\.apps .* SYNCED\n$`, `(?s)\nclient-1\.apps .* ERROR CDS: .*refused it`, `(?s)\nclient-1\.apps .* DISCONNECTED\n`},
		"json":  {`(?s)^\[.*"SYNCED"`, `(?s)\n\]\n\[.*"ERROR"`, `"proxies": \[\]`},
		"yaml":  {`(?s)^---\n- .*SYNCED`, `(?s)\n---\n- .*ERROR`, `proxies: \[\]`},
	} {
		t.Run(format, func(t *testing.T) {
			m := clitest.StartMesh(t, status())
			m.Eventually("SYNCED", "ps")
			ctx, cancel := context.WithCancel(t.Context())
			out, in := io.Pipe()
			o := Options{watch: true, every: time.Millisecond}
			o.ReplicaFlags = cli.ReplicaFlags{Servers: []string{m.Debug}, System: "istio-system", Timeout: clitest.Patience}
			o.Output = output.Format(format)
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := o.run(ctx, &cli.Env{Stdout: in, Stderr: io.Discard, LookupEnv: clitest.HomeOnly(m.Home), Now: time.Now}); err != nil {
					t.Error(err)
				}
				_ = in.Close()
			})
			var seen bytes.Buffer
			buf := make([]byte, 4096)
			until := func(expr string) {
				t.Helper()
				for re := regexp.MustCompile(expr); !re.Match(seen.Bytes()); {
					n, err := out.Read(buf)
					if err != nil {
						t.Fatalf("%v after %s", err, seen.String())
					}
					seen.Write(buf[:n])
				}
			}
			until(want[0])
			m.Service(1000)
			m.Next("refused it")
			until(want[1])
			if err := m.Stream.CloseSend(); err != nil {
				t.Fatal(err)
			}
			until(want[2])
			cancel()
			_, _ = io.Copy(&seen, out)
			wg.Wait()
			if n := strings.Count(seen.String(), "NAME "); format == "table" && n != 1 {
				t.Errorf("%d headers:\n%s", n, seen.String())
			}
		})
	}
}

// status returns the command of this package.
func status() cli.Group { return cli.Group{Commands: []cli.Command{NewProxyStatus}} }
